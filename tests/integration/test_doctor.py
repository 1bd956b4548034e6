"""The doctor at the bedside: a healthy service, and every way one can be ill, each told in one line."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from click.testing import CliRunner, Result
from service import keyspace
from service.cli.doctor import doctor
from service.cli.doctor_texts import TEXTS

from tests.fakes.dify_service import KEY, Canned, ServiceDouble
from tests.integration.conftest import Api, Workshop
from tests.support import RedisServer, free_port, serve

pytestmark = pytest.mark.anyio


@dataclass
class Ward:
    """One server for all tests of the module; who lies in it changes from test to test."""

    patient: ServiceDouble

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        """Handle one request."""
        await self.patient(scope, receive, send)


@pytest.fixture(scope="module")
async def ward(anyio_backend: str) -> AsyncIterator[tuple[Ward, str]]:
    ward = Ward(ServiceDouble())
    async with serve(ward) as address:
        yield ward, address


@pytest.fixture
def double(ward: tuple[Ward, str]) -> ServiceDouble:
    """A healthy double, to be made ill."""
    ward[0].patient = ServiceDouble()
    return ward[0].patient


@pytest.fixture
def url(ward: tuple[Ward, str], double: ServiceDouble) -> str:
    """Where the double is."""
    return ward[1]


async def _run(*arguments: str, env: Mapping[str, str | None] | None = None) -> Result:
    """The command, in a thread: it brings an event loop of its own."""
    runner = CliRunner()
    environment: dict[str, str | None] = {
        "MEMORY_API_KEY": None,
        "LANG": "C.UTF-8",
        "LC_ALL": None,
        "LC_MESSAGES": None,
        **(env or {}),
    }
    return await anyio.to_thread.run_sync(lambda: runner.invoke(doctor, list(arguments), env=environment))


async def _examine(url: str, *arguments: str, key: str = KEY) -> dict[str, Any]:
    """The report as JSON; the exit code has to agree with it."""
    result = await _run("--url", url, "--key", key, "--json", "--timeout", "2", *arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    report: dict[str, Any] = json.loads(result.stdout)
    assert result.exit_code == (0 if report["ok"] else 1), result.output
    for finding in report["findings"]:
        assert finding["message"]
        assert "{" not in finding["message"]
    return report


def _codes(report: dict[str, Any], status: str) -> list[str]:
    return [finding["code"] for finding in report["findings"] if finding["status"] == status]


def _http_date(*, hours: int) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(hours=hours), usegmt=True)


# --- A healthy service ---


@pytest.fixture
async def working(api: Api, workshop: Workshop, redis_server: RedisServer) -> AsyncIterator[Api]:
    """An API with a worker beside it."""
    await redis_server.command("SET", keyspace.ARQ_HEALTH, "ok")

    async def work() -> None:
        while True:
            await workshop.work()
            await asyncio.sleep(0.05)

    task = asyncio.create_task(work())
    yield api
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_a_healthy_service_is_well(working: Api) -> None:
    report = await _examine(working.url, "--dify-url", "https://memory.example.com")
    assert _codes(report, "fail") == []
    assert {"reached", "document_ok", "knowledge_ok", "storage_ok", "hindsight_ok", "worker_ok"} <= set(
        _codes(report, "ok")
    )
    assert "round_trip_ok" in _codes(report, "ok")
    assert "forget_ok" in _codes(report, "ok")


async def test_the_address_in_the_document_is_looked_at_with_dify_s_eyes(working: Api) -> None:
    report = await _examine(working.url, "--quick")
    assert "network_localhost" in _codes(report, "warn"), "works from here, and not from Dify"
    assert report["ok"]


async def test_quick_changes_nothing(working: Api, redis_server: RedisServer) -> None:
    await working.client.get("/health/ready")  # makes a key of its own
    keys = await redis_server.command("DBSIZE")
    assert (await _examine(working.url, "--quick"))["ok"]
    assert await redis_server.command("DBSIZE") == keys


async def test_a_wrong_key_at_the_real_service(api: Api) -> None:
    report = await _examine(api.url, key="wrong-key-0123456789")
    assert "key_refused" in _codes(report, "fail")


async def test_a_stopped_worker_at_the_real_service(api: Api) -> None:
    report = await _examine(api.url)
    assert _codes(report, "fail") == ["worker_dead"]
    assert "not_asked" in _codes(report, "skipped")


# --- Nobody there ---


async def test_a_dead_port_is_one_red_line() -> None:
    report = await _examine(f"http://127.0.0.1:{free_port()}")
    assert _codes(report, "fail") == ["refused"]
    assert len(report["findings"]) == 2, "and that nothing else was asked"


async def test_an_unknown_name() -> None:
    assert _codes(await _examine("http://memory.invalid:8000"), "fail") == ["dns"]


@pytest.mark.parametrize("fault", ["hang", "trickle"])
async def test_a_hung_server(double: ServiceDouble, url: str, fault: Any) -> None:
    double.canned["*"] = Canned(fault=fault)
    report = await _examine(url, "--timeout", "0.3")
    assert _codes(report, "fail") == ["timeout"]
    assert "0.3 s" in report["findings"][0]["message"]


async def test_a_server_that_drops_connections() -> None:
    async def drop(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(drop, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert _codes(await _examine(f"http://127.0.0.1:{port}"), "fail") == ["broken"]
    assert _codes(await _examine(f"https://127.0.0.1:{port}"), "fail") in (["tls_mismatch"], ["refused"])
    server.close()
    await server.wait_closed()


async def test_https_where_there_is_none(url: str) -> None:
    report = await _examine(url.replace("http://", "https://"))
    assert _codes(report, "fail") == ["tls_mismatch"]


async def test_a_certificate_nobody_knows() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # Signed by itself for 127.0.0.1; its key guards nothing.
    context.load_cert_chain(Path(__file__).with_name("untrusted.pem"))

    async def nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(nothing, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    assert _codes(await _examine(f"https://127.0.0.1:{port}"), "fail") == ["tls"]
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize(
    "answer",
    [
        Canned(200, "<html>Sign in</html>"),
        Canned(502, "<html>Bad gateway</html>"),
        Canned(200, {"status": "UP"}),
        Canned(404, {"detail": "Not Found"}),
        Canned(200, []),
        Canned(200, "x" * 3_000_000),
    ],
)
async def test_somebody_else_answers(double: ServiceDouble, url: str, answer: Canned) -> None:
    double.canned["*"] = answer
    assert _codes(await _examine(url), "fail") == ["not_ours"]


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_not_followed_but_told(double: ServiceDouble, url: str, status: int) -> None:
    double.canned["*"] = Canned(status, "", {"location": "https://other.example.com/health/live?a=b"})
    report = await _examine(url)
    assert _codes(report, "fail") == ["redirect"]
    assert "https://other.example.com." in report["findings"][0]["message"]


# --- Somebody there, something broken: one line each, the rest goes on ---

_Break = Callable[[ServiceDouble], object]


def _down(double: ServiceDouble, reason: str) -> Canned:
    parts = {"turns_log": double.log, "hindsight": {"ok": True}}
    return Canned(503, {"status": "down", "reasons": [reason], "parts": parts})


_FAULTS: list[tuple[str, str, _Break]] = [
    ("fail", "redis_down", lambda d: d.log.update(ok=False)),
    ("fail", "hindsight_down", lambda d: setattr(d, "hindsight_ok", False)),
    ("warn", "dead_letters", lambda d: d.log.update(dead_letters=3)),
    ("fail", "worker_dead", lambda d: d.log.update(worker=False)),
    ("fail", "worker_stuck", lambda d: d.log.update(overdue_s=500.0)),
    ("fail", "queue_full", lambda d: d.canned.update({"/health/ready": _down(d, "queue_full")})),
    ("fail", "not_durable", lambda d: d.canned.update({"/health/ready": _down(d, "not_durable")})),
    ("warn", "cache_down", lambda d: d.canned.update({"/health/ready": _down(d, "cache_down")})),
    ("fail", "tried_in_vain", lambda d: d.canned.update({"/health/ready": _down(d, "queue_stuck")})),
    ("fail", "failed", lambda d: d.canned.update({"/health/ready": Canned(500, {"error": {"code": "x"}})})),
    ("fail", "not_ours", lambda d: d.canned.update({"/dify/openapi.json": Canned(200, "<html>")})),
    ("fail", "document_bad", lambda d: d.canned.update({"/dify/openapi.json": Canned(200, {"info": {}})})),
    ("fail", "network_https_port", lambda d: setattr(d, "server_url", "https://memory.example.com:8443")),
    ("fail", "network_http_port", lambda d: setattr(d, "server_url", "http://memory.example.com:81")),
    ("warn", "network_localhost", lambda d: setattr(d, "server_url", "http://127.0.0.1:8000")),
    ("warn", "network_private", lambda d: setattr(d, "server_url", "http://192.168.0.9:8000")),
    ("warn", "network_inner", lambda d: setattr(d, "server_url", "http://memory:8000")),
    ("fail", "key_useless", lambda d: setattr(d, "scopes", frozenset({"recall", "admin"}))),
    ("fail", "failed", lambda d: d.canned.update({"/memory/recall": Canned(500, {})})),
    ("warn", "knowledge_missing", lambda d: d.canned.update({"/dify/knowledge/retrieval": Canned(404, {})})),
    ("fail", "failed", lambda d: d.canned.update({"/dify/knowledge/retrieval": Canned(503, {})})),
    ("fail", "storage_aof_off", lambda d: d.diagnosis["turns_redis"].update(append_only=False)),
    ("fail", "storage_evicts", lambda d: d.diagnosis["turns_redis"].update(eviction="allkeys-lru")),
    ("fail", "storage_fsync_off", lambda d: d.diagnosis["turns_redis"].update(fsync="no")),
    ("warn", "storage_everysec", lambda d: d.diagnosis["turns_redis"].update(fsync="everysec")),
    ("warn", "storage_unknown", lambda d: d.diagnosis["turns_redis"].update(append_only=None)),
    ("fail", "redis_down", lambda d: d.diagnosis["turns_redis"].update(ok=False)),
    ("fail", "hindsight_down", lambda d: d.diagnosis["hindsight"].update(ok=False)),
    ("warn", "hindsight_untested", lambda d: d.diagnosis["hindsight"].update(version="0.9.4")),
    ("warn", "hindsight_llm_trace", lambda d: d.diagnosis["hindsight"].update(features={"llm_trace": True})),
    ("warn", "hindsight_audit_log", lambda d: d.diagnosis["hindsight"].update(features={"audit_log": True})),
    ("warn", "settings_anonymous", lambda d: d.diagnosis["settings"].update(allow_anonymous_users=True)),
    ("skipped", "key_of_some", lambda d: d.canned.update({"/memory/add": Canned(422, {})})),
    ("skipped", "key_of_some", lambda d: d.canned.update({"/memory/add": Canned(409, {})})),
    ("fail", "failed", lambda d: d.canned.update({"/memory/add": Canned(429, {})})),
    ("fail", "job_failed", lambda d: d.job.update(status="failed", reason="hindsight_rejected")),
    ("warn", "kept_nothing", lambda d: d.job.update(memories_kept=0)),
    ("fail", "leaked", lambda d: setattr(d, "is_leaky", True)),
    ("fail", "not_forgotten", lambda d: setattr(d, "is_forgetful", False)),
    ("warn", "forget_missing", lambda d: d.canned.update({"/memory/forget": Canned(404, {})})),
    ("fail", "failed", lambda d: d.canned.update({"/memory/forget": Canned(503, {})})),
    ("fail", "forget_unverified", lambda d: d.canned.update({"/memory/forget": Canned(200, {})})),
    ("skipped", "not_there", lambda d: d.canned.update({"/admin/diagnosis": Canned(404, {})})),
]


@pytest.mark.parametrize(
    ("status", "code", "break_it"),
    _FAULTS,
    ids=[f"{code}-{number}" for number, (_, code, _) in enumerate(_FAULTS)],
)
async def test_each_fault_is_told(
    double: ServiceDouble, url: str, status: str, code: str, break_it: _Break
) -> None:
    break_it(double)
    report = await _examine(url)
    assert code in _codes(report, status), report
    assert len(_codes(report, "fail")) <= (3 if code == "failed" else 2), "one fault, one line, or its echo"


async def test_nothing_is_wrong_with_the_double(url: str) -> None:
    """Else the faults above prove little."""
    report = await _examine(url)
    assert {finding["status"] for finding in report["findings"]} == {"ok"}, report


async def test_a_turn_that_is_never_stored(double: ServiceDouble, url: str) -> None:
    double.job["status"] = "queued"
    report = await _examine(url, "--patience", "0.3")
    assert _codes(report, "fail") == ["not_stored"]
    assert "forget_ok" in _codes(report, "ok"), "what was added is forgotten, whatever happened between"


async def test_what_is_stored_but_not_found(double: ServiceDouble, url: str) -> None:
    double.canned["/memory/recall"] = Canned(200, {"memories": [], "degraded": False})
    assert _codes(await _examine(url), "fail") == ["not_recalled"]


async def test_a_count_that_is_not_known_is_no_fault(double: ServiceDouble, url: str) -> None:
    double.job.update(memories_kept=None)
    report = await _examine(url)
    assert {finding["status"] for finding in report["findings"]} == {"ok"}, report
    double.canned["/memory/recall"] = Canned(200, {"memories": [], "degraded": False})
    assert _codes(await _examine(url), "fail") == ["not_recalled"]


async def test_a_degraded_recall(double: ServiceDouble, url: str) -> None:
    body = {"memories": [{"text": "peanuts"}], "degraded": True, "reason": "hindsight_unavailable"}
    double.canned["/memory/recall"] = Canned(200, body)
    assert "leaked" in _codes(await _examine(url), "fail"), "the stranger sees it here, which is worse"


async def test_a_key_for_dify_alone(double: ServiceDouble, url: str) -> None:
    double.scopes = frozenset({"recall", "add"})
    report = await _examine(url)
    assert report["ok"]
    assert _codes(report, "skipped") == ["not_allowed"] * 3
    assert _codes(report, "warn") == ["forget_not_allowed"]
    user = next(user for path, user in double.calls if path == "/memory/add" and user)
    assert user in report["findings"][-1]["message"], "who stays behind is named"


@pytest.mark.parametrize(
    ("key", "code"), [("", "key_missing"), ("clé", "key_odd"), ("a\nb", "key_odd"), (f" {KEY}", "key_odd")]
)
async def test_a_key_that_cannot_be_one(url: str, key: str, code: str) -> None:
    assert _codes(await _examine(url, key=key), "fail") == [code]


@pytest.mark.parametrize(
    ("date", "code"),
    [
        (0, "clock_ok"),
        (3, "clock_off"),
        (-3, "clock_off"),
        ("yesterday", "clock_unknown"),
        ("", "clock_unknown"),
    ],
)
async def test_a_clock_that_is_off(date: str | int, code: str) -> None:
    date = date if isinstance(date, str) else _http_date(hours=date)
    body = '{"status": "alive"}'

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\nDate: {date}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write((head + body).encode())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    report = await _examine(f"http://127.0.0.1:{port}")
    server.close()
    await server.wait_closed()
    assert [finding["code"] for finding in report["findings"] if finding["check"] == "clock"] == [code]


async def test_a_slow_service(double: ServiceDouble, url: str) -> None:
    """Half a second for nothing leaves too little of a recall's two."""
    double.canned["/health/live"] = Canned(200, {"status": "alive"}, slow_s=0.6)
    assert "slow" in _codes(await _examine(url, "--quick"), "warn")


