"""Who and what a request is about, as ids that cannot collide.

The only place that makes bank, conversation and document ids. Every id is a digest over
length-prefixed parts, so that `a:b` + `c` and `a` + `b:c` differ, as do NFC and NFD, upper and
lower case; Hindsight refuses `/` and `.` in bank ids, and no raw user id ever leaves here.
"""

import hashlib
import re
import unicodedata
import uuid
from typing import NewType

from service.errors import IdentityRequired

BankId = NewType("BankId", str)
ConversationId = NewType("ConversationId", str)
DocumentId = NewType("DocumentId", str)
JobId = NewType("JobId", str)
OperationId = NewType("OperationId", str)

MAX_ID_CHARS = 1024

# What callers send when they have no user: Dify's own default and the words that languages and
# models print for "nothing".
_PLACEHOLDERS = frozenset({"default-user", "null", "none", "undefined", "nil", "nan"})
# Dify leaves a reference it cannot resolve as literal text, with its braces or (in HTTP nodes, graphon
# 0.8) without them.
_UNRESOLVED = re.compile(r"\{\{#?[^{}]*#?\}\}|(?:sys|env|conversation)\.[A-Za-z_][A-Za-z0-9_]*")
_REFERENCE = re.compile(r"\{\{#[^{}]*#\}\}")
# How each of these words and references begins, in both cases: most ids need no closer look.
_ABSENT_STARTS = frozenset("dDnNuU{sec")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")

BANK_PREFIX = "u-"
_BANK = re.compile(r"u-[0-9a-f]{48}")
_TENANT_MARK = re.compile(r"tenant-[0-9a-f]{48}")
_OPERATIONS = uuid.UUID("6a0d6f0c-5a0e-5c39-9b68-6d656d6f7279")


def _digest(kind: str, *parts: str) -> str:
    """192 bits, as 48 hexadecimal digits, over the kind and the length-prefixed parts."""
    pieces: list[bytes] = []
    for part in (kind, *parts):
        raw = part.encode("utf-8", "surrogatepass")
        pieces += (len(raw).to_bytes(8, "big"), raw)
    return hashlib.sha256(b"".join(pieces)).hexdigest()[:48]


def is_absent(value: str) -> bool:
    """Whether an optional id means "none given": blank, a word for nothing, an unresolved reference.

    A turn id that Dify failed to resolve would be the same for every turn and make all but the
    first look like repetitions, so it has to count as absent.
    """
    stripped = value.strip()
    if not stripped:
        return True
    if stripped[0] not in _ABSENT_STARTS:
        return False
    return stripped.casefold() in _PLACEHOLDERS or bool(_UNRESOLVED.fullmatch(stripped))


def holds_reference(value: str) -> bool:
    """Whether part of an id is a reference Dify could not resolve: `app1-{{#sys.user_id#}}` is everybody."""
    return "{{#" in value and bool(_REFERENCE.search(value))


def _is_blank(value: str) -> bool:
    """Whether nothing in it can be seen: white space, and marks without width (U+200B, U+FEFF)."""
    if value[:1].isalnum():
        return False
    return all(char.isspace() or unicodedata.category(char) == "Cf" for char in value)


def checked_user_id(raw: str, *, allow_anonymous: bool = False) -> str:
    """The user id as it came, or `IdentityRequired` when it cannot stand for one person.

    `allow_anonymous` accepts placeholders such as `DEFAULT-USER` (never a blank id).
    """
    if _is_blank(raw):
        raise IdentityRequired("Send the user's id in user_id, for example {{#sys.user_id#}} in Dify.")
    if len(raw) > MAX_ID_CHARS:
        raise IdentityRequired(f"user_id may have at most {MAX_ID_CHARS} characters.")
    # None of these characters is printable; most ids are.
    if not raw.isprintable() and (_CONTROL.search(raw) or _SURROGATE.search(raw)):
        raise IdentityRequired("user_id holds control characters or broken Unicode; send a plain id.")
    if _UNRESOLVED.fullmatch(raw.strip()) or holds_reference(raw):
        raise IdentityRequired("user_id is a variable reference that Dify did not resolve; check its name.")
    if not allow_anonymous and is_absent(raw) and raw.strip().casefold() in _PLACEHOLDERS:
        raise IdentityRequired(
            "user_id is a placeholder that everybody shares (Dify sends DEFAULT-USER when the API call "
            "has no `user`); send the person's own id, or set MEMORY_ALLOW_ANONYMOUS_USERS."
        )
    return raw


def bank_of(tenant: str, user_id: str) -> BankId:
    """The bank of one user of one tenant."""
    return BankId(f"{BANK_PREFIX}{_digest('bank', tenant, user_id)}")


def is_bank_id(name: str) -> bool:
    """Whether a bank's id is in the form that `bank_of` gives; others are other applications'."""
    return bool(_BANK.fullmatch(name))


def tenant_mark(tenant: str) -> str:
    """What tells whose a bank is, in the bank's own record: a digest, since language models get to see it."""
    return f"tenant-{_digest('tenant', tenant)}"


def is_tenant_mark(name: str) -> bool:
    """Whether a bank's name is such a mark; Hindsight's own is the bank's id."""
    return bool(_TENANT_MARK.fullmatch(name))


def conversation_of(bank: BankId, conversation_id: str) -> ConversationId:
    """A conversation of one bank; also the tag its documents carry."""
    return ConversationId(f"c-{_digest('conversation', bank, conversation_id)}")


def document_of(bank: BankId, conversation: ConversationId, turn: str, part: int) -> DocumentId:
    """The document of one part of one turn; `turn` is a turn id or the digest that stands for it."""
    return DocumentId(f"t-{_digest('document', bank, conversation, turn, str(part))}")


def fact_document_of(turn: DocumentId, number: int) -> DocumentId:
    """The document of one memory that was extracted from a turn, counted from 0."""
    return DocumentId(f"{turn}.{number}")


def turn_of_document(document: DocumentId) -> DocumentId:
    """The turn's own document, whether its words are stored or memories extracted from them."""
    return DocumentId(document.partition(".")[0])


def turn_digest(*parts: str) -> str:
    """What stands for a turn that came without an id: a digest of all it says."""
    return _digest("turn", *parts)


def operation_of(batch_id: str, *parts: str) -> OperationId:
    """The id under which Hindsight knows the storing of one batch (or one part of it)."""
    return OperationId(str(uuid.uuid5(_OPERATIONS, "/".join((batch_id, *parts)))))


_RESERVED_TAG = re.compile(r"[ct]-[0-9a-f]{48}|(?:memory_type|importance):.*", re.IGNORECASE | re.DOTALL)


def is_reserved_tag(tag: str) -> bool:
    """Whether a tag has a form that only the service gives: of a conversation, a turn, a kind, an importance.

    A caller who could set one would put a turn into another conversation, or pass it off as vetted.
    """
    return bool(_RESERVED_TAG.fullmatch(tag.strip()))
