"""Retention: what was said too long ago is deleted, by the policy of whose memory it is.

Age counts from when it was said, never from when it was stored or imported. A document goes with all that
was made of it; Hindsight drops the observations that rest on it and derives anew those that have other
facts left. A turn that waits to be stored is never deleted, however old, before it has been stored.

A kind with a retention of its own goes sooner than the rest, and never later, also what was set aside (a
fact that a newer one has superseded). Its facts go with their document, unless there is something else in
it: then the fact is overwritten and invalidated, as one that is forgotten (see `memory/forget`), and the turn
it was read from goes with all the rest.

A bank tells its tenant by a mark (see `scope.tenant_mark`), which it gets when a turn is stored; one that
was not written to since there are marks is `MEMORY_TENANT`'s. It comes with the list of banks, and is asked
for anew right before something goes: a bank that is another's by then waits for the next round. Nothing of a
bank goes whose mark is no tenant's that is known here, by `MEMORY_TENANT`, the policy file or a key: it may
be another installation's. Banks whose id has not our form are other applications'.

A round a day, at a quiet time: all banks are read into a list, then bank after bank is worked off (see
`memory/retention_bank`). Every run does a bounded part of it and notes how far it has got; deleting twice is
harmless. A bank that Hindsight refuses something of stays on the list, and the round open, for the next run.
"""

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from time import monotonic

from service.adapters.cache import RecallCache
from service.adapters.hindsight_erase import HindsightEraser
from service.adapters.hindsight_review import HindsightReview
from service.adapters.keys import KeyStore
from service.adapters.retention_plan import Place, RetentionPlan
from service.adapters.turns import TurnsLog
from service.errors import HindsightRejected
from service.memory.policies import Policies
from service.memory.retention_bank import BankSweep, ChangedHands, Expired, Note, Parts
from service.memory.retention_marks import Marks
from service.scope import BANK_PREFIX, BankId

__all__ = ["Deleted", "Expired", "Retention"]

_log = logging.getLogger(__name__)

# When a round begins, in MEMORY_TIMEZONE.
_QUIET = timedelta(hours=3, minutes=37)
_RUN_S = 40.0
_LEASE_S = 58.0
# Each page is a search through all banks, however few it holds.
_BANKS_PAGE = 2000

# Told of each bank that something was deleted of, with the tenant's name.
Deleted = Callable[[str, BankId], object]


@dataclass(frozen=True, slots=True)
class _Swept:
    """What became of one bank: `is_whole`: all of it was looked at; `mark`: None if it was gone at once."""

    mark: str | None
    done: Expired
    is_whole: bool
    is_known: bool = True


