"""How recalls are read: the words that are asked, the rules of the tenant, where the answer is cached."""

import hashlib
import unicodedata
from dataclasses import dataclass
from importlib.metadata import version

from service.adapters.cache import address_of
from service.memory.answer import Question, question_of
from service.memory.asked import Asked
from service.memory.policies import Policies
from service.policy.content import clean
from service.policy.kinds import KeepPolicy
from service.policy.ranking import has_word, keep_tail
from service.policy.redaction import RedactionPolicy, redact, redact_all
from service.policy.tenant_policy import TenantPolicy
from service.schemas import RecallRequest
from service.scope import BankId
from service.settings import Settings

# More than `keep_tail` keeps of any query.
_MOST_CHARS = 4000


@dataclass(frozen=True, slots=True)
class _Rules:
    """What recalls of one tenant follow; `digest` stands for it and for the installation in cached names.

    A question keeps its sentences, so that something is left to look for.
    """

    keep: KeepPolicy
    redaction: RedactionPolicy
    digest: str


class RecallReader:
    """Reads recalls by the settings and each by its tenant's policy; a pure function of both."""

    def __init__(self, settings: Settings, policies: Policies) -> None:
        self._settings = settings
        # What differs between installations and versions but not between requests.
        setup = (
            version("dify-memory"),
            settings.timezone,
            settings.hindsight_url,
            settings.embedding_model,
        )

        def rules_of(policy: TenantPolicy) -> _Rules:
            digest = hashlib.sha256(repr((setup, policy.keep, policy.redaction)).encode()).hexdigest()[:16]
            return _Rules(policy.keep, policy.redaction.for_questions, digest)

        self._default_rules = rules_of(policies.file.default)
        self._rules = {tenant: rules_of(policy) for tenant, policy in policies.file.tenants.items()}

    def asked_of(self, request: RecallRequest, bank: BankId, tenant: str) -> Asked | None:
        """The request as the cache knows it; None for a query without a word."""
        query = normalised(request.query)
        # Most queries begin with a word; looking for one costs more than looking at the first character.
        if not (query[:1].isalnum() and query.isascii()) and not has_word(query):
            return None
        wanted_ms = request.timeout_ms or self._settings.recall_deadline_ms
        key = self._key(request, bank, query, request.format, tenant)
        return Asked(
            bank,
            key,
            address_of(bank, key),
            request.format == "text",
            request.fresh,
            min(wanted_ms, self._settings.recall_deadline_max_ms) / 1000,
        )

    def json_key_of(self, request: RecallRequest, bank: BankId, tenant: str) -> str:
        """Where the same answer is cached as JSON."""
        return self._key(request, bank, normalised(request.query), "json", tenant)

    def question_of(self, request: RecallRequest, bank: BankId, tenant: str) -> Question:
        """What is asked of Hindsight: it may trace that, and memories hold `[phone]`, never the number."""
        rules = self._rules_of(tenant)
        query = redact(normalised(request.query), rules.redaction).text
        tags, _ = redact_all(map(clean, request.tag_list), rules.redaction)
        return question_of(request, bank, query, tags, self._settings.min_score, rules.keep)

    def _rules_of(self, tenant: str) -> _Rules:
        return self._rules.get(tenant, self._default_rules)

    def _key(self, request: RecallRequest, bank: BankId, query: str, form: str, tenant: str) -> str:
        """Digest of everything that changes the bytes of the answer, whose memory it is first of all.

        The bank is also in the names of Redis' keys, but flights are named by this digest alone.
        """
        # Plain numbers and strings only, so that equal renderings mean equal values.
        parts = (
            self._rules_of(tenant).digest,
            bank,
            query,
            request.top_k,
            request.max_chars,
            request.max_total_chars,
            sorted(request.kind_list) if request.kinds else "",
            sorted(request.fact_type_list) if request.fact_types else "",
            # A floor that is asked for also means more than the server's own (see `Question.is_strict`).
            request.min_score > 0,
            # Adding zero makes the negative zero a zero.
            self._settings.min_score if request.min_score < 0 else request.min_score + 0.0,
            request.budget,
            (request.tags_match, sorted(request.tag_list)) if request.tags else "",
            request.conversation_id,
            form,
            request.language,
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def normalised(query: str) -> str:
    """The query as it is asked and cached: NFKC, single spaces, its tail when it is too long."""
    # Only the tail counts, so that a pasted book is not normalised whole.
    tail = query[-_MOST_CHARS:]
    if not tail.isascii():
        tail = unicodedata.normalize("NFKC", tail)
    if not tail.isprintable():  # what `clean` removes is not, nor are a byte order mark and a line end
        tail = clean(tail)
    return keep_tail(" ".join(tail.split()))
