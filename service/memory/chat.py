"""A chat with memory: recall before the model, add after it, and the model's answer whatever memory does.

What a turn is, is decided when it is over: a model that asks for a tool has not answered yet. Streams that
end early, because the client left or the model failed, are stored as far as they came, if so set.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Protocol, Self

from service.adapters.gateway import Gateway, Upstream
from service.adapters.gateway_direct import DirectUpstream
from service.errors import InvalidRequest, ServiceError
from service.memory.chat_report import Report
from service.memory.recall import Recaller
from service.memory.recall_reader import normalised
from service.memory.reflect import Reflected, Reflector
from service.memory.retain import Accepted
from service.metrics import Metrics
from service.policy.block import BlockMemory, language_of, render_block
from service.policy.chat_messages import (
    AnswerSoFar,
    Chat,
    is_check,
    is_forced,
    mappings,
    query_of,
    turn_of,
    with_block,
)
from service.policy.chat_options import MemoryOptions
from service.policy.chat_tokens import ChatTokens, tokens_of
from service.policy.excerpt import shorten
from service.policy.gateway_file import MemoryRules
from service.policy.kinds import PARTIAL
from service.schemas import AddRequest
from service.scope import BankId
from service.settings import Settings

_log = logging.getLogger(__name__)

# How long the end of an answer may wait for its turn to be accepted; it is accepted all the same.
_ADD_PATIENCE_S: Final = 1.0
# How long streams that are cut off, and what is kept of them, may hold up the end of the process.
_END_PATIENCE_S: Final = 5.0

_TOO_LONG: Final = (
    "too_long: The answer in the form of response_schema is longer than max_tokens or max_chars."
)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: `body` as it came, without `memory`; `bank` None where there is no user to remember.

    `reason` says why there is none.
    """

    body: Mapping[str, Any]
    messages: Chat
    model: str
    options: MemoryOptions
    tenant: str
    bank: BankId | None
    reason: str = ""

    @property
    def name(self) -> str:
        """The model as the client calls it."""
        return str(self.body["model"])


class _PartialTurn(AddRequest):
    """A turn whose answer was cut off, which its metadata say."""

    @property
    def metadata_map(self) -> dict[str, str]:
        """As given, with a mark of ours, which takes no place of the caller's."""
        return {**super().metadata_map, PARTIAL: "true"}


class Accept(Protocol):
    """`retain.accept` with all that is the same for every turn."""

    async def __call__(self, request: AddRequest, /, *, tenant: str, bank: BankId) -> Accepted:
        """Have a turn accepted."""


Chunks = list[dict[str, Any]]


class ChatStream:
    """Chunks of an answer, as many at a time as have come together; iterate once, close always.

    Closing hangs up on the model. `closed` is done once it is closed.
    """

    def __init__(self, chunks: AsyncGenerator[Chunks, None], give_up: Callable[[], object]) -> None:
        self._chunks = chunks
        self._give_up = give_up
        self._has_begun = False
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __aiter__(self) -> AsyncGenerator[Chunks, None]:
        self._has_begun = True
        return self._chunks

    async def aclose(self) -> None:
        """Can be repeated."""
        try:
            await self._chunks.aclose()
            if not self._has_begun:  # then the generator never knew that there was something to give up
                self._has_begun = True
                self._give_up()
        finally:
            if not self.closed.done():
                self.closed.set_result(None)


