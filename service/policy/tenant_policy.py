"""What each tenant keeps, as a YAML file an operator writes; every mistake is told with its line.

    version: 1
    default:                      # for tenants that are not named below, and for what they leave out
      importance_threshold: 0.5
      redaction: {phone: mask, address: drop}
    tenants:
      acme:
        retention_days: 365       # 0: what was said is kept for ever
        llm_daily_usd: 5          # most US dollars a day for its extraction; 0: no limit
        llm_daily_tokens: 0       # the same in tokens
        kinds:                    # a list replaces the default's as a whole
          - name: user_profile
          - name: allergy
            description: Foods and drugs the user must avoid.
            description_zh: 用户必须避免的食物和药物。
          - name: task_state
            retention_days: 30    # goes sooner than the rest; never later
          - name: gossip
            description: What the user says about colleagues.
            keep: false

The file is read as a tree of nodes, never as Python objects, so that nothing in it can run or blow up.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import regex
import yaml

from service.policy.kinds import DEFAULT_KINDS, KeepPolicy, Kind
from service.policy.policy_mistakes import Mistake, PolicyFileError
from service.policy.redaction import RedactionPolicy
from service.policy.redaction_types import KINDS
from service.policy.takeover import is_instruction_like

__all__ = ["Mistake", "PolicyFile", "PolicyFileError", "TenantPolicy", "read_policy_file"]

ACTIONS: Final = ("drop", "mask", "keep")
_FIELDS: Final = (
    "importance_threshold",
    "kinds",
    "redaction",
    "retention_days",
    "llm_daily_usd",
    "llm_daily_tokens",
)
_MOST_CHARS: Final = 1_000_000
_MOST_KINDS: Final = 30
_MOST_DESCRIPTION: Final = 500
_MOST_TENANT: Final = 64
_MOST_DAYS: Final = 36_500
_MOST_USD: Final = 1_000_000
_MOST_TOKENS: Final = 1_000_000_000_000
_MERGE: Final = "tag:yaml.org,2002:merge"
_NAME: Final = regex.compile(r"[\w-]{1,40}")
_DEFAULTS: Final = {kind.name: kind for kind in DEFAULT_KINDS}


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """What one tenant keeps and for how long, what becomes of sensitive data, what its LLM may cost.

    `retention_days`: days after which what was said is deleted; 0: never. `llm_daily_usd` and
    `llm_daily_tokens`: most that a day's extraction may cost; 0: no limit.
    """

    keep: KeepPolicy = field(default_factory=KeepPolicy)
    redaction: RedactionPolicy = field(default_factory=RedactionPolicy)
    retention_days: int = 90
    llm_daily_usd: float = 0.0
    llm_daily_tokens: int = 0

    @property
    def expiring(self) -> dict[str, int]:
        """Kinds that go sooner than all the rest, and after how many days."""
        most = self.retention_days or math.inf
        return {
            kind.name: kind.retention_days
            for kind in self.keep.kinds
            if kind.keep and kind.retention_days is not None and kind.retention_days < most
        }

    @property
    def keeps_for_ever(self) -> bool:
        """Whether nothing of it ever gets too old."""
        return not self.retention_days and not self.expiring


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """A whole file."""

    default: TenantPolicy
    tenants: Mapping[str, TenantPolicy]

    def of(self, tenant: str) -> TenantPolicy:
        """The policy of one tenant."""
        return self.tenants.get(tenant, self.default)


def read_policy_file(text: str, base: TenantPolicy | None = None) -> PolicyFile:
    """The policies in a YAML text; what it leaves out is `base`'s. Raises `PolicyFileError`."""
    reader = _Reader()
    root = reader.root(text)
    default = base or TenantPolicy()
    tenants: dict[str, TenantPolicy] = {}
    if root is not None:
        fields = reader.mapping(root, "the file", ("version", "default", "tenants"))
        if "version" not in fields:
            reader.wrong(root, "version is missing; write `version: 1`")
        elif not _is_version(reader.scalar(fields["version"], "version")):
            reader.wrong(fields["version"], "version must be 1")
        if "default" in fields:
            default = reader.policy(fields["default"], default)
        if "tenants" in fields:
            for name, node in reader.mapping(fields["tenants"], "tenants", None).items():
                if not 1 <= len(name) <= _MOST_TENANT:
                    reader.wrong(node, f"a tenant's name has 1 to {_MOST_TENANT} characters")
                elif name != name.strip() or not name.isprintable():
                    reader.wrong(node, "a tenant's name begins or ends with a blank, or cannot be seen whole")
                tenants[name] = reader.policy(node, default)
    if reader.mistakes:
        raise PolicyFileError(tuple(sorted(reader.mistakes, key=lambda mistake: mistake.line)))
    return PolicyFile(default, tenants)


