"""Redaction: what identifies or endangers a person is taken out of a text before anything is written.

    redact("我的手机号是138 0013 8000", RedactionPolicy())  →  "我的手机号是[phone]", {"phone": 1}

A mask is the kind in brackets, the same in every language, so that it can be counted and is never read as
sensitive again. Detection is by form, checksum and the words around; see the `redaction_*` and `secrets_*`
modules. The time is linear in the text, whatever it holds; nothing here raises.
"""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final, Literal

from service.policy.content import Message
from service.policy.redaction_addresses import find_addresses
from service.policy.redaction_emails import find_emails
from service.policy.redaction_fold import fold
from service.policy.redaction_numbers import find_numbers
from service.policy.redaction_types import KINDS, Kind, Span
from service.policy.secrets_spoken import find_spoken
from service.policy.secrets_tokens import find_tokens
from service.policy.sentences import sentence_ends

Action = Literal["drop", "mask", "keep"]

# A mask may bring together what stood apart, so a changed text is read again, but not for ever.
_MAX_ROUNDS: Final = 6
_KEY_EDGE: Final = "-----"
_MASK = re.compile(rf"\[(?:{'|'.join(KINDS)})\]")


@dataclass(frozen=True, slots=True)
class RedactionPolicy:
    """What happens to each kind: `mask` puts `[kind]` in its place, `drop` removes the whole sentence, `keep`
    leaves it. The default masks everything: the sentence stays useful, the value is gone."""

    secret: Action = "mask"  # noqa: S105
    card: Action = "mask"
    national_id: Action = "mask"
    iban: Action = "mask"
    passport: Action = "mask"
    phone: Action = "mask"
    email: Action = "mask"
    address: Action = "mask"

    def action(self, kind: Kind) -> Action:
        """What happens to this kind."""
        action: Action = getattr(self, kind)
        return action

    @property
    def for_questions(self) -> "RedactionPolicy":
        """The same for what is asked: a dropped sentence would take the question along, so it is masked."""
        masked: dict[str, Action] = {
            field.name: "mask" for field in fields(self) if getattr(self, field.name) == "drop"
        }
        return replace(self, **masked) if masked else self

    @property
    def keeps_everything(self) -> bool:
        """Whether there is nothing to do."""
        return all(getattr(self, field.name) == "keep" for field in fields(self))


@dataclass(frozen=True, slots=True)
class Redacted:
    """The text that may be stored, and how many findings of each kind were masked or dropped."""

    text: str
    counts: Mapping[Kind, int]

    @property
    def total(self) -> int:
        """How many findings there were."""
        return sum(self.counts.values())


def find(text: str, policy: RedactionPolicy) -> list[Span]:
    """Where `redact` would take something out, in order, merged where findings overlap.

    Of overlapping findings the strictest action counts, then the one that encloses the other, then the first
    kind in `KINDS`. Kinds the policy keeps are not reported.
    """
    folded = fold(text)
    found = [
        Span(*folded.original(span.start, span.end), span.kind)
        for span in (
            *find_tokens(folded),
            *find_spoken(folded),
            *find_numbers(folded),
            *find_emails(folded),
            *find_addresses(folded),
        )
        if policy.action(span.kind) != "keep"
    ]
    return _merged(found, policy)


def redact(text: str, policy: RedactionPolicy) -> Redacted:
    """The text without what the policy masks or drops; redacting the result again changes nothing."""
    if policy.keeps_everything:
        return Redacted(text, {})
    counts: Counter[Kind] = Counter()
    spans = find(text, policy)
    if not spans:
        return Redacted(text, counts)
    counts.update(span.kind for span in spans)
    done = _applied(text, spans, policy)
    # Findings do not reach over line ends (private keys do), so only lines that changed are read again.
    if _KEY_EDGE in text or any(policy.action(span.kind) == "drop" for span in spans):
        return Redacted(_settled(done, policy, counts), counts)
    lines = [_settled(line, policy, counts) if _MASK.search(line) else line for line in done.split("\n")]
    return Redacted("\n".join(lines), counts)


