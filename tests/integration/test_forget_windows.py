"""A forget in each of the moments in which a turn can be when it comes; nothing of it is ever seen again."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from time import monotonic

import httpx
import pytest
from service.adapters.turns_forget import TurnsEraser
from service.errors import ClaimLost, Unavailable
from service.memory.forget import Forgetter
from service.schemas_review import ForgetRequest
from service.scope import BankId, DocumentId, bank_of, operation_of

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import Workshop, open_workshop, run_api, settings_for
from tests.integration.edge import checked, code_of
from tests.integration.forget_world import World, counts, open_world
from tests.support import RedisServer, valkey, wait_until
from tests.turns_log import look, pass_time

pytestmark = pytest.mark.anyio

# Replay 12 (crewAI 7290): a delete while an add is queued or running, and the memory comes back.
SCOPES = [{"all": "true"}, {"conversation_id": "c1"}]
by_scope = pytest.mark.parametrize("scope", SCOPES)


@pytest.fixture
async def world(redis_server: RedisServer) -> AsyncIterator[World]:
    async with open_world(redis_server) as opened:
        yield opened


async def start_work(world: World) -> asyncio.Task[int]:
    """A worker that stores what waits, on its own."""
    await pass_time(world.redis)
    return asyncio.create_task(world.workshop.work())


async def requested(stand_in: HindsightStandIn, operation: str, times: int = 1) -> None:
    """Wait until Hindsight was asked for that."""
    await wait_until(lambda: len(stand_in.requests_for(operation)) >= times, f"{operation} was asked for")


async def assert_gone(world: World, user: str, job: str, worker: asyncio.Task[int] | None = None) -> None:
    """Nothing is there, nor comes when everything that was begun has ended and all that waits is stored."""
    assert await world.recalled(user, "bees", conversation_id="x") == []
    if worker is not None:
        await asyncio.wait_for(worker, 15)
    for _ in range(2):
        await world.store()
    assert world.texts(user) == []
    assert (await world.api.job(job))["status"] == "cancelled"
    assert await world.recalled(user, "bees", conversation_id="x", fresh="true") == []
    bank = world.stand_in.banks.get(bank_of("default", user))
    assert bank is None or bank.documents == {}
    assert [
        op.status for op in world.stand_in.operations.values() if op.status in ("pending", "processing")
    ] == []


@by_scope
async def test_frozen(world: World, user: str, scope: dict[str, str]) -> None:
    job = await world.add(user, "I keep bees", conversation_id="c1")
    await pass_time(world.redis)
    [claim] = await world.workshop.claims()
    batch = await world.workshop.log.take(claim, "b1")
    assert batch is not None
    assert counts(await world.forget(user, **scope)) == (0, 0, 1, 1)
    kept = {batch.turns[0].document_id: 1}
    with pytest.raises(ClaimLost):
        await world.workshop.log.settle(claim, batch, kept, outcome="done", reason="", job_ttl_s=60)
    with pytest.raises(ClaimLost):
        await world.workshop.log.take(claim, "b2")
    await assert_gone(world, user, job)


@by_scope
@pytest.mark.parametrize("seconds", [0.1, 0.3, 0.6, 0.9])
async def test_a_retain_that_is_still_on_its_way(
    world: World, user: str, scope: dict[str, str], seconds: float
) -> None:
    job = await world.add(user, "I keep bees", conversation_id="c1")
    world.stand_in.fail("retain", "slow", seconds=seconds, times=1)
    worker = await start_work(world)
    await requested(world.stand_in, "retain")
    assert counts(await world.forget(user, **scope))[2:] == (1, 1)
    await assert_gone(world, user, job, worker)


@by_scope
async def test_a_retain_that_comes_later_than_everything(
    world: World, user: str, scope: dict[str, str]
) -> None:
    # What lay in some buffer between us and Hindsight, for longer than the worker's time-out.
    job = await world.add(user, "I keep bees", conversation_id="c1")
    world.stand_in.fail("retain", "close", times=1)
    await world.store()
    [lost] = world.stand_in.requests_for("retain")
    await world.forget(user, **scope)
    async with httpx.AsyncClient() as client:
        late = await client.post(f"{world.stand_in.url}{lost.path}", json=lost.body)
        assert late.status_code == 200
    await assert_gone(world, user, job)


@by_scope
async def test_one_that_was_tried_alone_and_under_several_ids(
    world: World, user: str, scope: dict[str, str]
) -> None:
    for text in ("I keep bees", "I keep more bees"):
        job = await world.add(user, text, conversation_id="c1")
    world.stand_in.end_operations("failed", times=4)
    for _ in range(3):
        await world.store()
    sent = world.stand_in.requests_for("retain")
    assert len({request.body["operation_id"] for request in sent}) == 4
    assert len(sent[-1].body["items"]) == 1  # one by one by now
    await world.forget(user, **scope)
    async with httpx.AsyncClient() as client:
        for late in sent:
            await client.post(f"{world.stand_in.url}{late.path}", json=late.body)
    await assert_gone(world, user, job)


@by_scope
@pytest.mark.parametrize("is_stubborn", [True, False])
async def test_while_hindsight_works_on_it(
    world: World, user: str, scope: dict[str, str], is_stubborn: bool
) -> None:
    world.stand_in.is_stubborn = is_stubborn
    job = await world.add(user, "I keep bees", conversation_id="c1")
    world.stand_in.hold_operations("processing")
    worker = await start_work(world)
    await requested(world.stand_in, "operation", 2)
    forgetting = asyncio.create_task(world.forget(user, **scope))
    await requested(world.stand_in, "operations", 6)
    assert not forgetting.done()
    assert await world.recalled(user, "bees", conversation_id="x", fresh="true") == []
    world.stand_in.release_operations()
    assert counts(await forgetting) == (1, 1, 1, 1)
    await assert_gone(world, user, job, worker)


@by_scope
async def test_while_hindsight_has_it_in_its_own_queue(
    world: World, user: str, scope: dict[str, str]
) -> None:
    job = await world.add(user, "I keep bees", conversation_id="c1")
    world.stand_in.hold_operations("pending")
    worker = await start_work(world)
    await requested(world.stand_in, "operation", 2)
    request = ForgetRequest.read({"user_id": user, **scope})
    receipt = await hasty(world.workshop, 15, patience_s=0.2).forget(request, bank_of("default", user))
    assert (receipt.documents, receipt.pending, receipt.is_verified) == (0, 1, True)
    world.stand_in.release_operations()
    await assert_gone(world, user, job, worker)


@by_scope
async def test_stored_but_not_settled(world: World, user: str, scope: dict[str, str]) -> None:
    job = await world.add(user, "I keep bees", conversation_id="c1")
    world.stand_in.fail("operation", "hang")
    worker = await start_work(world)
    await wait_until(lambda: world.texts(user) == ["I keep bees"], "it is stored")
    assert counts(await world.forget(user, **scope)) == (1, 1, 1, 1)
    world.stand_in.heal()
    await assert_gone(world, user, job, worker)


@by_scope
async def test_the_answer_to_a_retain_was_lost(world: World, user: str, scope: dict[str, str]) -> None:
    job = await world.add(user, "I keep bees", conversation_id="c1")
    world.stand_in.fail("retain", "commit_then_close", times=1)
    await world.store()
    assert counts(await world.forget(user, **scope)) == (1, 1, 1, 1)
    await assert_gone(world, user, job)


async def test_a_worker_that_was_stopped_for_long_sends_nothing(world: World, user: str) -> None:
    await world.add(user, "I keep bees", conversation_id="c1")
    await pass_time(world.redis)
    [claim] = await world.workshop.claims()
    asleep = replace(claim, asked_at=monotonic() - 2 * world.workshop.log.claim_s)
    await world.workshop.storer.drain(asleep)
    assert world.stand_in.requests_for("retain") == []


@pytest.mark.parametrize("fault", ["slow", "commit_then_close"])
async def test_one_turn_of_a_batch_that_is_on_its_way(world: World, user: str, fault: str) -> None:
    gone = await world.add(user, "I keep bees", conversation_id="c1")
    kept = await world.add(user, "I play the flute", conversation_id="c1")
    first, _ = await world.workshop.log.pending(bank_of("default", user))
    world.stand_in.fail("retain", fault, seconds=0.3, times=1)  # type: ignore[arg-type]
    worker = await start_work(world)
    await requested(world.stand_in, "retain")
    assert counts(await world.forget(user, memory_id=first.document_id))[2:] == (1, 1)
    await asyncio.wait_for(worker, 15)
    await world.store()
    assert world.texts(user) == ["I play the flute"]
    assert (await world.api.job(gone))["status"] == "cancelled"
    assert (await world.api.job(kept))["status"] == "done"


async def test_another_conversation_that_was_interrupted_goes_on(world: World, user: str) -> None:
    kept = await world.add(user, "I play the flute", conversation_id="c2")
    world.stand_in.hold_operations("processing")
    worker = await start_work(world)
    await requested(world.stand_in, "operation")
    await world.add(user, "I keep bees", conversation_id="c1")
    assert counts(await world.forget(user, conversation_id="c1")) == (0, 0, 1, 1)
    world.stand_in.release_operations()
    await asyncio.wait_for(worker, 15)
    await world.store()
    assert world.texts(user) == ["I play the flute"]
    assert (await world.api.job(kept))["status"] == "done"
    bank = world.stand_in.banks[bank_of("default", user)]
    assert [document.writes for document in bank.documents.values()] == [1]


async def test_a_turn_that_comes_during_a_forget_is_kept(world: World, user: str) -> None:
    await world.add(user, "I keep bees", conversation_id="c1")
    world.stand_in.hold_operations("processing")
    worker = await start_work(world)
    await requested(world.stand_in, "operation")
    forgetting = asyncio.create_task(world.forget(user, all="true"))
    await requested(world.stand_in, "operations", 4)
    new = await world.add(user, "I play the flute", conversation_id="c1")
    assert await world.workshop.work() == 0  # nobody but the forget has the bank
    world.stand_in.release_operations()
    await forgetting
    await asyncio.wait_for(worker, 15)
    assert await world.recalled(user, "flute", conversation_id="x") == ["I play the flute"]
    await world.store()
    assert world.texts(user) == ["I play the flute"]
    assert (await world.api.job(new))["status"] == "done"


async def test_two_at_once(world: World, user: str) -> None:
    for conversation in ("c1", "c2"):
        await world.add(user, "I keep bees", conversation_id=conversation)
        await world.store()
        await world.add(user, "I keep wasps", conversation_id=conversation)
    async with run_api(world.api.settings) as other:
        bodies = [{"all": "true"}, {"conversation_id": "c1"}, {"all": "true"}, {"conversation_id": "c2"}]
        replies = await asyncio.gather(
            *(
                api.client.post("/memory/forget", data={"user_id": user, **body})
                for api, body in zip((world.api, other) * 2, bodies, strict=True)
            )
        )
    receipts = [counts(checked(reply, 200)) for reply in replies]
    assert [sum(column) for column in zip(*receipts, strict=True)] == [3, 3, 1, 1]
    await world.store()
    assert world.texts(user) == []


async def test_the_sweep_leaves_it_alone(world: World, user: str) -> None:
    await world.add(user, "I keep bees", conversation_id="c1")
    world.stand_in.hold_operations("processing")
    worker = await start_work(world)
    await requested(world.stand_in, "operation")
    forgetting = asyncio.create_task(world.forget(user, all="true"))
    await requested(world.stand_in, "operations", 4)
    assert await world.workshop.log.sweep() == 0
    world.stand_in.release_operations()
    await forgetting
    assert await world.workshop.log.sweep() == 0
    await asyncio.wait_for(worker, 15)
    assert (await look(world.redis)).due == {}


def hasty(workshop: Workshop, limit_s: float, patience_s: float = 3) -> Forgetter:
    """One that gives up soon."""
    taker = TurnsEraser(workshop.log, mark_ttl_s=60, job_ttl_s=60)
    return Forgetter(
        workshop.log,
        taker,
        workshop.cache,
        workshop.hindsight,
        limit_s=limit_s,
        patience_s=patience_s,
    )


@by_scope
async def test_one_that_takes_too_long_is_finished_by_its_repetition(
    world: World, user: str, scope: dict[str, str]
) -> None:
    job = await world.add(user, "I keep bees", conversation_id="c1")
    world.stand_in.hold_operations("processing")
    worker = await start_work(world)
    await requested(world.stand_in, "operation")
    request = ForgetRequest.read({"user_id": user, **scope})
    with pytest.raises(Unavailable) as refused:
        await hasty(world.workshop, 0.5).forget(request, bank_of("default", user))
    assert refused.value.retry_after_s
    # It is not shown meanwhile, nor stored by anybody.
    assert await world.recalled(user, "bees", conversation_id="x", fresh="true") == []
    world.stand_in.release_operations()
    assert counts(await world.forget(user, **scope)) == (1, 1, 1, 1)
    await assert_gone(world, user, job, worker)


@by_scope
@pytest.mark.parametrize("fault", ["close", "status", "garbage", "hang"])
async def test_hindsight_is_away(world: World, user: str, scope: dict[str, str], fault: str) -> None:
    await world.add(user, "I keep bees", conversation_id="c1")
    await world.store()
    job = await world.add(user, "I keep more bees", conversation_id="c1")
    world.stand_in.fail("*", fault)  # type: ignore[arg-type]
    reply = await world.api.client.post("/memory/forget", data={"user_id": user, **scope})
    assert code_of(reply, 503) == "hindsight_unavailable"
    assert int(reply.headers["retry-after"]) > 0
    world.stand_in.heal()
    assert counts(await world.forget(user, **scope)) == (1, 1, 1, 1)
    await assert_gone(world, user, job)


@pytest.mark.parametrize("operation", ["document_delete", "bank_delete", "documents", "operations"])
@pytest.mark.parametrize("fault", ["commit_then_hang", "status"])
async def test_hindsight_goes_away_in_the_middle(world: World, user: str, operation: str, fault: str) -> None:
    job = await world.add(user, "I keep bees", conversation_id="c1")
    world.stand_in.fail("retain", "commit_then_close", times=1)
    await world.store()
    scope = {"all": "true"} if operation == "bank_delete" else {"conversation_id": "c1"}
    world.stand_in.fail(operation, fault, times=1)  # type: ignore[arg-type]
    reply = await world.api.client.post("/memory/forget", data={"user_id": user, **scope})
    assert code_of(reply, 503) == "hindsight_unavailable"
    assert counts(await world.forget(user, **scope))[2:] == (1, 1)
    await assert_gone(world, user, job)


async def test_redis_is_away(folder: Path, user: str) -> None:
    async with (
        valkey(folder / "data") as server,
        valkey(folder / "cache", aof=False) as cache,
        HindsightStandIn() as stand_in,
    ):
        settings = settings_for(server.url, stand_in.url, cache_redis_url=cache.url)
        async with run_api(settings) as api, open_workshop(settings) as workshop:
            checked(await api.add(user, "I keep bees", conversation_id="c1"), 202)
            await workshop.work()
            assert checked(await api.recall(user, "bees"), 200)["count"] == 1
            body = {"user_id": user, "conversation_id": "c1"}
            await server.stop()
            reply = await api.client.post("/memory/forget", data=body)
            assert code_of(reply, 503) == "turns_log_unavailable"
            await server.start()
            await cache.kill()
            reply = await api.client.post("/memory/forget", data=body)
            assert code_of(reply, 503) == "unavailable"
            await cache.start()
            receipt = checked(await api.client.post("/memory/forget", data=body), 200)
            assert receipt["verified"] is True
            assert checked(await api.recall(user, "bees"), 200)["count"] == 0


async def test_a_forget_that_died_lets_go_of_the_bank(world: World, user: str) -> None:
    bank = bank_of("default", user)
    gone = await world.add(user, "I keep bees", conversation_id="c1")
    kept = await world.add(user, "I play the flute", conversation_id="c2")
    taker = TurnsEraser(world.workshop.log, mark_ttl_s=60, job_ttl_s=60)
    [documents] = [
        [turn.document_id] for turn in await world.workshop.log.pending(bank) if "bees" in turn.text
    ]
    taken = await taker.take(bank, "documents", documents)
    assert taken is not None
    assert await taker.take(bank, "all", []) is None  # another one has to wait for it
    assert (
        await taker.take(bank, "documents", documents, taken.claim.token) is not None
    )  # its own reply was lost
    await world.store()  # its claim ends by itself
    assert world.texts(user) == ["I play the flute"]
    assert (await world.api.job(gone))["status"] == "cancelled"
    assert (await world.api.job(kept))["status"] == "done"


async def test_what_may_be_on_its_way_is_known_by_its_id(world: World, user: str) -> None:
    bank: BankId = bank_of("default", user)
    for text in ("I keep bees", "I keep more bees"):
        await world.add(user, text, conversation_id="c1")
    await pass_time(world.redis)
    [claim] = await world.workshop.claims()
    batch = await world.workshop.log.take(claim, "b1")
    assert batch is not None
    tried = replace(batch, round=1, is_solo=True)
    await world.workshop.log.postpone(claim, tried, job_status="waiting", reason="x")
    await world.workshop.log.note_prepared(claim, batch, "what was made of both")
    taker = TurnsEraser(world.workshop.log, mark_ttl_s=60, job_ttl_s=60)
    first, second = (turn.document_id for turn in batch.turns)
    taken = await taker.take(bank, "documents", [second])
    assert taken is not None
    assert set(taken.operations) == {
        operation_of("b1", "0"),
        operation_of("b1", "1"),
        operation_of("b1", "0", DocumentId(first)),
        operation_of("b1", "1", DocumentId(first)),
    }
    left = await world.workshop.log.take(taken.claim, "b2")
    assert left is not None
    assert left.prepared == ""
    assert [turn.document_id for turn in left.turns] == [first]
    assert (left.id != "b1", left.round, left.is_solo, left.attempts) == (True, 0, False, 0)
    await taker.end(taken.claim)
    await world.workshop.log.release(taken.claim)
    again = await taker.take(bank, "documents", [first])
    assert again is not None
    assert set(again.operations) == {operation_of(left.id, "0")}
    await taker.end(again.claim)
    await world.workshop.log.release(again.claim)
    # Deleting the bank frees the ids of all of them.
    for _ in range(2):
        everything = await taker.take(bank, "all", [])
        assert everything is not None
        assert set(everything.operations) == {*taken.operations, *again.operations}
        await taker.end(everything.claim)
        await world.workshop.log.release(everything.claim)
