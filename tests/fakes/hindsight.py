"""A stand-in that speaks the part of Hindsight 1.1's HTTP that a client uses, with faults on order.

In a test: `async with HindsightStandIn() as stand_in:`, then its `url`, `banks`, `requests` and `fail()`.
As a process that can be killed: `HindsightProcess`, which runs `python -m tests.fakes.hindsight`.

Operations by name, for faults and records: bank, bank_config, bank_delete, banks, retain, recall, reflect,
operation, operations, operation_cancel, documents, document, document_delete, memories, memory,
memory_update, memories_clear, stats, health, version; `*` is any of them.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import json
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import httpx
from aiohttp import web

from tests.fakes.faults import Fault, FaultKind, Faults
from tests.fakes.hindsight_routes import ROUTES, reply
from tests.fakes.hindsight_store import Bank, Fact, Json, Memory, Operation, Refused, Store, load_bank
from tests.support import ServerProcess, free_port

Outcome = Literal["completed", "failed", "cancelled", "empty"]
_GARBAGE = b"<html><body>upstream connect error</body></html>"
_log = logging.getLogger(__name__)


@dataclass
class Recorded:
    """One request as it came in; `status` stays None if no answer went out."""

    operation: str
    method: str
    path: str
    bank_id: str
    query: str
    body: Any
    headers: dict[str, str]
    at: float
    status: int | None = None


class HindsightStandIn:
    """Hindsight on a loopback port of this event loop, with its state open to the test.

    `port` 0 takes a free one. With `data_file` every acknowledged change is in that file before its reply
    and is there again for the next stand-in on the same file. Asynchronous retains are worked off one by
    one, each after `operation_delay_s` seconds.
    """

    def __init__(
        self, *, port: int = 0, data_file: Path | None = None, operation_delay_s: float = 0.01
    ) -> None:
        self.store = Store()
        self.faults = Faults()
        self.requests: list[Recorded] = []
        self.operation_delay_s = operation_delay_s
        # A real worker that has begun goes on to its next checkpoint: it stores although its operation was
        # cancelled or its bank deleted, and makes the bank anew then.
        self.is_stubborn = False
        self._port = port
        self._data_file = data_file
        self._outcomes: deque[tuple[Outcome, str | None]] = deque()
        self._held_as: Literal["pending", "processing"] | None = None
        self._work = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self._worker: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """The base address for a client."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def banks(self) -> dict[str, Bank]:
        """The banks by id."""
        return self.store.banks

    @property
    def operations(self) -> dict[str, Operation]:
        """Submitted retains and their parts, by id."""
        return self.store.operations

    def requests_for(self, operation: str) -> list[Recorded]:
        """The requests of one operation, oldest first."""
        return [request for request in self.requests if request.operation == operation]

    def fail(
        self,
        operation: str,
        kind: FaultKind,
        *,
        times: int | None = None,
        seconds: float = 0.0,
        status: int = 503,
        retry_after: str | None = None,
        body: Any = None,
    ) -> None:
        """Plan a fault for the next `times` requests of an operation (None: until healed)."""
        fault = Fault(kind, times, seconds, status, retry_after)
        self.faults.plan(operation, fault if body is None else dataclasses.replace(fault, body=body))

    def heal(self, operation: str | None = None) -> None:
        """Forget planned faults, of one operation or all, and let go of requests that hang."""
        self.faults.heal(operation)

    def hold_operations(self, status: Literal["pending", "processing"] = "processing") -> None:
        """Leave submitted retains in this state until `release_operations`."""
        self._held_as = status
        self._work.set()

    def release_operations(self) -> None:
        """Go on with held operations."""
        self._held_as = None
        self._work.set()

    def end_operations(
        self, outcome: Outcome, *, times: int = 1, error_message: str | None = "the LLM gave no answer"
    ) -> None:
        """Plan how the next submitted retains end; `empty` completes with the text kept but no memory."""
        self._outcomes.extend([(outcome, error_message)] * times)

    def extract_with(self, facts: dict[str, Sequence[Fact]]) -> None:
        """Let an item whose content contains a key become these facts; any other stays as it is said."""
        verbatim = self.store.extract

        def extract(item: Json) -> Sequence[Fact]:
            found = [list(made) for part, made in facts.items() if part in item["content"]]
            return found[0] if found else verbatim(item)

        self.store.extract = extract

    def add_memory(self, bank_id: str, text: str, **fields: Any) -> Memory:
        """Put a memory into a bank by hand; `fields` are those of `Memory`."""
        return self.store.add_memory(bank_id, text, **fields)

    async def __aenter__(self) -> Self:
        if self._data_file is not None and self._data_file.exists():
            self.store.load(json.loads(self._data_file.read_text(encoding="utf-8")))
        app = web.Application(middlewares=[self._middleware], client_max_size=64 * 1024 * 1024)
        for method, path, name, handler in ROUTES:
            app.router.add_route(method, path, self._bound(handler), name=name)
        app.router.add_route("GET", "/control/state", self._control_state)
        app.router.add_route("POST", "/control/{verb}", self._control)
        # A client that goes away stops the work, as it does there.
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self._worker = asyncio.create_task(self._work_off())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.faults.heal()
        if self._worker is not None:
            self._worker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._worker
        if self._runner is not None:
            await self._runner.cleanup()

    def _bound(self, handler: Any) -> Any:
        async def bound(request: web.Request) -> web.StreamResponse:
            answer: web.StreamResponse = await handler(self.store, request)
            return answer

        return bound

    def _save(self) -> None:
        if self._data_file is not None:
            fresh = self._data_file.with_suffix(".new")
            fresh.write_text(json.dumps(self.store.dump()), encoding="utf-8")
            fresh.replace(self._data_file)

    async def _answer(self, request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            answer: web.StreamResponse = await handler(request)
        except Refused as refused:
            answer = reply({"detail": refused.detail}, refused.status)
        except web.HTTPException as exc:
            answer = reply({"detail": exc.reason}, exc.status)
        if request.method != "GET":
            self._save()
            self._work.set()
        return answer

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if request.path.startswith("/control/"):
            answer: web.StreamResponse = await handler(request)
            return answer
        recorded = await self._record(request)
        fault = self.faults.take(recorded.operation)
        answer = await self._with_fault(request, handler, fault)
        is_answered = request.transport is not None and not request.transport.is_closing()
        recorded.status = answer.status if is_answered else None
        return answer

    async def _record(self, request: web.Request) -> Recorded:
        raw = await request.read()
        try:
            body = json.loads(raw) if raw else None
        except ValueError:
            body = raw.decode(errors="replace")
        name = request.match_info.route.name or "unknown"
        recorded = Recorded(
            name.rstrip("_"),
            request.method,
            request.path,
            request.match_info.get("bank", ""),
            request.query_string,
            body,
            {key.lower(): value for key, value in request.headers.items()},
            time.monotonic(),
        )
        self.requests.append(recorded)
        return recorded

    async def _with_fault(
        self, request: web.Request, handler: Any, fault: Fault | None
    ) -> web.StreamResponse:
        if fault is None:
            return await self._answer(request, handler)
        if fault.kind == "hang":
            return await self._hang(request)
        if fault.kind == "close":
            return self._drop(request)
        if fault.kind == "status":
            headers = {"Retry-After": fault.retry_after} if fault.retry_after is not None else {}
            return reply({"detail": "planned fault"}, fault.status, headers)
        if fault.kind == "garbage":
            return web.Response(body=_GARBAGE, content_type="application/json")
        if fault.kind == "wrong_shape":
            return reply(fault.body)
        if fault.kind == "slow":
            await asyncio.sleep(fault.seconds)
            return await self._answer(request, handler)
        answer = await self._answer(request, handler)
        if fault.kind == "commit_then_close":
            return self._drop(request)
        if fault.kind == "commit_then_hang":
            return await self._hang(request)
        return await self._in_pieces(request, answer, fault)

    async def _hang(self, request: web.Request) -> web.StreamResponse:
        await self.faults.healed.wait()
        return self._drop(request)

    def _drop(self, request: web.Request) -> web.StreamResponse:
        if request.transport is not None:
            request.transport.abort()
        return web.Response()

    async def _in_pieces(
        self, request: web.Request, answer: web.StreamResponse, fault: Fault
    ) -> web.StreamResponse:
        assert isinstance(answer, web.Response)
        assert isinstance(answer.body, bytes)
        stream = web.StreamResponse(status=answer.status, headers={"Content-Type": "application/json"})
        stream.content_length = len(answer.body)
        await stream.prepare(request)
        if fault.kind == "cut":
            await stream.write(answer.body[: len(answer.body) // 2])
            self._drop(request)
            return stream
        for byte in answer.body:
            await stream.write(bytes([byte]))
            await asyncio.sleep(fault.seconds)
        await stream.write_eof()
        return stream

    async def _work_off(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            for child in [op for op in self.operations.values() if op.kind == "retain"]:
                await self._run(child)

    async def _run(self, child: Operation) -> None:
        if child.status != "pending" or child.bank_id not in self.banks or self._held_as == "pending":
            return
        self.store.settle(child, "processing")
        await asyncio.sleep(self.operation_delay_s)
        while self._held_as is not None:
            self._work.clear()
            await self._work.wait()
        if self.is_stubborn and (child.status == "cancelled" or child.id not in self.operations):
            self.store.retain(child.bank_id, child.items)
        # It may have been cancelled, or its bank deleted, while it was waiting.
        if child.status != "processing" or child.id not in self.operations:
            return
        outcome, message = self._outcomes.popleft() if self._outcomes else ("completed", None)
        if outcome in ("completed", "empty"):
            child.memories = self.store.retain(child.bank_id, child.items, extracts=outcome == "completed")
            self.store.settle(child, "completed")
        else:
            self.store.settle(child, outcome, message if outcome == "failed" else None)
        self._work.set()
        self._save()

    async def _control_state(self, _request: web.Request) -> web.StreamResponse:
        requests = [dataclasses.asdict(recorded) for recorded in self.requests]
        return reply({**self.store.dump(), "requests": requests})

    async def _control(self, request: web.Request) -> web.StreamResponse:
        given = await request.json() if request.can_read_body else {}
        verbs: dict[str, Callable[..., None]] = {
            "fail": self.fail,
            "heal": self.heal,
            "hold_operations": self.hold_operations,
            "release_operations": self.release_operations,
            "end_operations": self.end_operations,
        }
        verb = request.match_info["verb"]
        if verb not in verbs:
            return reply({"detail": f"There is no verb {verb!r}."}, 404)
        verbs[verb](**given)
        return reply({"done": verb})


class HindsightProcess(ServerProcess):
    """The stand-in as a process on a fixed port, with its state in `data_dir`: made to be killed."""

    def __init__(self, data_dir: Path, *, port: int | None = None) -> None:
        data_dir.mkdir(parents=True, exist_ok=True)
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        argv = [sys.executable, "-m", "tests.fakes.hindsight", "--port", str(self.port)]
        argv += ["--data", str(data_dir / "hindsight.json")]
        root = Path(__file__).parents[2]
        super().__init__(argv, log_path=data_dir / "hindsight.log", is_ready=self._is_healthy, cwd=root)

    async def _is_healthy(self) -> bool:
        async with httpx.AsyncClient(trust_env=False) as client:
            return (await client.get(f"{self.url}/health")).is_success

    async def control(self, verb: str, **arguments: Any) -> None:
        """Call `fail`, `heal`, `hold_operations`, `release_operations` or `end_operations` in the process."""
        async with httpx.AsyncClient(trust_env=False) as client:
            (await client.post(f"{self.url}/control/{verb}", json=arguments)).raise_for_status()

    async def banks(self) -> dict[str, Bank]:
        """A copy of its banks."""
        return {key: load_bank(value) for key, value in (await self._state())["banks"].items()}

    async def requests(self) -> list[Recorded]:
        """The requests it has had since its last start."""
        return [Recorded(**value) for value in (await self._state())["requests"]]

    async def _state(self) -> Json:
        async with httpx.AsyncClient(trust_env=False) as client:
            state: Json = (await client.get(f"{self.url}/control/state")).json()
            return state


async def _serve(port: int, data_file: Path | None) -> None:
    async with HindsightStandIn(port=port, data_file=data_file) as stand_in:
        _log.info("The Hindsight stand-in listens on %s", stand_in.url)
        await asyncio.Event().wait()


def main() -> None:
    """Run the stand-in until it is killed."""
    parser = argparse.ArgumentParser(description="A stand-in for Hindsight, for tests.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--data", type=Path, help="where the state lies; without it nothing outlives it")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    asyncio.run(_serve(arguments.port, arguments.data))


if __name__ == "__main__":
    main()
