"""`service.client` against the real API: both clients, all they can do, and what goes wrong."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import partial
from typing import Any, TypeVar, cast
from urllib.parse import quote

import pytest
from pydantic import BaseModel
from service import client as public
from service.client import (
    AsyncMemoryClient,
    ExportCut,
    Memory,
    MemoryClient,
    MemoryClientError,
    NotAllowed,
    NotFound,
    RequestRefused,
    StillWaiting,
    Unavailable,
)
from service.client import options as asked
from service.schemas import AddReply, AddRequest, JobReply, MemoryReply, RecallReply, RecallRequest
from service.schemas_review import ForgetRequest, ListRequest, ReflectReply, ReflectRequest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import KEY, Api, Workshop
from tests.support import serve, wait_until

pytestmark = pytest.mark.anyio
FACT = "I live in Lisbon and work as a nurse."
ASKED = "Where do I live?"
T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """The result of work that blocks, or its error."""
    found: list[T] = []
    failed: list[MemoryClientError] = []

    def run() -> None:
        try:
            found.append(work())
        except MemoryClientError as exc:
            failed.append(exc)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    await wait_until(lambda: not thread.is_alive(), "the blocking client is done", timeout_s=30)
    if failed:
        raise failed[0]
    return found[0]


async def settle(workshop: Workshop) -> None:
    while await workshop.work():
        pass


# --- What it can do -------------------------------------------------------------------------------------
async def test_the_asyncio_client_does_it_all(
    api: Api, workshop: Workshop, stand_in: HindsightStandIn
) -> None:
    async with AsyncMemoryClient(api.url, KEY) as memory:
        added = await memory.add("ana", user_message=FACT, assistant_message="Noted.", turn_id="t-1")
        assert (added.status, added.accepted) == ("queued", 2)
        again = await memory.add("ana", user_message=FACT, assistant_message="Noted.", turn_id="t-1")
        assert (again.status, again.job_id) == ("duplicate", added.job_id)
        waiting = asyncio.create_task(memory.wait(added.job_id, timeout_s=20))
        await settle(workshop)
        job = await waiting
        assert (job.status, job.memories_kept) == ("done", 1)
        assert job == await memory.job(added.job_id)

        found = await memory.recall("ana", ASKED, top_k=3, min_score=0, tags_match="any")
        assert "Lisbon" in found.context
        assert (found.count, found.degraded, found.memories[0].pending) == (1, False, False)
        assert not (await memory.recall("bob", ASKED)).memories

        [line] = [line async for line in memory.export("ana")]
        assert "Lisbon" in line.text
        page = await memory.list_memories("ana", limit=5)
        assert [one.id for one in page.memories] == [found.memories[0].id]
        assert page.next_cursor == ""
        better = await memory.correct("ana", page.memories[0].id, "I live in Porto.")
        assert isinstance(better, Memory)
        assert "Porto" in (await memory.reflect("ana", "Where do I live, in Porto?")).text
        assert "Porto" in (await memory.recall("ana", ASKED, min_score=0)).context

        receipt = await memory.forget("ana", all=True)
        assert (receipt.memories, receipt.verified) == (1, True)
        assert not (await memory.recall("ana", ASKED)).memories
        assert [line async for line in memory.export("ana")] == []


async def test_the_blocking_client_does_the_same(api: Api, workshop: Workshop) -> None:
    with MemoryClient(api.url, KEY) as memory:

        def say() -> str:
            turn = [{"role": "user", "content": FACT}]
            return memory.add("ana", messages=turn, metadata={"from": "a test"}, turn_id="t").job_id

        job_id = await in_thread(say)
        waiting = asyncio.create_task(in_thread(lambda: memory.wait(job_id, timeout_s=20)))
        await settle(workshop)
        assert (await waiting).status == "done"
        assert (await in_thread(lambda: memory.job(job_id))).status == "done"
        found = await in_thread(lambda: memory.recall("ana", ASKED, min_score=0))
        assert "Lisbon" in found.context
        [line] = await in_thread(lambda: list(memory.export("ana")))
        assert line.metadata["from"] == "a test"
        [listed] = (await in_thread(lambda: memory.list_memories("ana"))).memories
        await in_thread(lambda: memory.correct("ana", listed.id, "I live in Porto."))
        assert "Porto" in (await in_thread(lambda: memory.reflect("ana", "Do I live in Porto?"))).text
        assert (await in_thread(lambda: memory.forget("ana", all=True))).verified


async def test_a_count_that_the_service_does_not_know_is_none(
    api: Api, workshop: Workshop, stand_in: HindsightStandIn
) -> None:
    stand_in.fail("document", "status", status=503)
    async with AsyncMemoryClient(api.url, KEY) as memory:
        added = await memory.add("ana", user_message=FACT)
        await settle(workshop)
        job = await memory.wait(added.job_id, timeout_s=20)
        assert (job.status, job.memories_kept) == ("done", None)


async def test_a_job_that_takes_too_long_is_told_as_it_stands(api: Api) -> None:
    async with AsyncMemoryClient(api.url, KEY) as memory:
        added = await memory.add("ana", user_message=FACT)
        with pytest.raises(StillWaiting) as caught:
            await memory.wait(added.job_id, timeout_s=0.3)
        assert caught.value.job.status in ("queued", "waiting")


# --- What goes wrong ------------------------------------------------------------------------------------
async def test_refusals_have_their_kinds_and_the_services_words(api: Api) -> None:
    async with AsyncMemoryClient(api.url, "wrong-key-0123456789") as memory:
        with pytest.raises(NotAllowed) as refused:
            await memory.recall("ana", ASKED)
        assert (refused.value.status, refused.value.code) == (401, "key_refused")
        with pytest.raises(NotAllowed):
            _ = [line async for line in memory.export("ana")]
    async with AsyncMemoryClient(api.url, KEY) as memory:
        with pytest.raises(RequestRefused) as wrong:
            await memory.recall("ana", ASKED, top_k=500)
        assert "top_k" in wrong.value.message
        assert wrong.value.request_id
        with pytest.raises(RequestRefused):
            await memory.recall("DEFAULT-USER", ASKED)
        with pytest.raises(NotFound):
            await memory.job("0" * 32)
    with MemoryClient(api.url, "wrong-key-0123456789") as blocking:
        with pytest.raises(NotAllowed):
            await in_thread(lambda: list(blocking.export("ana")))
        with pytest.raises(NotAllowed):
            await in_thread(lambda: blocking.recall("ana", ASKED))


class Flaky:
    """A service that is busy or hangs up a few times before it answers; counts what it was asked."""

    def __init__(self, failures: int, status: int = 503) -> None:
        self.failures = failures
        self.status = status
        self.calls = 0
        names = ("/memory/add", "/memory/forget", "/memory/recall")
        routes = [Route(name, self._answer, methods=["POST"]) for name in names]
        export = Route("/memory/export", self._export)
        self.app = Starlette(routes=[*routes, export])

    async def _answer(self, _: Request) -> Response:
        self.calls += 1
        if self.calls <= self.failures:
            said = {"code": "busy", "message": "Later.", "request_id": "r"}
            return JSONResponse({"error": said}, self.status, headers={"Retry-After": "0"})
        added = {"status": "queued", "job_id": "j", "accepted": 1, "skipped": 0, "redacted": 0}
        return JSONResponse({**added, "searchable_now": True, "request_id": "r", "of a newer version": 1})

    async def _export(self, _: Request) -> Response:
        line = '{"type": "memory", "text": "x", "kind": null, "said_at": "", "tags": [], '
        return Response(line + '"metadata": {}, "conversation": ""}\n', media_type="application/x-ndjson")


async def test_a_busy_service_is_asked_again_where_that_does_no_harm() -> None:
    flaky = Flaky(failures=2)
    async with serve(flaky.app) as url, AsyncMemoryClient(url, KEY) as memory:
        assert (await memory.add("ana", user_message="x", turn_id="t")).job_id == "j"
        assert flaky.calls == 3
        flaky.calls = 0
        with pytest.raises(Unavailable):
            await memory.add("ana", user_message="x")
        assert flaky.calls == 1
        with pytest.raises(Unavailable):
            await memory.forget("ana", all=True)
        assert flaky.calls == 2
        flaky.calls, flaky.failures = 0, 10
        with pytest.raises(Unavailable) as caught:
            await memory.recall("ana", "x")
        assert flaky.calls == 3
        assert caught.value.message == "Later."
        flaky.calls, flaky.failures = 0, 2
        with MemoryClient(url, KEY) as blocking:
            added = await in_thread(lambda: blocking.add("ana", user_message="x", turn_id="t"))
            assert (added.job_id, flaky.calls) == ("j", 3)


async def test_an_export_that_breaks_off_is_an_error_after_what_came() -> None:
    async with serve(Flaky(0).app) as url, AsyncMemoryClient(url, KEY) as memory:
        lines = memory.export("ana")
        assert (await anext(lines)).text == "x"
        with pytest.raises(ExportCut):
            await anext(lines)
        with MemoryClient(url, KEY) as blocking, pytest.raises(ExportCut):
            await in_thread(lambda: list(blocking.export("ana")))


class Listener:
    """A service that refuses everything and keeps the URLs and the header that names a user."""

    def __init__(self) -> None:
        self.urls: list[str] = []
        self.users: list[str] = []
        methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
        self.app = Starlette(routes=[Route("/{path:path}", self._answer, methods=methods)])

    async def _answer(self, http: Request) -> Response:
        self.urls.append(str(http.url))
        self.users.append(http.headers.get("x-memory-user-id", ""))
        return JSONResponse({"error": {"code": "c", "message": "m", "request_id": "r"}}, 400)


# Every method that names a user, and what else it needs.
NAMING: dict[str, tuple[str, ...]] = {
    "recall": ("a question",),
    "add": (),
    "forget": (),
    "list_memories": (),
    "correct": ("memory", "a text"),
    "reflect": ("a question",),
    "export": (),
}


def drained(ask: Callable[[], Iterable[object]]) -> list[object]:
    """All that comes."""
    return list(ask())


async def test_no_user_is_named_in_a_url() -> None:
    user = "anne 用户/é+b%20&x=1"
    listener = Listener()
    naming = {
        name
        for name, member in inspect.getmembers(MemoryClient, inspect.isfunction)
        if "user_id" in inspect.signature(member).parameters
    }
    assert naming == set(NAMING)
    async with serve(listener.app) as url, AsyncMemoryClient(url, KEY) as memory:
        with MemoryClient(url, KEY) as blocking:
            for name, more in NAMING.items():
                asked = getattr(memory, name)(user, *more)
                with pytest.raises(RequestRefused):
                    _ = [line async for line in asked] if name == "export" else await asked
                ask = partial(getattr(blocking, name), user, *more)
                with pytest.raises(RequestRefused):
                    await in_thread(partial(drained, ask) if name == "export" else ask)
    assert len(listener.urls) == 2 * len(NAMING)
    assert not [found for found in listener.urls if "anne" in found or "?" in found]
    assert [named for named in listener.users if named] == [quote(user, safe="")] * 2


@pytest.mark.parametrize("user", ["用户 一", "a:b/../c d", "a+b%20c&x=1", "é"])
async def test_an_export_is_of_the_user_who_was_named(api: Api, user: str) -> None:
    async with AsyncMemoryClient(api.url, KEY) as memory:
        await memory.add(user, user_message=FACT)
        assert [line.text async for line in memory.export(user)] == [f"User: {FACT}"]
    with MemoryClient(api.url, KEY) as blocking:
        assert len(await in_thread(lambda: list(blocking.export(user)))) == 1


# --- It and the service say the same --------------------------------------------------------------------
def own_fields(kind: type[Any]) -> set[str]:
    return {field.name for field in fields(kind)}


@pytest.mark.parametrize(
    ("kind", "reply"),
    [
        (public.Memory, MemoryReply),
        (public.Recall, RecallReply),
        (public.Added, AddReply),
        (public.Job, JobReply),
        (public.Reflection, ReflectReply),
    ],
)
def test_results_have_the_services_fields(kind: type[Any], reply: type[BaseModel]) -> None:
    assert own_fields(kind) == set(reply.model_fields)


@pytest.mark.parametrize(
    ("options", "request_", "more"),
    [
        # `format=text` answers no JSON, which the client would have to read differently.
        (asked.RecallOptions, RecallRequest, {"user_id", "query", "format"}),
        (asked.AddOptions, AddRequest, {"user_id"}),
        (asked.ForgetOptions, ForgetRequest, {"user_id"}),
        (asked.ListOptions, ListRequest, {"user_id"}),
        (asked.ReflectOptions, ReflectRequest, {"user_id", "query"}),
    ],
)
def test_options_are_the_services_fields(
    options: type[Any], request_: type[BaseModel], more: set[str]
) -> None:
    assert set(options.__annotations__) | more == set(request_.model_fields)


def test_both_clients_have_the_same_methods() -> None:
    def methods(kind: type[Any]) -> dict[str, str]:
        return {
            name: str(inspect.signature(cast("Any", member)).replace(return_annotation=""))
            for name, member in vars(kind).items()
            if not name.startswith("_") and name not in ("close", "aclose")
        }

    assert methods(MemoryClient) == methods(AsyncMemoryClient)
