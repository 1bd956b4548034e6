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
import hashlib
import json
import unicodedata
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Literal, NamedTuple

from service import logs
from service.adapters.cache import (
    LEASE_RENEWAL_S,
    NOT_FOUND,
    Address,
    Epochs,
    Found,
    RecallCache,
    address_of,
    token,
)
from service.errors import CacheUnavailable, Unavailable
from service.memory.answer import Answer, Answerer, Question, encode, nothing, question_of
from service.memory.asked import Asked, AskedBefore
from service.memory.flights import Flights
from service.metrics import Metrics
from service.policy.content import clean
from service.policy.ranking import has_word, keep_tail
from service.policy.redaction import RedactionPolicy, redact, redact_all
from service.schemas import RecallRequest
from service.scope import BankId
from service.settings import Settings

# More than `keep_tail` keeps of any query.
_MOST_CHARS = 4000
_LEASE_POLL_S = 0.02
_WORTH_ANOTHER_TRY_S = 0.1
# What the last look at the cache may take when the deadline has come already.
_GRACE_S = 0.05
_HANDOVER_S = 0.01

_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"

Outcome = Literal["hit", "miss", "stale", "degraded", "no_words", "gone"]
Gone = Callable[[], Awaitable[object]]


class Reply(NamedTuple):
    """The bytes to answer with, their media type, and how they came about (for metrics)."""

    body: bytes
    media_type: str
    outcome: Outcome


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
        redaction: RedactionPolicy,
    ) -> None:
        self._answerer = answerer
        self._cache = cache
        self._metrics = metrics
        self._settings = settings
        # A question keeps its sentences, so that something is left to look for.
        self._redaction = redaction.for_questions
        self._flights: Flights[tuple[str, bool, Epochs | None], _Flown] = Flights()
        self._slots = asyncio.Semaphore(settings.recall_concurrency)
        self._asked = AskedBefore()
        # What differs between installations and versions but not between requests.
        setup = (
            version("dify-memory"),
            settings.timezone,
            settings.hindsight_url,
            settings.embedding_model,
            answerer.policy,
        )
        self._setup = hashlib.sha256(repr(setup).encode()).hexdigest()[:16]

    async def recall(self, request: RecallRequest, bank: BankId, gone: Gone | None = None) -> Reply:
        """`recall_read` of a request that was read already."""
        return await self.recall_read(lambda: (request, bank), b"", gone)

    async def recall_read(
        self, read: Callable[[], tuple[RecallRequest, BankId]], name: bytes, gone: Gone | None = None
    ) -> Reply:
        """The reply, at the latest at the request's deadline (plus the time it takes to write it).

        `read` gives the request and its bank, a pure function of what `name` stands for (see `asked`; empty:
        nothing is remembered), and its errors are raised. `gone` returns when the client has gone away;
        nothing is computed for it any more then. Raises `Unavailable` only when the request says
        `on_error=fail` and Hindsight has not answered.
        """
        now = asyncio.get_running_loop().time()
        asked = self._asked.get(name)
        given: tuple[RecallRequest, BankId] | None = None
        if asked is None:
            given = read()
            asked = self.asked_of(*given)
            if asked is None:
                as_text = given[0].format == "text"
                return _reply(encode(nothing(), as_text=as_text), as_text, "no_words", reason="no_words")
            if name:
                self._asked.remember(name, asked)
        logs.bank_id.set(asked.bank)
        # A silent cache must leave time for the rest, even of a short deadline.
        found = await self._find(asked.bank, asked.address, now + asked.deadline_s / 2)
        if found.current is not None and not asked.is_fresh:
            return _hit(found.current, asked.as_text)
        return await self._recall_anew(*(given or read()), asked, found.epochs, now + asked.deadline_s, gone)

    def asked_of(self, request: RecallRequest, bank: BankId) -> Asked | None:
        """The request as the cache knows it; None for a query without a word."""
        query = normalised(request.query)
        # Most queries begin with a word; looking for one costs more than looking at the first character.
        if not (query[:1].isalnum() and query.isascii()) and not has_word(query):
            return None
        wanted_ms = request.timeout_ms or self._settings.recall_deadline_ms
        key = self._key(request, bank, query, request.format)
        return Asked(
            bank,
            key,
            address_of(bank, key),
            request.format == "text",
            request.fresh,
            min(wanted_ms, self._settings.recall_deadline_max_ms) / 1000,
        )

    async def _recall_anew(
        self,
        request: RecallRequest,
        bank: BankId,
        asked: Asked,
        epochs: Epochs | None,
        ends: float,
        gone: Gone | None,
    ) -> Reply:
        # Hindsight may trace what it is asked; and memories hold `[phone]`, never the number.
        query = redact(normalised(request.query), self._redaction).text
        tags, _ = redact_all(map(clean, request.tag_list), self._redaction)
        as_text = asked.as_text
        ask = _Ask(
            request,
            question_of(request, bank, query, tags, self._settings.min_score),
            asked.key,
            self._key(request, bank, normalised(request.query), "json") if as_text else asked.key,
            epochs,
            ends,
        )
        async with _watched(gone) as left:
            flown = await self._fly(ask, left)
            if flown is None and left is not None and left.done():
                return _reply(encode(nothing(), as_text=as_text), as_text, "gone", reason="client_gone")
        if flown is None:
            flown = _nothing(ask, "deadline")
        if flown.answer is None or not flown.answer.degraded:
            return _reply(flown.body, as_text, "miss")
        if flown.answer.has_recalled:
            return _reply(flown.body, as_text, "degraded", reason=flown.answer.reason)
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
        async with self._lease(ask) as published:
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
            return _hit(found.current, as_text=False)  # another process was luckier
        if ask.epochs and found.epochs and not _is_unpurged(ask.epochs, found.epochs):
            answer = nothing(answer.reason)
        if found.stale is None:
            return _reply(encode(answer, as_text=ask.as_text), ask.as_text, "degraded", reason=answer.reason)
        if not ask.as_text and not answer.memories:
            return _reply(found.stale, as_text=False, outcome="stale", reason=answer.reason)
        joined = self._answerer.joined(ask.question, found.stale, answer)
        return _reply(encode(joined, as_text=ask.as_text), ask.as_text, "stale", reason=answer.reason)

    @contextlib.asynccontextmanager
    async def _lease(self, ask: _Ask) -> AsyncIterator[bytes | None]:
        """Hold the question's lease; or wait for who has it, and give what they have published.

        A lease lives a second and is prolonged while its holder works, so that a holder that dies
        frees it by itself. Without a cache there is nothing to hold, and who wants a fresh answer
        waits for nobody.
        """
        if not ask.is_joinable:
            yield None
            return
        holder = token()
        keeper: asyncio.Task[None] | None = None
        try:
            published, is_ours = await self._await_lease(ask, holder)
            if is_ours and published is None:
                keeper = asyncio.create_task(self._keep(ask, holder))
            yield published
        finally:
            if keeper is not None:
                keeper.cancel()
            self._cache.release_lease(ask.bank, ask.key, holder)

    async def _await_lease(self, ask: _Ask, holder: bytes) -> tuple[bytes | None, bool]:
        """What another process has published, and whether the lease is ours."""
        loop = asyncio.get_running_loop()
        has_waited = False
        try:
            while loop.time() < ask.ends:
                is_ours = await self._cache.lease(ask.bank, ask.key, holder)
                if has_waited:
                    found = await self._cache.find(ask.bank, ask.key, ask.ends)
                    if found.current is not None:
                        return found.current, is_ours
                if is_ours:
                    return None, True
                has_waited = True
                await asyncio.sleep(_LEASE_POLL_S)
        except CacheUnavailable:
            self._metrics.cache_failures.inc()
        return None, False

    async def _keep(self, ask: _Ask, holder: bytes) -> None:
        while True:
            await asyncio.sleep(LEASE_RENEWAL_S)
            self._cache.renew_lease(ask.bank, ask.key, holder)

    def _key(self, request: RecallRequest, bank: BankId, query: str, form: str) -> str:
        """Digest of everything that changes the bytes of the answer, whose memory it is first of all.

        The bank is also in the names of Redis' keys, but flights are named by this digest alone.
        """
        # Plain numbers and strings only, so that equal renderings mean equal values.
        parts = (
            self._setup,
            bank,
            query,
            request.top_k,
            request.max_chars,
            request.max_total_chars,
            sorted(request.kind_list) if request.kinds else "",
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


def normalised(query: str) -> str:
    """The query as it is asked and cached: NFKC, single spaces, its tail when it is too long."""
    # Only the tail counts, so that a pasted book is not normalised whole.
    tail = query[-_MOST_CHARS:]
    if not tail.isascii():
        tail = unicodedata.normalize("NFKC", tail)
    if not tail.isprintable():  # what `clean` removes is not, nor are a byte order mark and a line end
        tail = clean(tail)
    return keep_tail(" ".join(tail.split()))


# The stored bytes stay as they are; what differs from call to call is put behind them.
_HIT = b', "cached": true, "stale": false, "degraded": false, "reason": "", "request_id": "%b"}'


def _hit(body: bytes, as_text: bool) -> Reply:
    if as_text:
        return Reply(body, _TEXT, "hit")
    return Reply(body[:-1] + _HIT % logs.request_id.get().encode(), _JSON, "hit")


def _reply(body: bytes, as_text: bool, outcome: Outcome, *, reason: str = "") -> Reply:
    if as_text:
        return Reply(body, _TEXT, outcome)
    flags = {
        "cached": outcome == "stale",
        "stale": outcome == "stale",
        "degraded": outcome in ("stale", "degraded"),
        "reason": reason,
        "request_id": logs.request_id.get(),
    }
    return Reply(body[:-1] + b", " + json.dumps(flags, ensure_ascii=False)[1:].encode(), _JSON, outcome)
