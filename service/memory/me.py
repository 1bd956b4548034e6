"""The page `/me`: who may see it, what of it is asked for, and what was done on it.

A link is good until it ends, however often it is opened: a chat's preview or a second device must not use
it up. Ending it, by an operator or on the page itself, ends all links of that person and all visits that
came by one, in every process, with the next request.

What somebody looks for stays out of URLs, which are logged on the way: it is kept, sealed, in a cookie.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import date, datetime, timedelta, tzinfo
from time import time
from typing import Any, Literal, Self

from pydantic import BaseModel, Field

from service.adapters.me_links import MAX_LINK_S, EndedLinks, MeLink, MeLinks, Visit, refused
from service.errors import InvalidRequest, NotFound
from service.memory.audit import Audit
from service.memory.forget import Receipt
from service.memory.keys import NewToken
from service.memory.limits import RateLimits
from service.memory.policies import Policies
from service.memory.review import Position
from service.policy.kinds import Kind
from service.policy.me_view import Done, View
from service.schemas_review import ListRequest
from service.scope import BankId
from service.settings import Settings

_PAGE = 20
_MAX_QUERY_CHARS = 100
# Behind all memories of a moment.
_LAST_ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"


class NewLink(NewToken):
    """`POST /admin/me-links`."""

    ttl_s: int = Field(3600, ge=60, le=MAX_LINK_S, description="Seconds until it ends.")


class EndLinks(NewToken):
    """`POST /admin/me-links/end`."""


class LinkReply(BaseModel):
    """A personal link and its end (ISO 8601)."""

    url: str
    expires_at: str
    request_id: str


class LinksEndedReply(BaseModel):
    """All links of the user are good no more."""

    status: Literal["ended"]
    request_id: str


@dataclass(frozen=True, slots=True)
class Me:
    """Visits to the page. Without keys to sign with there are none: `links` is None."""

    links: MeLinks | None
    ended: EndedLinks
    url: str
    policies: Policies
    limits: RateLimits | None = None
    audit: Audit | None = None

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        ended: EndedLinks,
        policies: Policies,
        limits: RateLimits | None = None,
        audit: Audit | None = None,
    ) -> Self:
        """With `MEMORY_TOKEN_KEYS`."""
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        url = settings.me_url or settings.public_url or f"http://{host}:{settings.port}"
        return cls(MeLinks.from_settings(settings), ended, f"{url}/me", policies, limits, audit)

    def kinds_of(self, visit: Visit) -> tuple[Kind, ...]:
        """The kinds that are kept of a visitor's memories; `retention_days` only where it is sooner."""
        policy = self.policies.of(visit.tenant)
        return tuple(
            replace(kind, retention_days=policy.expiring.get(kind.name))
            for kind in policy.keep.kinds
            if kind.keep
        )

    async def make(self, tenant: str, bank: BankId, ttl_s: int) -> MeLink:
        """A link for one user; raises `NotFound` without keys, `KeysUnavailable`."""
        if self.links is None:
            raise NotFound("No keys for personal links are set here (MEMORY_TOKEN_KEYS).")
        # A link made right after all were ended is a good one.
        made_ms = max(int(time() * 1000), await self.ended.until_ms(bank) + 1)
        return self.links.make(tenant, bank, ttl_s, made_ms)

    def address_of(self, link: MeLink) -> str:
        """What the person opens."""
        return f"{self.url}?token={link.token}"

    async def end(self, bank: BankId) -> None:
        """End all links of a user and all visits; raises `KeysUnavailable`."""
        await self.ended.end(bank)

    async def open(self, token: str) -> tuple[str, Visit]:
        """A visit by a link, and the proof of it; raises `LinkRefused`, `KeysUnavailable`."""
        if self.links is None:
            raise refused()
        proof, visit = self.links.open(token)
        await self._admit(visit)
        return proof, visit

    async def visit(self, proof: str) -> Visit:
        """The visit somebody is on; raises `LinkRefused`, `KeysUnavailable`, `TooManyRequests`."""
        if self.links is None:
            raise refused()
        visit = self.links.visit(proof)
        await self._admit(visit)
        return visit

    async def _admit(self, visit: Visit) -> None:
        if visit.made_ms <= await self.ended.until_ms(visit.bank):
            raise refused()
        if self.limits is not None:
            self.limits.take_user(visit.bank)

    def note(self, visit: Visit, action: str, status: int) -> None:
        """Put what a visitor did into the audit trail, if there is one."""
        if self.audit is not None:
            self.audit.note(visit.tenant, "me", action, visit.bank, status)

    def seal(self, visit: Visit, view: View, done: Done | None = None) -> str:
        """What is looked at, and what was just done, for the visitor's browser to keep."""
        facts: dict[str, object] = _facts_of(view)
        if done is not None:
            facts["done"] = _facts_of(done)
        return self.links.seal(visit, facts) if self.links is not None else ""

    def unseal(self, visit: Visit, text: str) -> tuple[View, Done | None]:
        """The same again; the first page of everything if it is broken."""
        facts = self.links.unseal(visit, text) if self.links is not None and text else {}
        done = facts.pop("done", None)
        # Sealed by this or, across an update, by another version.
        known = {field.name for field in fields(View)}
        view = View(**{name: value for name, value in facts.items() if name in known})
        is_ours = isinstance(done, dict) and done.keys() <= {field.name for field in fields(Done)}
        return view, Done(**done) if isinstance(done, dict) and is_ours and "what" in done else None

    def view_in(self, visit: Visit, form: Mapping[str, object], before: View) -> View:
        """What a form asks to look at; raises `InvalidRequest`."""
        asked = {name: form.get(name) or "" for name in ("query", "kind", "until", "cursor")}
        texts = {name: value.strip() for name, value in asked.items() if isinstance(value, str)}
        view = replace(before, has_superseded=form.get("superseded") == "yes", **texts)
        if len(view.query) > _MAX_QUERY_CHARS or (
            view.kind and view.kind not in {kind.name for kind in self.kinds_of(visit)}
        ):
            raise InvalidRequest("These words are too long, or there is no such kind.")
        if view.cursor:
            Position.decode(view.cursor)
        _day_in(view.until)
        return view