class Chats:
    """The use case; one per process, opened as an async context manager."""

    def __init__(
        self,
        gateway: Gateway,
        rules: MemoryRules,
        recaller: Recaller,
        reflector: Reflector,
        accept: Accept,
        settings: Settings,
        metrics: Metrics,
    ) -> None:
        self.gateway = gateway
        self.rules = rules
        self._recaller = recaller
        self._reflector = reflector
        self._accepted = accept
        self._settings = settings
        self._metrics = metrics
        self._adding: set[asyncio.Task[None]] = set()
        self._open: set[asyncio.Future[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A server that leaves cuts off its streams and comes here in the same moment: before they have heard
        # of it, and before what they leave behind is being accepted.
        ends = asyncio.get_running_loop().time() + _END_PATIENCE_S
        while waited := {one for one in (*self._open, *self._adding) if not one.done()}:
            done, _ = await asyncio.wait(waited, timeout=ends - asyncio.get_running_loop().time())
            if not done:
                _log.warning("chats_cut_off", extra={"count": len(waited)})
                return

    async def complete(self, ask: Ask) -> tuple[dict[str, Any], Report]:
        """The whole answer. Raises what the gateway raises, `InvalidRequest` for options that are wrong."""
        messages, report = await self._prepared(ask)
        answer = await self.gateway.complete(ask.model, messages, ask.body)
        self._note_tokens(ask, tokens_of(answer.get("usage")))
        answer["model"] = ask.name
        choices = answer.get("choices") or [{}]
        await self._add(ask, report, choices[0].get("message") or {}, choices[0].get("finish_reason"))
        if ask.options.debug:
            answer["memory"] = report.as_object()
        return answer, report

    async def stream(self, ask: Ask) -> tuple[ChatStream, Report]:
        """The answer's chunks, once the model has begun, and what memory has done until then.

        Raises as `complete` does; so do the chunks. Close them in any case: that hangs up on the model.
        """
        messages, report = await self._prepared(ask)
        upstream = await self.gateway.stream(ask.model, messages, ask.body)
        answer = AnswerSoFar()

        def give_up() -> object:
            return self._later(self._give_up(ask, report, upstream, answer))

        stream = ChatStream(self._chunks(ask, report, upstream, answer, give_up), give_up)
        self._open.add(stream.closed)
        stream.closed.add_done_callback(self._open.discard)
        return stream, report

    async def _chunks(
        self,
        ask: Ask,
        report: Report,
        upstream: Upstream | DirectUpstream,
        answer: AnswerSoFar,
        give_up: Callable[[], object],
    ) -> AsyncGenerator[Chunks, None]:
        last: dict[str, Any] = {}
        tokens: ChatTokens | None = None
        is_whole = False
        try:
            async for chunks in upstream.chunks():
                for chunk in chunks:
                    answer.take(chunk)
                    # Of all so far; most models tell at the end alone, and only who asks for it.
                    tokens = tokens_of(chunk.get("usage")) or tokens
                    chunk["model"] = ask.name
                    for choice in mappings(chunk.get("choices")):
                        choice.setdefault("finish_reason", None)
                    last = chunk
                yield chunks
            is_whole = True
        finally:
            self._note_tokens(ask, tokens)
            if not is_whole:
                # Nobody waits for this; and who is being cancelled had better not wait either.
                give_up()
        try:
            await self._add(ask, report, answer.message, answer.finish_reason)
        finally:
            await upstream.close()
        if ask.options.debug:
            common = {name: value for name, value in last.items() if name not in ("choices", "usage")}
            yield [{**common, "choices": [], "memory": report.as_object()}]

    async def _give_up(
        self, ask: Ask, report: Report, upstream: Upstream | DirectUpstream, answer: AnswerSoFar
    ) -> None:
        await upstream.close()
        is_partial = answer.finish_reason is None
        if is_partial and not self._settings.gateway_store_partial:
            report.stored = "off"
        elif not self._is_asking(ask, answer.message, answer.finish_reason):
            await self._accept(ask, report, answer.message, is_partial=is_partial)

    def _note_tokens(self, ask: Ask, tokens: ChatTokens | None) -> None:
        """Count what the model's answer has cost, whatever memory does for the chat."""
        if tokens is not None:
            self._metrics.llm_tokens.labels("chat_sent").inc(tokens.sent)
            self._metrics.llm_tokens.labels("chat_said").inc(tokens.said)
            self._metrics.note_usage("chat_tokens", ask.tenant, sum(tokens))

    async def _prepared(self, ask: Ask) -> tuple[Chat, Report]:
        """The messages as the model gets them."""
        options = ask.options
        report = Report("on", mode=options.mode or "recall")
        if is_check(ask.messages):
            report.status = "check"
        elif options.excludes(ask.name) or options.excludes(ask.model):
            report.status = "excluded"
        elif ask.bank is None:
            report.status, report.reason = "no_user", ask.reason
        elif options.inject is False:
            report.status = "off"
        elif query := (options.query or query_of(ask.messages)):
            block = await self._block(ask, ask.bank, query, report)
            return with_block(ask.messages, block, options.injection_mode or "system"), report
        return ask.messages, report

    async def _block(self, ask: Ask, bank: BankId, query: str, report: Report) -> str:
        """The memory block, empty if there is nothing to show; memory trouble is in the report."""
        report.query = query
        recall = ask.options.recall_request(query, self._settings.recall_deadline_ms)
        reflect = ask.options.reflect_request(query)
        try:
            if report.mode == "reflect":
                reflected = await self._reflector.reflect(reflect, bank, tenant=ask.tenant)
                report.reason, report.ids = reflected.reason, list(reflected.source_ids)
                if reflected.degraded:
                    report.status = "degraded"
                text = self._thought(ask, reflected, query, report)
                if not text:
                    return ""
                report.count = 1
                language = language_of(normalised(query))
                return render_block([BlockMemory(text, None, pending=False)], language, self._settings.zone)
            reply = await self._recaller.recall(recall, bank, tenant=ask.tenant)
        except ServiceError as exc:
            # The chat goes on: this is what memory must never break.
            _log.warning("chat_without_memory", extra={"code": exc.code})
            report.status, report.reason = "degraded", exc.code
            return ""
        self._metrics.note_recall(reply.outcome, ask.tenant)
        recalled = json.loads(reply.body)
        report.ids = [memory["id"] for memory in recalled["memories"]]
        report.count, report.reason = recalled["count"], recalled["reason"]
        if recalled["degraded"]:
            report.status = "degraded"
        return str(recalled["context"])

    @staticmethod
    def _thought(ask: Ask, reflected: Reflected, query: str, report: Report) -> str:
        """The answer of reflect as it is shown, within the limits of the request; empty for none."""
        most = ask.options.most_chars(normalised(query))
        if reflected.structured:
            text = json.dumps(reflected.structured, ensure_ascii=False)
            if most is None or len(text) <= most:
                return text
            # A part of an object is none.
            report.status, report.reason = "degraded", _TOO_LONG
            return ""
        text = reflected.text.strip()
        return text if most is None else shorten(text, most)

    async def _add(
        self, ask: Ask, report: Report, answer: Mapping[str, Any], finish_reason: str | None
    ) -> None:
        """Have the turn accepted, if it is over; an answer waits for that a moment and no longer."""
        if self._is_asking(ask, answer, finish_reason):
            report.stored = "later"
            return
        adding = self._later(self._accept(ask, report, answer))
        await asyncio.wait({adding}, timeout=_ADD_PATIENCE_S)

    @staticmethod
    def _is_asking(ask: Ask, answer: Mapping[str, Any], finish_reason: str | None) -> bool:
        """Whether the model waits for what a tool says."""
        has_calls = bool(answer.get("tool_calls") or answer.get("function_call"))
        is_forced_here = is_forced(ask.body.get("tool_choice")) or is_forced(ask.body.get("function_call"))
        return (has_calls or finish_reason in ("tool_calls", "function_call")) and not is_forced_here

    def _later(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._adding.add(task)
        task.add_done_callback(self._adding.discard)
        return task

    async def _accept(
        self, ask: Ask, report: Report, answer: Mapping[str, Any], *, is_partial: bool = False
    ) -> None:
        options = ask.options
        if ask.bank is None or report.status in ("check", "excluded") or options.store is False:
            report.stored = "off"
            return
        try:
            request = self._request(ask, answer, is_partial=is_partial)
            accepted = await self._accepted(request, tenant=ask.tenant, bank=ask.bank)
        except ServiceError as exc:
            _log.warning("chat_not_stored", extra={"code": exc.code})
            self._metrics.turns.labels("refused").inc()
            report.stored = exc.code
            return
        self._metrics.note_turn(accepted.status, ask.tenant)
        report.stored, report.job_id = accepted.status, accepted.job_id

    def _request(self, ask: Ask, answer: Mapping[str, Any], *, is_partial: bool) -> AddRequest:
        options = ask.options
        kind = _PartialTurn if is_partial else AddRequest
        return kind.read(
            {
                "user_id": "",
                "messages": turn_of(ask.messages, answer),
                "conversation_id": options.conversation_id or "",
                "turn_id": options.turn_id or "",
                "tags": options.tags_of_turn,
                "metadata": options.metadata,
            }
        )


def checked(options: MemoryOptions) -> MemoryOptions:
    """The options, if they can be used; raises `InvalidRequest` before the model is asked anything."""
    options.recall_request("x", 1000)
    options.reflect_request("x")
    probe: dict[str, object] = {"user_id": "", "tags": options.tags_of_turn, "metadata": options.metadata}
    request = AddRequest.read(probe)
    _ = request.tag_list, request.metadata_map
    return options


def body_checked(body: Mapping[str, Any]) -> None:
    """Raises `InvalidRequest` for numbers that no provider has to see."""
    count = body.get("n")
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 128):
        raise InvalidRequest("The field n must be a whole number from 1 to 128.")
