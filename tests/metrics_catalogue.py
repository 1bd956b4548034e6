"""Every metric the service exports, with a sample for each label, and enough of PromQL to check expressions.

The parser knows the part of the language that our dashboard and alerts use, and refuses the rest.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import get_args

from prometheus_client import Counter
from prometheus_client.parser import text_string_to_metric_families
from service.adapters.audit import AuditTrail
from service.adapters.hindsight import OperationStatus
from service.adapters.rates import RateCounters
from service.errors import LlmBudgetSpent, LlmMisconfigured, LlmNotAsked, LlmRejected, LlmUnavailable
from service.memory.audit import Audit
from service.memory.chat_report import Status as ChatStatus
from service.memory.limits import RateLimits
from service.memory.recall_reply import Outcome
from service.metrics import GAUGES, Metrics, TurnOutcome
from service.policy.extraction_answer import Reason
from service.settings import Settings

# Family → help and labels; sample → label → values that were made.
Families = dict[str, tuple[str, set[str]]]
Samples = dict[str, dict[str, set[str]]]


def everything() -> str:
    """The exposition of a process that has counted one of everything."""
    metrics = Metrics()
    settings = Settings.model_validate({"audit_days": 1})
    RateLimits(RateCounters.from_settings(settings), metrics, per_user=0)
    Audit(AuditTrail.from_settings(settings), metrics)
    for outcome in get_args(Outcome):
        metrics.note_recall(outcome)
    for turn_outcome in get_args(TurnOutcome):
        metrics.note_turn(turn_outcome)
    metrics.note_stored([1.0], 1.0)
    for status in (200, 202, 404, 429, 503):
        for route in ("/memory/recall", "/memory/add"):
            metrics.note_request(route, status, 0.01)
    failures = (LlmUnavailable, LlmNotAsked, LlmBudgetSpent, LlmMisconfigured, LlmRejected)
    labelled: list[tuple[Counter, Iterable[str]]] = [
        (metrics.operation_polls, get_args(OperationStatus)),
        (metrics.llm_calls, ("ok", "unusable", *(kind.code for kind in failures))),
        (metrics.llm_tokens, ("sent", "said", "chat_sent", "chat_said")),
        (metrics.facts, ("kept", *get_args(Reason))),
        (metrics.chats, get_args(ChatStatus)),
        (metrics.scrape_failures, ("turns_log", "vitals")),
    ]
    for counter, values in labelled:
        for value in values:
            counter.labels(value).inc()
    return metrics.exposition(dict.fromkeys(GAUGES, 1.0)).decode()


def families_of(exposition: str) -> Families:
    """Families by name; labels are those of their samples, `le` included."""
    found: Families = {}
    for family in text_string_to_metric_families(exposition):
        labels = {label for sample in family.samples for label in sample.labels}
        found[family.name] = (family.documentation, labels)
    return {name: value for name, value in found.items() if not name.endswith("_created")}


def samples_of(exposition: str) -> Samples:
    """Sample names with the values of each label."""
    found: Samples = {}
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for name, value in sample.labels.items():
                labels.setdefault(name, set()).add(value)
    return found


def family_of(sample: str, families: Families) -> str:
    """The family that a sample's name is of."""
    stem = re.sub(r"_(?:total|bucket|count|sum)$", "", sample)
    return sample if sample in families else stem


@dataclass
class Use:
    """One metric in an expression: its matchers (label, operator, value) and labels it is grouped by."""

    metric: str
    matchers: list[tuple[str, str, str]] = field(default_factory=list)
    grouped_by: set[str] = field(default_factory=set)


_TOKEN = re.compile(
    r"\s*(?:(?P<string>\"[^\"\\]*\")|(?P<duration>\d+(?:ms|[smhdwy])\b|\$__rate_interval)"
    r"|(?P<number>\d+(?:\.\d+)?)|(?P<name>[a-zA-Z_:][\w:]*)|(?P<op>=~|!~|!=|==|>=|<=|[-+*/<>=(){}\[\],]))"
)
_LEVELS = (("or",), ("and", "unless"), ("==", "!=", ">", "<", ">=", "<="), ("+", "-"), ("*", "/"))
_GROUPING = ("sum", "max", "min", "avg", "count")
_RANGED = ("rate", "increase")
_FUNCTIONS = ("absent", "histogram_quantile")


class Expression:
    """A parsed expression; ValueError for anything that is not in the language as far as it is known here."""

    def __init__(self, text: str) -> None:
        self.uses: list[Use] = []
        self._tokens = list(_tokens(text))
        self._binary(0)
        if self._tokens:
            raise ValueError(f"left over: {self._tokens[:3]}")

    def _next(self) -> str:
        return self._tokens[0][1] if self._tokens else ""

    def _take(self, *wanted: str, kind: str = "") -> str:
        if not self._tokens:
            raise ValueError(f"ends before {wanted or kind}")
        found_kind, text = self._tokens.pop(0)
        if (wanted and text not in wanted) or (kind and found_kind != kind):
            raise ValueError(f"{text!r} where {wanted or kind} was awaited")
        return text

    def _binary(self, level: int) -> None:
        if level == len(_LEVELS):
            self._operand()
            return
        self._binary(level + 1)
        while self._next() in _LEVELS[level]:
            self._take()
            if self._next() in ("on", "ignoring"):
                self._take()
                self._labels()
            self._binary(level + 1)

    def _labels(self) -> set[str]:
        self._take("(")
        found: set[str] = set()
        while self._next() != ")":
            found.add(self._take(kind="name"))
            if self._next() != ")":
                self._take(",")
        self._take(")")
        return found

    def _operand(self) -> None:
        kind, text = self._tokens[0] if self._tokens else ("", "nothing")
        if text == "(":
            self._take()
            self._binary(0)
            self._take(")")
        elif kind == "number":
            self._take()
        elif kind == "name":
            self._named(self._take())
        else:
            raise ValueError(f"{text!r} where an operand was awaited")

    def _named(self, name: str) -> None:
        before = len(self.uses)
        if name in _GROUPING:
            by: set[str] = set()
            if self._next() == "by":
                self._take()
                by = self._labels()
            self._take("(")
            self._binary(0)
            self._take(")")
            for use in self.uses[before:]:
                use.grouped_by |= by
        elif name in _RANGED:
            self._take("(")
            self._selector(self._take(kind="name"))
            self._take("[")
            self._take(kind="duration")
            self._take("]")
            self._take(")")
        elif name in _FUNCTIONS:
            self._take("(")
            self._binary(0)
            while self._next() == ",":
                self._take()
                self._binary(0)
            self._take(")")
        else:
            self._selector(name)

    def _selector(self, name: str) -> None:
        use = Use(name)
        self.uses.append(use)
        if self._next() != "{":
            return
        self._take()
        while self._next() != "}":
            label = self._take(kind="name")
            operator = self._take("=", "!=", "=~", "!~")
            use.matchers.append((label, operator, self._take(kind="string")[1:-1]))
            if self._next() != "}":
                self._take(",")
        self._take()


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    place, end = 0, len(text.rstrip())
    while place < end:
        found = _TOKEN.match(text, place)
        if found is None or found.lastgroup is None:
            raise ValueError(f"cannot read {text[place : place + 10]!r}")
        place = found.end()
        yield found.lastgroup, found[found.lastgroup]