def request_of(view: View, bank: BankId, zone: tzinfo) -> ListRequest:
    """The list that shows a view; raises `InvalidRequest`."""
    cursor = view.cursor
    if not cursor and (day := _day_in(view.until)) is not None:
        midnight = datetime(day.year, day.month, day.day, tzinfo=zone) + timedelta(days=1)
        cursor = Position(midnight, _LAST_ID).encode()
    return ListRequest.read(
        {
            "user_id": bank,
            "kinds": view.kind,
            "query": view.query,
            "limit": _PAGE,
            "cursor": cursor,
            "include_superseded": view.has_superseded,
        }
    )


def done_with(what: Literal["one", "all"], receipt: Receipt, number: str, now: datetime) -> Done:
    """What is said of something that was forgotten; `number` names the request."""
    return Done(
        what=what,
        at=now.isoformat(timespec="seconds"),
        number=number,
        memories=receipt.memories,
        documents=receipt.documents,
        pending=receipt.pending,
        jobs=receipt.jobs,
        cache_entries=receipt.cache_entries,
        is_verified=receipt.is_verified,
    )


def _day_in(text: str) -> date | None:
    """The day a view ends with; raises `InvalidRequest`."""
    if not text:
        return None
    try:
        day = date.fromisoformat(text)
    except ValueError as exc:
        raise InvalidRequest("This is no day: write it like 2026-01-31.") from exc
    if not 1970 <= day.year <= 9000:
        raise InvalidRequest("This is no day: write it like 2026-01-31.")
    return day


def _facts_of(value: View | Done) -> dict[str, Any]:
    """What differs from the defaults: a cookie is small."""
    return {
        field.name: getattr(value, field.name)
        for field in fields(value)
        if getattr(value, field.name) != field.default
    }