class Retention:
    """Deletes what is older than its tenant's policy allows."""

    def __init__(
        self,
        review: HindsightReview,
        eraser: HindsightEraser,
        log: TurnsLog,
        cache: RecallCache,
        *,
        policies: Policies,
        keys: KeyStore | None = None,
        zone: tzinfo = UTC,
        run_s: float = _RUN_S,
        deleted: Deleted | None = None,
    ) -> None:
        """Tenants that have a key in `keys` are known, besides those of `policies`."""
        self._parts = Parts(review, eraser, log, cache)
        self._review = review
        self._policies = policies
        self._keys = keys
        self._zone = zone
        self._run_s = run_s
        self._deleted = deleted

    async def work(self, plan: RetentionPlan, now: datetime) -> Expired:
        """Do a part of today's round, for some seconds; nothing once it is over, or if another worker does.

        The very first run only marks today as done, so that a new installation waits for its first
        night. Raises what Hindsight, Redis, the keys and the cache raise, except for a refusal that concerns
        one bank; the next run goes on where this one was.
        """
        if self._policies.keep_for_ever:
            return Expired()
        today = (now.astimezone(self._zone) - _QUIET).date().isoformat()
        async with plan.leased(_LEASE_S) as is_ours:
            if not is_ours or not await self._is_open(plan, today):
                return Expired()
            done = await self._work_off(plan, await self._known(), now)
        if done.banks:
            _log.info("retention_done", extra={"documents": done.documents, "memories": done.memories})
        return done

    async def _is_open(self, plan: RetentionPlan, today: str) -> bool:
        """Whether there is something left of today's round, which is begun if need be."""
        state = await plan.round()
        if state.day != today:
            await plan.begin(today, is_over=not state.day)
            return bool(state.day)
        return not state.is_over

    async def _known(self) -> Policies:
        if self._keys is None:
            return self._policies
        _, records = await self._keys.load()
        return self._policies.knowing({record.grant.tenant for record in records})

    async def _work_off(self, plan: RetentionPlan, policies: Policies, now: datetime) -> Expired:
        ends = monotonic() + self._run_s
        done = Expired()
        unknown = refused = 0
        if not await self._list(plan, ends):
            return done
        places = await plan.places()
        marks = Marks(self._review, banks=len(places))
        # From anywhere on, so that a bank at which runs end does not keep the same others waiting: one whose
        # requests time out, say. One that is refused ends none.
        first = secrets.randbelow(len(places) + 1)
        for place in (*places[first:], *places[:first]):
            try:
                swept = await self._bank(policies, place, marks, now, ends=ends, note=plan.note)
            except HindsightRejected:
                refused += 1
            else:
                done += swept.done
                unknown += not swept.is_known
                if swept.is_whole:
                    await plan.finish(place.bank)
            if monotonic() >= ends:
                break
        else:
            if not refused:
                await plan.end()
        if refused:
            _log.warning("retention_refused", extra={"banks": refused})
        if unknown:
            _log.warning("retention_leaves_unknown_tenants", extra={"banks": unknown})
        return done

    async def sweep(self, now: datetime, *, is_dry: bool) -> Mapping[str, Expired]:
        """All of it at once, without a plan, by the tenants' marks; a dry run only counts.

        Marks of tenants that are not known are among them, with nothing.
        """
        done: dict[str, Expired] = {}
        policies = await self._known()
        places = [] if self._policies.keep_for_ever else await self._places()
        marks = Marks(self._review, banks=len(places))
        for place in places:
            swept = await self._bank(policies, place, marks, now, is_dry=is_dry)
            if swept.mark is not None:
                done[swept.mark] = done.get(swept.mark, Expired()) + swept.done
        return done

    async def _places(self) -> list[Place]:
        """All banks, each once, by their ids; before a deletion changes the order of the pages."""
        found: dict[BankId, Place] = {}
        offset, seen = 0, _BANKS_PAGE
        while seen == _BANKS_PAGE:
            banks, seen = await self._review.banks(limit=_BANKS_PAGE, offset=offset, prefix=BANK_PREFIX)
            found |= {bank.id: Place(bank.id, mark=bank.mark) for bank in banks}
            offset += seen
        return [found[bank] for bank in sorted(found)]

    async def _list(self, plan: RetentionPlan, ends: float) -> bool:
        """Read all banks unless this round has them; False: time was up before. One page is read in any case.

        The pages are in the order of the last write. A bank that is written to meanwhile moves to the
        front and shows nothing twice that would do harm; one that slips by is seen tomorrow.
        """
        state = await plan.round()
        offset, is_listed = state.listed, state.is_listed
        while not is_listed:
            banks, seen = await self._review.banks(limit=_BANKS_PAGE, offset=offset, prefix=BANK_PREFIX)
            offset += seen
            is_listed = seen < _BANKS_PAGE
            places = [Place(bank.id, mark=bank.mark) for bank in banks]
            await plan.add(places, listed=offset, is_listed=is_listed)
            if not is_listed and monotonic() >= ends:
                return False
        return True

    async def _bank(
        self,
        policies: Policies,
        place: Place,
        marks: Marks,
        now: datetime,
        *,
        ends: float = float("inf"),
        note: Note | None = None,
        is_dry: bool = False,
    ) -> _Swept:
        """Delete what is too old in one bank, by the policy of whose it was when it was listed."""
        mark = place.mark if place.mark is not None else await marks.of(place.bank)
        if mark is None:
            return _Swept(None, Expired(), is_whole=True)
        policy = policies.of_mark(mark)
        if policy is None:
            return _Swept(mark, Expired(), is_whole=True, is_known=False)
        place = replace(place, mark=mark)
        sweep = BankSweep(self._parts, marks, policy, place, now, ends=ends, note=note, is_dry=is_dry)
        try:
            is_whole = await sweep.run()
        except ChangedHands:
            _log.info("retention_leaves_bank_that_changed_hands")
            is_whole = True
        finally:
            # Also what was deleted before something went wrong.
            if self._deleted is not None and sweep.has_deleted:
                self._deleted(policies.tenant_of(mark) or mark, place.bank)
        return _Swept(mark, sweep.done.of_one_bank, is_whole)