def _settled(text: str, policy: RedactionPolicy, counts: Counter[Kind]) -> str:
    """The text once nothing more is found in it; what is found on the way is counted."""
    for _ in range(_MAX_ROUNDS):
        spans = find(text, policy)
        if not spans:
            return text
        counts.update(span.kind for span in spans)
        text = _applied(text, spans, policy)
    # Built so that every mask lays open the next finding: nothing of it is worth keeping.
    return "[secret]"


def redact_messages(messages: Sequence[Message], policy: RedactionPolicy) -> tuple[list[Message], int]:
    """The same for a conversation: messages of which nothing is left are left out (so the difference in
    length is how many were skipped); and how many findings there were.
    """
    kept: list[Message] = []
    total = 0
    for message in messages:
        done = redact(message.text, policy)
        total += done.total
        if text := done.text.strip():
            kept.append(Message(message.role, text) if done.total else message)
    return kept, total


def redact_map(texts: Mapping[str, str], policy: RedactionPolicy) -> tuple[dict[str, str], int]:
    """The same for metadata: values are redacted, with their name as the label in front of them
    (`{"phone": "2025550143"}`), and names are redacted as well. Entries whose value or name is dropped are
    left out; of several that end up under one name the last one stays.

    Returns the new map and how many findings there were.
    """
    kept: dict[str, str] = {}
    total = 0
    for name, value in texts.items():
        named = redact(name, policy)
        total += named.total
        head = f"{_MASK.sub('', named.text)}: "
        done = redact(head + value, policy)
        if done.total and done.text.startswith(head):
            total += done.total
            text = done.text.removeprefix(head).strip()
        elif done.total:
            done = redact(value, policy)
            total += max(1, done.total)
            text = done.text
        else:
            text = value
        if (text or not value) and (named.text or not name):
            kept[named.text] = text
    return kept, total


def redact_all(texts: Iterable[str], policy: RedactionPolicy) -> tuple[tuple[str, ...], int]:
    """The same for tags: each text on its own, dropped ones left out; and how many findings there were."""
    done = [redact(text, policy) for text in texts]
    return tuple(one.text for one in done if one.text), sum(one.total for one in done)


def _merged(found: list[Span], policy: RedactionPolicy) -> list[Span]:
    found.sort(key=lambda span: (span.start, -span.end))
    merged: list[Span] = []
    for span in found:
        if merged and span.start < merged[-1].end:
            last = merged[-1]
            merged[-1] = Span(last.start, max(last.end, span.end), _kind_of(last, span, policy))
        else:
            merged.append(span)
    return merged


def _kind_of(first: Span, second: Span, policy: RedactionPolicy) -> Kind:
    """Which kind two overlapping findings are, the first beginning no later and, if equal, being longer."""
    is_equal = policy.action(first.kind) == policy.action(second.kind)
    if is_equal and second.end <= first.end and second[:2] != first[:2]:
        return first.kind  # 13800138000@163.com is an address of email, not a phone
    return min((first.kind, second.kind), key=lambda kind: (policy.action(kind) != "drop", KINDS.index(kind)))


def _applied(text: str, spans: list[Span], policy: RedactionPolicy) -> str:
    # (start, end, what stands there instead)
    cuts: list[tuple[int, int, str]] = []
    ends: list[int] = []
    if any(policy.action(span.kind) == "drop" for span in spans):
        ends = sentence_ends(text)
    for span in spans:
        if policy.action(span.kind) == "mask":
            cuts.append((span.start, span.end, f"[{span.kind}]"))
            continue
        before = bisect_right(ends, span.start)
        begin = ends[before - 1] if before else 0
        at = bisect_left(ends, span.end)
        cuts.append((begin, ends[at] if at < len(ends) else len(text), ""))
    # A dropped sentence takes the masks inside it along.
    cuts.sort(key=lambda cut: (cut[0], cut[2] != "", -cut[1]))
    parts: list[str] = []
    done = 0
    for begin, end, mask in cuts:
        if end <= done:
            continue
        parts.append(text[done : max(done, begin)])
        if begin >= done or not mask:
            parts.append(mask)
        done = end
    parts.append(text[done:])
    return "".join(parts)
