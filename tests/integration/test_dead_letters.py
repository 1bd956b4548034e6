"""Dead letters: seen with their reasons, put back in order with their jobs, or dropped."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from typing import Any, cast

import httpx
import pytest
from click.testing import CliRunner, Result
from fastapi import FastAPI
from redis.asyncio import Redis
from service import keyspace
from service.adapters.dead_letters import DeadLetters
from service.auth import Caller, KeyRing
from service.cli.main import main
from service.errors import ServiceError
from service.problems import on_service_error
from service.routes import admin
from service.routes.services import Services
from service.scope import BankId, JobId, bank_of

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import KEY, Api, Workshop, run_api, settings_for
from tests.integration.edge import checked, code_of
from tests.support import RedisServer, serve
from tests.turns_log import add_turn, everything, look, pass_time, without_ttl

pytestmark = pytest.mark.anyio
_OPEN = {"settings", "keys", "turns", "cache", "hindsight"}
LIST, REPLAY, DROP = "/admin/dead-letters", "/admin/dead-letters/replay", "/admin/dead-letters/drop"


@dataclass
class Morgue:
    """An API and a worker with a Hindsight that refuses every retain until it is healed."""

    api: Api
    workshop: Workshop
    stand_in: HindsightStandIn
    redis: Redis
    bank: BankId

    async def work(self, times: int = 1) -> None:
        for _ in range(times):
            await pass_time(self.redis)
            await self.workshop.work()

    async def kill(self, *texts: str, conversation: str = "main", bank: BankId | None = None) -> list[JobId]:
        """Turns that die, one request each; their jobs."""
        jobs = []
        for text in texts:
            _, job_id, _ = await add_turn(
                self.workshop.log, bank or self.bank, texts=(text,), conversation=conversation
            )
            jobs.append(job_id)
        self.stand_in.fail("retain", "status", status=422)
        await self.work(len(texts) + 2)
        self.stand_in.heal()
        return jobs

    async def letters(self, **params: Any) -> list[Any]:
        found: list[Any] = checked(await self.api.client.get(LIST, params=params), 200)["dead_letters"]
        return found

    async def status(self, job_id: JobId) -> str:
        job = await self.workshop.log.job(job_id)
        assert job is not None
        return job.status

    def written(self, bank: BankId | None = None) -> list[str]:
        found = self.stand_in.banks.get(bank or self.bank)
        return [text for _, text in found.written] if found else []


@pytest.fixture
async def morgue(
    api: Api, workshop: Workshop, stand_in: HindsightStandIn, user: str
) -> AsyncIterator[Morgue]:
    async with Redis.from_url(api.settings.redis_url, decode_responses=True) as redis:
        yield Morgue(api, workshop, stand_in, redis, bank_of("default", user))


async def test_they_are_listed_with_their_reason_and_without_what_was_said(morgue: Morgue) -> None:
    jobs = await morgue.kill("my locker code is quokka", "two")
    listed = await morgue.letters()
    assert [letter["job_id"] for letter in listed] == jobs
    assert {letter["reason"] for letter in listed} == {"Hindsight refuses this with 422."}
    assert {letter["bank"] for letter in listed} == {morgue.bank}
    assert [letter["chars"] for letter in listed] == [24, 3]
    assert "quokka" not in json.dumps(listed)
    shown = await morgue.letters(show=True)
    assert [letter["text"] for letter in shown] == ["my locker code is quokka", "two"]
    health = (await morgue.api.stranger.get("/health/ready")).json()
    assert (health["status"], health["parts"]["turns_log"]["dead_letters"]) == ("degraded", 2)


@asynccontextmanager
async def with_scopes(morgue: Morgue, *scopes: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client whose key has these scopes only, at an API of just these routes."""
    workshop = morgue.workshop
    caller = Caller("default", "k", cast("Any", frozenset(scopes)))
    services = Services(
        settings=morgue.api.settings,
        keys=KeyRing({hashlib.sha256(KEY.encode()).digest(): caller}),
        turns=workshop.log,
        cache=workshop.cache,
        hindsight=workshop.hindsight,
        **dict.fromkeys((f.name for f in fields(Services) if f.name not in _OPEN), cast("Any", None)),
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
        yield {"services": services}

    app = FastAPI(lifespan=lifespan, exception_handlers={ServiceError: on_service_error})
    app.include_router(admin.router)
    async with (
        serve(app) as url,
        httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {KEY}"}) as client,
    ):
        yield client


async def test_what_was_said_needs_the_scope_review_and_all_of_it_admin(morgue: Morgue) -> None:
    await morgue.kill("secret")
    async with with_scopes(morgue, "admin") as operator:
        assert (await operator.get(LIST, params={"show": True})).json()["error"]["code"] == "scope_missing"
        assert (await operator.get(LIST)).json()["dead_letters"][0]["text"] is None
    async with with_scopes(morgue, "admin", "review") as reviewer:
        shown = await reviewer.get(LIST, params={"show": True})
        assert shown.json()["dead_letters"][0]["text"] == "secret"
    async with with_scopes(morgue, "recall", "add", "review", "forget", "chat") as dify:
        for method, path in (("GET", LIST), ("POST", REPLAY), ("POST", DROP)):
            assert (await dify.request(method, path, json={"all": True})).status_code == 403
    assert len((await look(morgue.redis)).dead) == 1


async def test_many_come_page_by_page(morgue: Morgue) -> None:
    await morgue.kill(*(f"text {number}" for number in range(30)))
    found: list[str] = []
    cursor = ""
    pages = 0
    while pages == 0 or cursor:
        page = checked(await morgue.api.client.get(LIST, params={"limit": 5, "cursor": cursor}), 200)
        found += [letter["id"] for letter in page["dead_letters"]]
        cursor = page["next_cursor"]
        pages += 1
    assert set(found) == (await look(morgue.redis)).dead
    assert pages > 2
    for wrong in ("-1", "x", "1.5", "١", "18446744073709551616"):
        assert code_of(await morgue.api.client.get(LIST, params={"cursor": wrong}), 422)


async def test_replayed_they_are_stored_in_order_and_their_jobs_end_well(morgue: Morgue) -> None:
    jobs = await morgue.kill("one", "two", "three")
    assert [await morgue.status(job_id) for job_id in jobs] == ["failed"] * 3
    _, later, _ = await add_turn(morgue.workshop.log, morgue.bank, texts=("four",))
    # The last one first: order is that of acceptance all the same.
    ids = [letter["id"] for letter in await morgue.letters()]
    for document in reversed(ids):
        assert checked(await morgue.api.client.post(REPLAY, data={"ids": document}), 200)["count"] == 1
        assert (await look(morgue.redis)).faults() == []
    assert [await morgue.status(job_id) for job_id in jobs] == ["queued"] * 3
    await morgue.work()
    assert morgue.written() == ["one", "two", "three", "four"]
    assert [await morgue.status(job_id) for job_id in (*jobs, later)] == ["done"] * 4
    job = await morgue.workshop.log.job(jobs[0])
    assert job is not None
    assert (job.reason, job.memories_kept) == ("", 1)
    held = await look(morgue.redis)
    assert (held.faults(), held.dead, held.dead_of) == ([], set(), {})
    assert await without_ttl(morgue.redis) == set()


async def test_all_of_them_at_once_and_once_only(morgue: Morgue) -> None:
    other = bank_of("default", "another one")
    await morgue.kill("one", "two")
    await morgue.kill("three", bank=other)
    letters = await DeadLetters(morgue.workshop.log).find((await look(morgue.redis)).dead)  # type: ignore[arg-type]
    assert checked(await morgue.api.client.post(REPLAY, json={"all": True}), 200)["count"] == 3
    before = await everything(morgue.redis)
    assert checked(await morgue.api.client.post(REPLAY, json={"all": "true"}), 200)["count"] == 0
    assert await DeadLetters(morgue.workshop.log).replay(letters) == 0, "a repetition changes nothing"
    assert {k: v for k, v in (await everything(morgue.redis)).items() if "write" not in k} == {
        k: v for k, v in before.items() if "write" not in k
    }
    await morgue.work()
    assert (morgue.written(), morgue.written(other)) == (["one", "two"], ["three"])


async def test_those_that_fail_again_are_dead_again_with_the_new_reason(morgue: Morgue) -> None:
    [job_id] = await morgue.kill("one")
    [letter] = await morgue.letters()
    checked(await morgue.api.client.post(REPLAY, json={"ids": [letter["id"]]}), 200)
    morgue.stand_in.fail("retain", "status", status=413)
    await morgue.work(2)
    [again] = await morgue.letters()
    assert (again["id"], again["reason"]) == (letter["id"], "Hindsight refuses this with 413.")
    assert await morgue.status(job_id) == "failed"


async def test_a_job_of_which_a_part_stays_dead_stays_failed(morgue: Morgue) -> None:
    _, job_id, documents = await add_turn(morgue.workshop.log, morgue.bank, texts=("one", "two"))
    morgue.stand_in.fail("retain", "status", status=422)
    await morgue.work(3)
    morgue.stand_in.heal()
    assert (await look(morgue.redis)).dead == set(documents)
    checked(await morgue.api.client.post(REPLAY, json={"ids": [documents[1]]}), 200)
    assert await morgue.status(job_id) == "queued"
    await morgue.work()
    job = await morgue.workshop.log.job(job_id)
    assert job is not None
    assert (job.status, job.reason) == ("failed", "Hindsight refuses this with 422.")
    checked(await morgue.api.client.post(REPLAY, json={"ids": [documents[0]]}), 200)
    await morgue.work()
    job = await morgue.workshop.log.job(job_id)
    assert job is not None
    assert (job.status, job.reason, job.memories_kept) == ("done", "", 2)


async def test_one_whose_job_is_no_longer_known_gets_it_back(morgue: Morgue) -> None:
    [job_id] = await morgue.kill("one")
    await morgue.redis.delete(keyspace.job(job_id))
    checked(await morgue.api.client.post(REPLAY, json={"all": True}), 200)
    assert (await morgue.api.job(job_id))["status"] == "queued"
    await morgue.work()
    assert (await morgue.api.job(job_id))["status"] == "done"


async def test_a_replay_waits_for_the_worker_that_has_the_bank(morgue: Morgue) -> None:
    await morgue.kill("one")
    await add_turn(morgue.workshop.log, morgue.bank, texts=("two",))
    [claim] = await morgue.workshop.claims()
    checked(await morgue.api.client.post(REPLAY, json={"all": True}), 200)
    assert await morgue.workshop.claims() == []
    await morgue.workshop.storer.drain(claim)
    await morgue.work()
    assert sorted(morgue.written()) == ["one", "two"]
    assert (await look(morgue.redis)).faults() == []


async def test_dropped_they_are_gone_and_their_jobs_stay_failed(morgue: Morgue) -> None:
    jobs = await morgue.kill("one", "two")
    first, second = (letter["id"] for letter in await morgue.letters())
    assert checked(await morgue.api.client.post(DROP, data={"ids": f"{first}, {first}"}), 200)["count"] == 1
    assert [letter["id"] for letter in await morgue.letters()] == [second]
    assert code_of(await morgue.api.client.post(REPLAY, json={"ids": [first]}), 404) == "not_found"
    assert checked(await morgue.api.client.post(DROP, json={"all": True}), 200)["count"] == 1
    assert await morgue.letters() == []
    await morgue.work()
    assert morgue.written() == []
    assert [await morgue.status(job_id) for job_id in jobs] == ["failed"] * 2
    assert (await look(morgue.redis)).faults() == []
    assert (await morgue.api.stranger.get("/health/ready")).json()["parts"]["turns_log"]["dead_letters"] == 0


async def test_said_again_it_is_alive_and_no_longer_dead(morgue: Morgue) -> None:
    await add_turn(morgue.workshop.log, morgue.bank, texts=("one",), turn_id="t1")
    morgue.stand_in.fail("retain", "status", status=422)
    await morgue.work(2)
    morgue.stand_in.heal()
    async for key in morgue.redis.scan_iter("mem:seen:*"):
        await morgue.redis.delete(key)
    assert (await add_turn(morgue.workshop.log, morgue.bank, texts=("one",), turn_id="t1"))[0] == "queued"
    held = await look(morgue.redis)
    assert (held.faults(), held.dead) == ([], set())


async def test_another_tenant_has_none_of_them(
    morgue: Morgue, redis_server: RedisServer, stand_in: HindsightStandIn
) -> None:
    await morgue.kill("one")
    [letter] = await morgue.letters()
    async with run_api(settings_for(redis_server.url, stand_in.url, tenant="another")) as other:
        assert checked(await other.client.get(LIST), 200)["dead_letters"] == []
        for path in (REPLAY, DROP):
            assert code_of(await other.client.post(path, json={"ids": [letter["id"]]}), 404) == "not_found"
            assert checked(await other.client.post(path, json={"all": True}), 200)["count"] == 0
    assert len(await morgue.letters()) == 1


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"ids": []},
        {"ids": ["a"], "all": True},
        {"all": False},
        {"ids": 5},
        {"x": 1},
        {"ids": [1]},
        {"ids": ["\ud800"]},
        {"ids": ["a b"]},
        {"ids": ["a" * 201]},
    ],
    ids=range(10),
)
async def test_what_is_meant_has_to_be_said(morgue: Morgue, body: Any) -> None:
    await morgue.kill("one")
    for path in (REPLAY, DROP):
        sent = json.dumps(body)  # as httpx cannot encode half a character
        reply = await morgue.api.client.post(path, content=sent, headers={"Content-Type": "application/json"})
        assert code_of(reply, 422) == "invalid_request"
    assert len(await morgue.letters()) == 1