# --- How it is said ---


@pytest.mark.parametrize(
    ("env", "arguments", "word"),
    [
        ({"LANG": "zh_CN.UTF-8"}, (), "一切正常"),
        ({"LANG": "en_GB.UTF-8", "LC_ALL": "zh_TW.UTF-8"}, (), "一切正常"),
        ({"LANG": "de_DE.UTF-8"}, (), "Everything works"),
        ({"LANG": "zh_CN.UTF-8"}, ("--lang", "en"), "Everything works"),
        ({}, ("--lang", "zh"), "一切正常"),
    ],
)
async def test_speaks_the_language_of_the_place(
    url: str, env: dict[str, str | None], arguments: tuple[str, ...], word: str
) -> None:
    result = await _run("--url", url, "--key", KEY, *arguments, env=env)
    assert result.exit_code == 0, result.output
    assert word in result.output.splitlines()[-1]
    assert KEY not in result.output


async def test_without_an_address_and_a_stack_it_asks_for_one(tmp_path: Path) -> None:
    result = await _run("--data-dir", str(tmp_path))
    assert result.exit_code == 2
    assert "--url" in result.output
    assert (await _run("--url", "memory:8000", "--key", KEY)).exit_code == 2


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
async def test_beside_an_api_it_finds_its_address_and_key_in_the_settings(
    url: str, tmp_path: Path, host: str
) -> None:
    """As in a container of the API, where there is no local stack."""
    env = {
        "MEMORY_DATA_DIR": str(tmp_path),
        "MEMORY_HOST": host,
        "MEMORY_PORT": url.rpartition(":")[2],
        "MEMORY_API_KEY": KEY,
    }
    result = await _run("--json", "--quick", env=env)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["url"] == url
    # Whoever names a local stack means that one.
    result = await _run("--data-dir", str(tmp_path), env=env)
    assert result.exit_code == 2


