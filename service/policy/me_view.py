"""What the page `/me` shows, and how its values are written."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

from service.policy.kinds import Kind
from service.policy.me_texts import ZH, Texts
from service.schemas_review import ListedMemory, PendingMemory


@dataclass(frozen=True, slots=True)
class View:
    """What of the memories is looked at, and in which language ("": the browser's)."""

    language: str = ""
    query: str = ""
    kind: str = ""
    until: str = ""
    has_superseded: bool = False
    cursor: str = ""

    @property
    def is_narrow(self) -> bool:
        """Whether it may leave something out."""
        return bool(self.query or self.kind or self.until)


@dataclass(frozen=True, slots=True)
class Done:
    """What was done last: something was `corrected`, `one` memory or `all` deleted; with the receipt."""

    what: str
    at: str = ""
    number: str = ""
    memories: int = 0
    documents: int = 0
    pending: int = 0
    jobs: int = 0
    cache_entries: int = 0
    is_verified: bool = True


@dataclass(frozen=True, slots=True)
class Shown:
    """All that a page is made of; `retention_days` 0: what was said is kept."""

    view: View
    memories: Sequence[ListedMemory]
    pending: Sequence[PendingMemory]
    pending_count: int
    next_cursor: str
    kinds: Sequence[Kind]
    retention_days: int
    zone: tzinfo
    expires_s: int
    form_key: str
    done: Done | None = None


def kind_name(texts: Texts, kinds: Iterable[Kind], name: str) -> str:
    """What a kind is called: its own description, if it is none of the default ones."""
    described = next((kind for kind in kinds if kind.name == name), Kind(name))
    own = described.description_zh if texts is ZH else described.description
    return texts.kinds.get(name) or own or name.replace("_", " ")


def day_of(texts: Texts, said_at: str | None, zone: tzinfo) -> str:
    """The date of an ISO 8601 moment, where the page is read; what is none stays as it is."""
    moment = _local(said_at, zone)
    return texts.day(moment) if moment else said_at or ""


def moment_of(texts: Texts, said_at: str | None, zone: tzinfo) -> str:
    """The same with the time of day."""
    moment = _local(said_at, zone)
    return f"{texts.day(moment)} {moment:%H:%M}" if moment else said_at or ""


def _local(said_at: str | None, zone: tzinfo) -> datetime | None:
    """A moment where the page is read; None for what is none, or is at either end of time."""
    try:
        moment = datetime.fromisoformat(said_at or "")
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(zone)
    except (ValueError, OverflowError):
        return None