class _Reader:
    """Walks the tree and collects what is wrong with it."""

    def __init__(self) -> None:
        self.mistakes: list[Mistake] = []

    def wrong(self, node: yaml.Node, message: str) -> None:
        self.mistakes.append(Mistake(node.start_mark.line + 1, message))

    def root(self, text: str) -> yaml.Node | None:
        if len(text) > _MOST_CHARS:
            self.mistakes.append(Mistake(1, "the file is too long"))
            return None
        try:
            node = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as exc:
            line = exc.problem_mark.line + 1 if exc.problem_mark else 1
            self.mistakes.append(Mistake(line, f"this is not YAML: {exc.problem}"))
            return None
        except (yaml.YAMLError, RecursionError):
            self.mistakes.append(Mistake(1, "this is not YAML"))
            return None
        if node is None:
            self.mistakes.append(Mistake(1, "the file is empty; write `version: 1`"))
        return node

    def mapping(self, node: yaml.Node, where: str, known: tuple[str, ...] | None) -> dict[str, yaml.Node]:
        """The fields of a mapping; None: any names are known."""
        if not isinstance(node, yaml.MappingNode):
            self.wrong(node, f"{where} must be a mapping")
            return {}
        found: dict[str, yaml.Node] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.wrong(key, f"{where} has a key that is no text")
            elif key.tag == _MERGE:
                self.wrong(key, f"{where} has `<<`; merges are not read, write out what is meant")
            elif known is not None and key.value not in known:
                self.wrong(key, f"{where} has an unknown field; known are {', '.join(known)}")
            elif key.value in found:
                self.wrong(key, f"{where} has the same field twice")
            else:
                found[key.value] = value
        return found

    def scalar(self, node: yaml.Node, where: str) -> str | int | float | bool | None:
        """The value of a leaf, by YAML's own rules for plain scalars."""
        if not isinstance(node, yaml.ScalarNode):
            self.wrong(node, f"{where} must be a single value")
            return None
        text = str(node.value)
        try:
            match node.tag.rpartition(":")[2]:
                case "int":
                    return int(text.replace("_", ""), 0)
                case "float":
                    return float(text.replace("_", ""))
                case "bool":
                    return text.casefold() in ("true", "yes", "on")
                case "null":
                    return None
        except ValueError:
            return text
        return text

    def value(self, node: yaml.Node, where: str, fits: Callable[[Any], bool], must: str) -> Any:
        found = self.scalar(node, where)
        if isinstance(node, yaml.ScalarNode) and not fits(found):
            self.wrong(node, f"{where} must be {must}")
            return None
        return found

    def policy(self, node: yaml.Node, base: TenantPolicy) -> TenantPolicy:
        fields = self.mapping(node, "a policy", _FIELDS)
        keep = base.keep
        if "importance_threshold" in fields:
            threshold = self.value(
                fields["importance_threshold"], "importance_threshold", _is_share, "a number from 0 to 1"
            )
            keep = replace(keep, threshold=keep.threshold if threshold is None else float(threshold))
        if "kinds" in fields:
            keep = replace(keep, kinds=self.kinds(fields["kinds"]) or keep.kinds)
        redaction = base.redaction
        if "redaction" in fields:
            for name, action in self.mapping(fields["redaction"], "redaction", KINDS).items():
                found = self.value(action, name, lambda one: one in ACTIONS, f"one of {', '.join(ACTIONS)}")
                if found is not None and name in KINDS:
                    redaction = replace(redaction, **{name: found})
        return TenantPolicy(
            keep,
            redaction,
            self.number(fields, "retention_days", base.retention_days, _MOST_DAYS, is_whole=True),
            float(self.number(fields, "llm_daily_usd", base.llm_daily_usd, _MOST_USD, is_whole=False)),
            self.number(fields, "llm_daily_tokens", base.llm_daily_tokens, _MOST_TOKENS, is_whole=True),
        )

    def number(
        self, fields: Mapping[str, yaml.Node], name: str, base: float, most: int, *, is_whole: bool
    ) -> Any:
        """A field from 0 to `most`; `base` if it is left out."""
        if name not in fields:
            return base
        must = f"a {'whole ' if is_whole else ''}number from 0 to {most}"
        kinds = int if is_whole else int | float

        def fits(value: object) -> bool:
            return isinstance(value, kinds) and not isinstance(value, bool) and 0 <= value <= most

        found = self.value(fields[name], name, fits, must)
        return base if found is None else found

    def kinds(self, node: yaml.Node) -> tuple[Kind, ...]:
        if not isinstance(node, yaml.SequenceNode) or not node.value:
            self.wrong(node, "kinds must be a list with at least one kind")
            return ()
        if len(node.value) > _MOST_KINDS:
            self.wrong(node, f"kinds may hold at most {_MOST_KINDS}")
            return ()
        found: dict[str, Kind] = {}
        for item in node.value:
            kind = self.kind(item)
            if kind is not None and kind.name.casefold() in found:
                self.wrong(item, "two kinds have the same name")
            elif kind is not None:
                found[kind.name.casefold()] = kind
        if found and not any(kind.keep for kind in found.values()):
            self.wrong(node, "at least one kind must be kept")
        return tuple(found.values())

    def kind(self, node: yaml.Node) -> Kind | None:
        fields = self.mapping(
            node, "a kind", ("name", "description", "description_zh", "keep", "retention_days")
        )
        if "name" not in fields:
            self.wrong(node, "a kind needs a name")
            return None
        name = self.value(fields["name"], "name", _is_name, "letters, digits, - and _, at most 40")
        if name is None:
            return None
        kind = _DEFAULTS.get(name, Kind(name))
        if "description" in fields:
            kind = replace(kind, description=self.description(fields["description"]))
        if "description_zh" in fields:
            kind = replace(kind, description_zh=self.description(fields["description_zh"]))
        if "keep" in fields:
            keep = self.value(fields["keep"], "keep", lambda one: isinstance(one, bool), "true or false")
            kind = replace(kind, keep=bool(keep))
        if "retention_days" in fields:
            days = self.value(
                fields["retention_days"], "retention_days", _is_days, "a whole number from 1 on"
            )
            kind = replace(kind, retention_days=days)
        return kind

    def description(self, node: yaml.Node) -> str:
        return str(self.value(node, "a description", _is_description, _FEW_WORDS) or "")


_FEW_WORDS: Final = f"a text of at most {_MOST_DESCRIPTION} characters that gives no orders"


def _is_version(value: object) -> bool:
    # True and 1.0 equal 1.
    return type(value) is int and value == 1


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _is_days(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST_DAYS


def _is_name(value: object) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _is_description(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MOST_DESCRIPTION and not is_instruction_like(value)