def command(url: str, *words: str) -> Result:
    """`dify-memory dead …` on that Redis."""
    return CliRunner().invoke(main, ["dead", *words], env={"MEMORY_REDIS_URL": url}, catch_exceptions=False)


async def run_command(morgue: Morgue, *words: str) -> Result:
    """The same off this loop: a command brings a loop of its own."""
    return await asyncio.to_thread(command, morgue.api.settings.redis_url, *words)


async def test_the_command_lists_replays_and_drops(morgue: Morgue) -> None:
    none = await run_command(morgue, "list")
    assert (none.exit_code, none.output) == (0, "There are no dead letters.\n")
    await morgue.kill("my locker code\nis quokka", "two", "three")
    listed = await run_command(morgue, "list")
    assert listed.exit_code == 0
    assert listed.output.count("Hindsight refuses this with 422.") == 3
    assert "quokka" not in listed.output
    shown = await run_command(morgue, "list", "--show", "--bank", morgue.bank)
    assert "    | my locker code\n    | is quokka\n" in shown.output
    first, second, third = (letter["id"] for letter in await morgue.letters())
    assert (await run_command(morgue, "replay", first)).output == "Replayed: 1\n"
    refused = await run_command(morgue, "replay", "unknown")
    assert (refused.exit_code, refused.output) == (1, "Error: There are no such dead letters.\n")
    assert (await run_command(morgue, "replay")).exit_code == 1
    assert (await run_command(morgue, "drop", second, "--yes")).output == "Dropped: 1\n"
    assert (await run_command(morgue, "drop", "--all")).exit_code == 1, "it asks first"
    assert [letter["id"] for letter in await morgue.letters()] == [third]
    assert (await run_command(morgue, "replay", "--all")).output == "Replayed: 1\n"
    await morgue.work()
    assert morgue.written() == ["my locker code\nis quokka", "three"]


async def test_the_command_says_when_redis_is_away() -> None:
    away = await asyncio.to_thread(command, "redis://127.0.0.1:1/0", "list")
    assert away.exit_code == 1
    assert "The queue does not answer" in away.output
