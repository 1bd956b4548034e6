"""Traces: one from Dify's request through the queue to Hindsight, ids that are digests, nothing when off."""

import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from redis.asyncio import Redis
from service.adapters.tracing import path_template
from service.settings import Settings

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import run_api, settings_for
from tests.integration.edge import checked
from tests.processes import WorkerProcess
from tests.support import RedisServer, free_port, wait_until

pytestmark = pytest.mark.anyio

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
WORDS = "marigold hangzhou"


@dataclass
class Collector:
    """An OTLP receiver: what came, and from which service."""

    url: str = ""
    raw: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    spans: list[tuple[str, Span]] = field(default_factory=list)

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.raw += body
        self.headers = dict(request.headers)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            [service] = [
                a.value.string_value for a in resource.resource.attributes if a.key == "service.name"
            ]
            self.spans += [(service, span) for scope in resource.scope_spans for span in scope.spans]
        return web.Response(content_type="application/x-protobuf")

    def named(self, name: str, trace: str = "") -> list[Span]:
        return [span for _, span in self.spans if span.name == name and trace in ("", span.trace_id.hex())]

    async def one(self, name: str, trace: str = "") -> Span:
        await wait_until(lambda: self.named(name, trace), f"the span {name!r} came")
        return self.named(name, trace)[0]


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    collector = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", collector.take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    collector.url = f"http://127.0.0.1:{port}"
    try:
        yield collector
    finally:
        await runner.cleanup()


def notes(span: Span) -> dict[str, str | int]:
    return {
        a.key: a.value.string_value if a.value.HasField("string_value") else a.value.int_value
        for a in span.attributes
    }


@pytest.fixture
async def empty_redis(redis_server: RedisServer) -> RedisServer:
    await redis_server.command("FLUSHALL")
    return redis_server


async def test_one_trace_leads_from_dify_through_the_queue_to_hindsight(
    empty_redis: RedisServer, stand_in: HindsightStandIn, user: str, folder: Path
) -> None:
    async with collecting() as collector:
        traced = {"otlp_endpoint": collector.url, "otlp_headers": "x-team=memory, authorization=Bearer t"}
        settings = settings_for(empty_redis.url, stand_in.url, **traced)
        worker = WorkerProcess(folder, empty_redis.url, stand_in.url, **traced)
        async with run_api(settings) as api:
            sent = {"traceparent": TRACEPARENT}
            add = {"user_id": user, "user_message": WORDS, "conversation_id": "c"}
            first = checked(await api.client.post("/memory/add", data=add, headers=sent), 202)
            await api.client.post("/memory/add", data={**add, "user_message": "second marigold"})
            await worker.start()
            try:
                assert (await api.job(first["job_id"], wait_s=20))["status"] == "done"
                recalled = await api.client.post(
                    "/memory/recall", data={"user_id": user, "query": WORDS}, headers=sent
                )
                checked(recalled, 200)
                request = await collector.one("POST /memory/add", TRACE)
                store = await collector.one("store batch", TRACE)
                retain = await collector.one("POST /v1/default/banks/{}/memories", TRACE)
                recall = await collector.one("POST /memory/recall", TRACE)
                asked = await collector.one("POST /v1/default/banks/{}/memories/recall", TRACE)
            finally:
                await worker.stop()

        assert request.parent_span_id.hex() == recall.parent_span_id.hex() == PARENT
        assert (store.parent_span_id, retain.parent_span_id) == (request.span_id, store.span_id)
        assert asked.parent_span_id == recall.span_id
        other = next(s for s in collector.named("POST /memory/add") if s.trace_id != request.trace_id)
        assert {link.span_id for link in store.links} == {request.span_id, other.span_id}
        assert notes(store)["memory.turns"] == 2
        assert notes(request)["http.response.status_code"] == 202
        assert notes(request)["http.route"] == "/memory/add"
        assert {name for name, span in collector.spans if span.name == "store batch"} == {
            "dify-memory-worker"
        }
        # Hindsight is told as well.
        [came] = stand_in.requests_for("retain")
        assert came.headers["traceparent"] == f"00-{TRACE}-{retain.span_id.hex()}-01"
        [came] = stand_in.requests_for("recall")
        assert came.headers["traceparent"] == f"00-{TRACE}-{asked.span_id.hex()}-01"
        assert collector.headers["x-team"] == "memory"
        # Nothing of what was said, by whom, or of a key.
        for secret in ("marigold", "hangzhou", user, "test-key"):
            assert secret.encode() not in collector.raw
        async with Redis.from_url(empty_redis.url) as redis:
            async for key in redis.scan_iter():
                assert TRACE.encode() not in key


