"""Who makes memories where nobody was chosen: what a Hindsight says of its language model decides."""

import asyncio
from pathlib import Path
from time import monotonic

import pytest
from aiohttp import web
from service.adapters.hindsight_facts import has_language_model
from service.adapters.turns import Debounce, TurnsLog
from service.errors import HindsightUnavailable
from service.memory.extraction_mode import settled
from service.scope import bank_of
from service.settings import Settings

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import settings_for
from tests.processes import WorkerProcess
from tests.support import RedisServer, wait_until
from tests.turns_log import add_turn

pytestmark = pytest.mark.anyio


@pytest.fixture
def plain(stand_in: HindsightStandIn) -> Settings:
    """Settings that choose nobody."""
    return settings_for("redis://127.0.0.1:1/0", stand_in.url)


@pytest.mark.parametrize(("has_llm", "mode"), [(True, "hindsight"), (False, "none"), (None, "auto")])
async def test_hindsight_tells_whether_it_has_a_model(
    stand_in: HindsightStandIn, plain: Settings, has_llm: bool | None, mode: str
) -> None:
    stand_in.store.has_llm = has_llm
    assert (await settled(plain)).extraction_mode == mode
    assert stand_in.banks == {}


@pytest.mark.parametrize(
    "changes",
    [{"extraction": "none"}, {"extraction": "hindsight"}, {"llm_model": "openai/m"}],
)
async def test_whoever_was_chosen_stays_and_nobody_is_asked(
    stand_in: HindsightStandIn, changes: dict[str, str]
) -> None:
    chosen = settings_for("redis://127.0.0.1:1/0", stand_in.url, **changes)
    assert await settled(chosen) is chosen
    assert stand_in.requests == []


@pytest.mark.parametrize("trouble", ["status", "close", "garbage"])
async def test_a_hindsight_that_cannot_tell_yet_is_waited_for(
    stand_in: HindsightStandIn, plain: Settings, trouble: str
) -> None:
    stand_in.store.has_llm = True
    stand_in.fail("mental_model_refresh", trouble)  # type: ignore[arg-type]
    waiting = asyncio.create_task(settled(plain, pause_s=0.01))

    async def was_asked_again() -> bool:
        return len(stand_in.requests_for("mental_model_refresh")) > 1

    await wait_until(was_asked_again, "it is asked again")
    assert not waiting.done()
    stand_in.heal()
    assert (await waiting).extraction_mode == "hindsight"


@pytest.mark.parametrize("status", [400, 401, 404, 405, 422, 429, 500])
async def test_an_answer_that_is_not_hindsights_own_settles_nothing(
    stand_in: HindsightStandIn, plain: Settings, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    stand_in.store.has_llm = True
    stand_in.fail("mental_model_refresh", "status", status=status)
    waiting = asyncio.create_task(settled(plain, pause_s=0.01))

    async def was_asked_again() -> bool:
        return len(stand_in.requests_for("mental_model_refresh")) > 2

    await wait_until(was_asked_again, "it is asked again")
    assert not waiting.done()
    stand_in.heal()
    assert (await waiting).extraction_mode == "hindsight"
    # Told once, with what to do about it.
    [told] = [one.__dict__["reason"] for one in caplog.records if one.message == "worker_waits_for_hindsight"]
    assert str(status) in told
    assert "MEMORY_EXTRACTION" in told


@pytest.mark.parametrize(
    ("status", "detail"),
    [
        (404, "Not Found"),
        (404, "no Route matched with those values"),
        (404, ["dify-memory-asks not found"]),
        (400, "Bad Request"),
        (400, "Bank id is not valid"),
        (405, "Method Not Allowed"),
        (200, "Mental model dify-memory-asks not found"),
    ],
)
async def test_a_gateways_own_words_settle_nothing(
    plain: Settings, status: int, detail: str | list[str]
) -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.path == "/version":
            return web.json_response({"api_version": "1.1.0", "features": {}})
        return web.json_response({"detail": detail}, status=status)

    gateway = web.Application()
    gateway.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(gateway)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        with pytest.raises(HindsightUnavailable):
            await has_language_model(f"http://127.0.0.1:{port}", None, 5)
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("status", [404, 405, 501])
@pytest.mark.parametrize("version", ["1.0.3", "1.1.0"])
async def test_a_page_in_place_of_an_answer_settles_it_for_an_old_hindsight_alone(
    plain: Settings, status: int, version: str
) -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.path == "/version":
            return web.json_response({"api_version": version, "features": {}})
        return web.Response(text="<html>nothing here</html>", content_type="text/html", status=status)

    gateway = web.Application()
    gateway.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(gateway)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        if version == "1.0.3":
            assert await has_language_model(url, None, 5) is None
        else:
            with pytest.raises(HindsightUnavailable) as caught:
                await has_language_model(url, None, 5)
            # It is said what to do, for nothing will change by itself.
            assert str(status) in caught.value.detail
            assert "MEMORY_EXTRACTION" in caught.value.detail
    finally:
        await runner.cleanup()


async def test_a_worker_is_there_meanwhile_and_stores_nothing_unvetted(
    stand_in: HindsightStandIn, redis_server: RedisServer, folder: Path, user: str
) -> None:
    stand_in.store.has_llm = True
    await redis_server.command("FLUSHALL")
    stand_in.fail("mental_model_refresh", "status", status=503)
    bank = bank_of("default", user)
    worker = WorkerProcess(folder, redis_server.url, stand_in.url)
    try:
        await worker.start()  # has a heartbeat
        async with TurnsLog(redis_server.url, Debounce(0, 60, 20)) as log:
            _, job_id, _ = await add_turn(log, bank, texts=("User: I like tea.",))

            async def was_asked_again() -> bool:
                return len(stand_in.requests_for("mental_model_refresh")) > 2

            await wait_until(was_asked_again, "it is asked again", timeout_s=30)
            assert stand_in.requests_for("retain") == []
            stand_in.heal()

            async def is_done() -> bool:
                job = await log.job(job_id)
                return job is not None and job.status == "done"

            await wait_until(is_done, "the turn is stored", timeout_s=30)
        assert stand_in.banks[bank].config["retain_extraction_mode"] == "concise"
    finally:
        await worker.kill()


async def test_a_worker_that_waits_stops_when_it_is_told_to(
    stand_in: HindsightStandIn, redis_server: RedisServer, folder: Path
) -> None:
    await redis_server.command("FLUSHALL")
    stand_in.fail("mental_model_refresh", "hang")
    worker = WorkerProcess(folder, redis_server.url, stand_in.url)
    await worker.start()
    await wait_until(lambda: stand_in.requests_for("mental_model_refresh"), "it is asked", timeout_s=30)
    started = monotonic()
    await worker.stop()
    assert monotonic() - started < 8
