"""Recall: what is known of one user that bears on the query, by its deadline, whatever breaks.

Cache first: one round trip gives the bank's epochs and the answer. On a miss one flight per
question computes it, in this process (`Flights`) and, by a short lease, across processes; everyone
else waits for it, each until a deadline of their own.

When Hindsight fails, the last good answer from before the write epoch stands in, marked `stale`,
together with the turns accepted since, which need no Hindsight. Nothing from before a purge is
served: what was computed or kept is looked at again before it goes out.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from service import logs
from service.adapters.cache import NOT_FOUND, Address, Epochs, Found, RecallCache, address_of
from service.errors import CacheUnavailable, Unavailable
from service.memory.answer import Answer, Answerer, Question, encode, nothing
from service.memory.asked import Asked, AskedBefore
from service.memory.flights import Flights
from service.memory.leases import Leases
from service.memory.policies import Policies
from service.memory.recall_reader import RecallReader
from service.memory.recall_reply import Reply, hit, reply
from service.metrics import Metrics
from service.schemas import RecallRequest
from service.scope import BankId
from service.settings import Settings

_WORTH_ANOTHER_TRY_S = 0.1
# What the last look at the cache may take when the deadline has come already.
_GRACE_S = 0.05
_HANDOVER_S = 0.01

Gone = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class _Ask:
    """One recall under way: `ends` is the loop's time of its deadline, `epochs` None without a cache.

    `key` is where its answer is cached, `json_key` where the same answer is as JSON.
    """

    request: RecallRequest
    question: Question
    key: str
    json_key: str
    epochs: Epochs | None
    ends: float

    @property
    def bank(self) -> BankId:
        return self.question.bank

    @property
    def as_text(self) -> bool:
        return self.request.format == "text"

    @property
    def is_joinable(self) -> bool:
        """Whether equal epochs prove that who asks later may be served by the same computation."""
        return self.epochs is not None and not self.request.fresh


@dataclass(frozen=True, slots=True)
class _Flown:
    """What a flight brings back: the body (see `encode`) and the deadline it had.

    `answer` is what the body says, None if another process has computed it.
    """

    body: bytes
    answer: Answer | None
    ends: float

    @property
    def has_recalled(self) -> bool:
        return self.answer is None or self.answer.has_recalled


class Recaller:
    """Answers recalls; one per process."""

    def __init__(
        self,
        answerer: Answerer,
        cache: RecallCache,
        metrics: Metrics,
        settings: Settings,
        policies: Policies,
    ) -> None:
        self._answerer = answerer
        self._cache = cache
        self._metrics = metrics
        self._settings = settings
        self._flights: Flights[tuple[str, bool, Epochs | None], _Flown] = Flights()
        self._slots = asyncio.Semaphore(settings.recall_concurrency)
        self._asked = AskedBefore()
        self._reader = RecallReader(settings, policies)
        self._leases = Leases(cache, metrics)

    async def recall(
        self, request: RecallRequest, bank: BankId, gone: Gone | None = None, *, tenant: str
    ) -> Reply:
        """`recall_read` of a request that was read already."""
        return await self.recall_read(lambda: (request, bank), b"", gone, tenant=tenant)

    async def recall_read(
        self,
        read: Callable[[], tuple[RecallRequest, BankId]],
        name: bytes,
        gone: Gone | None = None,
        *,
        tenant: str,
    ) -> Reply:
        """The reply, at the latest at the request's deadline (plus the time it takes to write it).

        `read` gives the request and its bank, a pure function of what `name` stands for (see `asked`; empty:
        nothing is remembered), and its errors are raised. The bank is one of `tenant`'s, whose policy is
        followed. `gone` returns when the client has gone away; nothing is computed for it any more then.
        Raises `Unavailable` only when the request says `on_error=fail` and Hindsight has not answered.
        """
        now = asyncio.get_running_loop().time()
        asked = self._asked.get(name)
        given: tuple[RecallRequest, BankId] | None = None
        if asked is None:
            given = read()
            asked = self.asked_of(*given, tenant)
            if asked is None:
                as_text = given[0].format == "text"
                return reply(
                    encode(nothing(), as_text=as_text), "no_words", as_text=as_text, reason="no_words"
                )
            if name:
                self._asked.remember(name, asked)
        logs.bank_id.set(asked.bank)
        # A silent cache must leave time for the rest, even of a short deadline.
        found = await self._find(asked.bank, asked.address, now + asked.deadline_s / 2)
        if found.current is not None and not asked.is_fresh:
            return hit(found.current, as_text=asked.as_text)
        request, _ = given or read()
        ends = now + asked.deadline_s
        return await self._recall_anew(request, tenant, asked, found.epochs, ends, gone)

    def asked_of(self, request: RecallRequest, bank: BankId, tenant: str) -> Asked | None:
        """The request as the cache knows it; None for a query without a word."""
        return self._reader.asked_of(request, bank, tenant)

    async def _recall_anew(
        self,
        request: RecallRequest,
        tenant: str,
        asked: Asked,
        epochs: Epochs | None,
        ends: float,
        gone: Gone | None,
    ) -> Reply:
        as_text = asked.as_text
        ask = _Ask(
            request,
            self._reader.question_of(request, asked.bank, tenant),
            asked.key,
            self._reader.json_key_of(request, asked.bank, tenant) if as_text else asked.key,
            epochs,
            ends,
        )
        async with _watched(gone) as left:
            flown = await self._fly(ask, left)
            if flown is None and left is not None and left.done():
                return reply(
                    encode(nothing(), as_text=as_text), "gone", as_text=as_text, reason="client_gone"
                )
        if flown is None:
            flown = _nothing(ask, "deadline")
        if flown.answer is None or not flown.answer.degraded:
            return reply(flown.body, "miss", as_text=as_text)
        if flown.answer.has_recalled:
            return reply(flown.body, "degraded", as_text=as_text, reason=flown.answer.reason)
        if request.on_error == "fail":
            raise Unavailable("The memory cannot be asked at the moment; try again soon.", retry_after_s=5)
        return await self._last_resort(ask, flown.answer)

    async def _find(self, bank: BankId, address: Address, ends: float) -> Found:
        """The cached answer and the bank's epochs (None when the cache is out of reach)."""
        try:
            found = await self._cache.find_at(address, ends)
            if found.epochs is None:
                found = Found(await self._cache.epochs(bank, ends), None, None)
        except CacheUnavailable:
            self._metrics.cache_failures.inc()
            return NOT_FOUND
        return found

    async def _fly(self, ask: _Ask, gone: "asyncio.Future[object] | None") -> _Flown | None:
        """Compute the answer or wait for it; None when the deadline came first or the client has gone."""
        loop = asyncio.get_running_loop()
        while True:
            flown, is_own = await self._flights.join(
                _name(ask), lambda: self._compute(ask), ask.ends - loop.time(), gone
            )
            if flown is None or is_own or flown.has_recalled:
                return flown
            # Somebody else's flight, which failed; if it was in a greater hurry than ours, ours may not.
            if ask.ends - max(flown.ends, loop.time()) < _WORTH_ANOTHER_TRY_S:
                return flown

    async def _compute(self, ask: _Ask) -> _Flown:
        # Who wants a fresh answer waits for nobody.
        lease = (
            self._leases.held(ask.bank, ask.key, ask.ends) if ask.is_joinable else contextlib.nullcontext()
        )
        async with lease as published:
            if published is not None:
                return _Flown(published, None, ask.ends)
            try:
                async with asyncio.timeout_at(ask.ends):
                    await self._slots.acquire()
            except TimeoutError:
                return _nothing(ask, "busy")
            try:
                if not ask.is_joinable:
                    self._flights.depart(_name(ask))
                return await self._ask_all(ask)
            finally:
                self._slots.release()

    async def _ask_all(self, ask: _Ask) -> _Flown:
        """Compute the answer and publish it; once more if something was forgotten meanwhile."""
        loop = asyncio.get_running_loop()
        epochs = ask.epochs
        while loop.time() < ask.ends:
            answer = await self._answerer.answer(ask.question, ask.ends - loop.time())
            flown = _Flown(encode(answer, as_text=ask.as_text), answer, ask.ends)
            if epochs is None or not answer.has_recalled:
                return flown
            try:
                if not answer.degraded and await self._publish(ask, epochs, flown.body, answer):
                    return flown
                before, epochs = epochs, await self._cache.epochs(ask.bank, ask.ends)
                if _is_unpurged(before, epochs) and answer.degraded:
                    return flown
            except CacheUnavailable:
                self._metrics.cache_failures.inc()
                return flown
        return _nothing(ask, "deadline")

    async def _publish(self, ask: _Ask, epochs: Epochs, body: bytes, answer: Answer) -> bool:
        ttl_s = self._settings.cache_ttl_s if answer.memories else self._settings.empty_ttl_s
        # Whoever waits for the answer is not to miss it because the cache is slow to take it.
        ends = ask.ends - _HANDOVER_S
        if ask.as_text:
            # The block alone cannot be joined with newer turns when it is old: keep its parts as well.
            parts = encode(answer, as_text=False)
            if not await self._cache.publish(ask.bank, ask.json_key, epochs, parts, ttl_s, ends):
                return False
        return await self._cache.publish(ask.bank, ask.key, epochs, body, ttl_s, ends)

    async def _last_resort(self, ask: _Ask, answer: Answer) -> Reply:
        """What can be said without Hindsight: the last good answer and what was accepted since."""
        ends = max(ask.ends, asyncio.get_running_loop().time()) + _GRACE_S
        found = await self._find(ask.bank, address_of(ask.bank, ask.json_key), ends)
        if found.current is not None and not ask.request.fresh and not ask.as_text:
            return hit(found.current, as_text=False)  # another process was luckier
        if ask.epochs and found.epochs and not _is_unpurged(ask.epochs, found.epochs):
            answer = nothing(answer.reason)
        if found.stale is None:
            body = encode(answer, as_text=ask.as_text)
            return reply(body, "degraded", as_text=ask.as_text, reason=answer.reason)
        if not ask.as_text and not answer.memories:
            return reply(found.stale, "stale", as_text=False, reason=answer.reason)
        joined = self._answerer.joined(ask.question, found.stale, answer)
        body = encode(joined, as_text=ask.as_text)
        return reply(body, "stale", as_text=ask.as_text, reason=answer.reason)


def _name(ask: _Ask) -> tuple[str, bool, Epochs | None]:
    # The epochs are part of the flight's name: who asks after a forget never joins an older flight.
    return ask.key, ask.request.fresh, ask.epochs


def _nothing(ask: _Ask, reason: str) -> _Flown:
    answer = nothing(reason)
    return _Flown(encode(answer, as_text=ask.as_text), answer, ask.ends)


def _is_unpurged(then: Epochs, now: Epochs) -> bool:
    return (then.purge, then.server) == (now.purge, now.server)


@contextlib.asynccontextmanager
async def _watched(gone: Gone | None) -> AsyncIterator["asyncio.Future[object] | None"]:
    """A future that is done when the client has gone away."""
    if gone is None:
        yield None
        return
    left = asyncio.ensure_future(gone())
    try:
        yield left
    finally:
        left.cancel()