async def test_a_failure_is_marked_by_its_class_and_is_in_the_log_with_its_trace(
    empty_redis: RedisServer, stand_in: HindsightStandIn, user: str, folder: Path
) -> None:
    async with collecting() as collector:
        settings = settings_for(empty_redis.url, stand_in.url, otlp_endpoint=collector.url)
        worker = WorkerProcess(folder, empty_redis.url, stand_in.url, otlp_endpoint=collector.url)
        stand_in.fail("retain", "status", status=500, times=1)
        async with run_api(settings) as api:
            sent = {"traceparent": TRACEPARENT}
            add = {"user_id": user, "user_message": WORDS}
            checked(await api.client.post("/memory/add", data=add, headers=sent), 202)
            await worker.start()
            try:
                failed = await collector.one("POST /v1/default/banks/{}/memories", TRACE)
            finally:
                await worker.stop()
        assert failed.status.code == Status.STATUS_CODE_ERROR
        assert notes(failed)["error.type"] == "500"
        lines = [json.loads(line) for line in worker.log().splitlines() if "store_failed" in line]
        assert lines[0]["trace_id"] == TRACE


async def test_a_collector_that_is_away_costs_nobody_anything(
    empty_redis: RedisServer, stand_in: HindsightStandIn, user: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_for(empty_redis.url, stand_in.url, otlp_endpoint=f"http://127.0.0.1:{free_port()}")
    async with run_api(settings) as api:
        for number in range(150):
            checked(await api.add(user, f"{WORDS} {number}"), 202)
        checked(await api.recall(user, WORDS), 200)
        began = time.monotonic()
    assert time.monotonic() - began < 3 + 3 + 2
    lines = [line for line in caplog.records if line.name.startswith(("opentelemetry", "service.adapters.t"))]
    assert {line.getMessage() for line in lines} <= {"traces_not_taken", "traces_lost"}
    assert [line.getMessage() for line in lines].count("traces_not_taken") == 1


@pytest.mark.parametrize(
    ("given", "ratio", "is_traced"),
    [
        ("", 0.0, False),
        ("", 1.0, True),
        (TRACEPARENT, 1.0, True),
        # Nobody has shown a key yet: who asks to be traced gets no more than the operator wants.
        (TRACEPARENT, 0.0, False),
        (f"00-{'0' * 31}1-{PARENT}-01", 0.000001, False),  # an id that a ratio of ids would always take
        (f"00-{TRACE}-{PARENT}-00", 1.0, False),
        ("00-nonsense", 1.0, True),
        ("x" * 9000, 1.0, True),
    ],
)
async def test_the_ratio_decides_what_is_traced_and_a_caller_may_only_leave_itself_out(
    empty_redis: RedisServer, stand_in: HindsightStandIn, user: str, given: str, ratio: float, is_traced: bool
) -> None:
    async with collecting() as collector:
        settings = settings_for(empty_redis.url, stand_in.url, otlp_endpoint=collector.url, trace_ratio=ratio)
        async with run_api(settings) as api:
            headers = {"traceparent": given} if given else {}
            checked(
                await api.client.post("/memory/add", data={"user_id": user, "messages": ""}, headers=headers),
                200,
            )
            await api.stranger.get("/health/live")
        assert bool(collector.spans) is is_traced
        assert {span.name for _, span in collector.spans} <= {"POST /memory/add"}


async def test_only_an_id_of_our_own_names_a_request_in_its_span(
    empty_redis: RedisServer, stand_in: HindsightStandIn, user: str
) -> None:
    async with collecting() as collector:
        async with run_api(settings_for(empty_redis.url, stand_in.url, otlp_endpoint=collector.url)) as api:
            form = {"user_id": user, "messages": ""}
            given = await api.client.post("/memory/add", data=form, headers={"x-request-id": "marigold-1"})
            ours = await api.client.post("/memory/add", data=form)
        assert given.headers["x-request-id"] == "marigold-1"
        spans = collector.named("POST /memory/add")
        assert [notes(span).get("memory.request_id") for span in spans] == [
            None,
            ours.headers["x-request-id"],
        ]
        assert b"marigold" not in collector.raw


def test_when_off_nothing_of_it_is_loaded() -> None:
    code = (
        "import sys\n"
        "from service.app import create_app\n"
        "from service.settings import Settings\n"
        "import service.worker\n"
        "create_app(Settings(api_key='0123456789abcdef'))\n"
        # FastAPI itself loads the bare API.
        "print(*(n for n in sys.modules if n.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


async def test_fastapi_s_own_telemetry_stays_off_whatever_the_environment_says(
    empty_redis: RedisServer, stand_in: HindsightStandIn, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would send what a request got wrong, and the texts of exceptions."""
    async with collecting() as collector:
        monkeypatch.setenv("FASTAPI_OTEL_AUTO_CONFIGURE", "true")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        async with run_api(settings_for(empty_redis.url, stand_in.url)) as api:
            assert (await api.client.get("/memory/jobs/x", params={"wait_s": "marigold"})).status_code == 422
        assert collector.raw == b""


def test_names_of_spans_hold_no_ids() -> None:
    assert path_template("/v1/default/banks/u-0a1b/documents/d-9f?x=1") == "/v1/default/banks/{}/documents/{}"


@pytest.mark.parametrize("headers", ["x", "a b=c", "=x", "a=b,,c=d"])
def test_headers_that_are_none_are_refused(headers: str) -> None:
    with pytest.raises(ValueError, match="use name=value"):
        Settings.model_validate({"otlp_headers": headers})