async def test_an_api_that_listens_on_one_address_is_asked_there(tmp_path: Path) -> None:
    for host, address in (("127.0.0.2", "127.0.0.2"), ("::1", "[::1]"), ("::", "[::1]")):
        port = str(free_port())
        env = {"MEMORY_DATA_DIR": str(tmp_path), "MEMORY_HOST": host, "MEMORY_PORT": port}
        result = await _run("--json", "--timeout", "2", env={**env, "MEMORY_API_KEY": KEY})
        assert json.loads(result.stdout)["url"] == f"http://{address}:{port}"


async def test_a_role_without_the_key_is_told_what_is_missing(tmp_path: Path) -> None:
    result = await _run(env={"MEMORY_DATA_DIR": str(tmp_path)})
    assert result.exit_code == 2
    assert "MEMORY_API_KEY" in result.output


async def test_the_key_of_the_environment_is_used(url: str) -> None:
    result = await _run("--url", url, "--json", env={"MEMORY_API_KEY": KEY})
    assert json.loads(result.stdout)["ok"], result.output


def test_both_languages_say_the_same_things() -> None:
    assert list(TEXTS["en"]) == list(TEXTS["zh"])
    for code, text in TEXTS["en"].items():
        assert _fields(text) == _fields(TEXTS["zh"][code]), code


def _fields(text: str) -> set[str]:
    return {part.split("}")[0] for part in text.split("{")[1:]}
