"""Hindsight's events: signed or refused; twice, late or out of order they do no harm."""

import asyncio
import hashlib
import hmac
import json
import secrets
from collections.abc import AsyncIterator
from time import time
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis
from service import keyspace
from service.memory.store import StoreOptions, Storer
from service.metrics import Metrics
from service.scope import BankId, bank_of

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import Api, Workshop, run_api, settings_for
from tests.integration.edge import checked, code_of
from tests.support import RedisServer
from tests.turns_log import add_turn, look, pass_time, without_ttl

pytestmark = pytest.mark.anyio
SECRET = "webhook-secret-0123456789"
PATH = "/hooks/hindsight"


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_server.url, decode_responses=True) as client:
        await client.flushall()
        yield client


@pytest.fixture
async def api(redis: Redis, redis_server: RedisServer, stand_in: HindsightStandIn) -> AsyncIterator[Api]:
    async with run_api(settings_for(redis_server.url, stand_in.url, webhook_secret=SECRET)) as running:
        yield running


@pytest.fixture
def bank(user: str) -> BankId:
    return bank_of("default", user)


def event(bank: str, kind: str = "retain.completed", **fields: Any) -> dict[str, Any]:
    """An event as Hindsight 1.1 writes it."""
    return {
        "event_id": secrets.token_hex(16),
        "event": kind,
        "bank_id": bank,
        "operation_id": secrets.token_hex(16),
        "status": "completed",
        "timestamp": "2026-01-31T09:30:00Z",
        "data": {"document_id": "t-1", "tags": ["c-1"], "memory_unit_count": 1},
        **fields,
    }


def signature(body: bytes, at: float | None = None, secret: str = SECRET) -> str:
    """`X-Hindsight-Signature-V2` of a body."""
    moment = int(time() if at is None else at)
    mac = hmac.new(secret.encode(), b"%d." % moment + body, hashlib.sha256).hexdigest()
    return f"t={moment},v1={mac}"


async def deliver(api: Api, said: object, at: float | None = None) -> httpx.Response:
    """Deliver an event the way Hindsight does: no key, but signed."""
    body = json.dumps(said).encode()
    headers = {"X-Hindsight-Signature-V2": signature(body, at), "Content-Type": "application/json"}
    if isinstance(said, dict) and "event_id" in said:
        headers["X-Hindsight-Event-Id"] = str(said["event_id"])
    return await api.stranger.post(PATH, content=body, headers=headers)


async def epoch(redis: Redis, bank: BankId) -> str | None:
    """The bank's write epoch."""
    value: str | None = await redis.get(keyspace.write_epoch(bank))
    return value


@pytest.mark.parametrize("kind", ["retain.completed", "consolidation.completed"])
async def test_an_event_makes_cached_answers_old_once(
    api: Api, redis: Redis, bank: BankId, kind: str
) -> None:
    said = event(bank, kind)
    before = await epoch(redis, bank)
    assert checked(await deliver(api, said), 200)["status"] == "seen"
    after = await epoch(redis, bank)
    assert after not in (None, before)
    assert checked(await deliver(api, said), 200)["status"] == "known"
    assert await epoch(redis, bank) == after
    assert checked(await deliver(api, event(bank, kind)), 200)["status"] == "seen"
    assert await epoch(redis, bank) != after
    assert await without_ttl(redis) == set()


async def test_a_cached_recall_is_computed_anew_after_an_event(
    api: Api, stand_in: HindsightStandIn, user: str, bank: BankId
) -> None:
    stand_in.add_memory(bank, "My locker code is quokka")
    question = "What is my locker code?"
    assert checked(await api.recall(user, question), 200)["count"] == 1
    assert checked(await api.recall(user, question), 200)["cached"] is True
    stand_in.add_memory(bank, "The locker code was changed to wombat")
    assert checked(await api.recall(user, question), 200)["count"] == 1
    checked(await deliver(api, event(bank)), 200)
    assert checked(await api.recall(user, question), 200)["count"] == 2


@pytest.mark.parametrize(
    ("bank_id", "kind"),
    [
        ("u-" + "0" * 48, "memory_defense.triggered"),
        ("u-" + "0" * 48, "something.new"),
        ("somebody-elses-bank", "retain.completed"),
        ("u-" + "0" * 47, "retain.completed"),
        ("u-" + "G" * 48, "retain.completed"),
        ("", "retain.completed"),
    ],
)
async def test_what_is_not_ours_is_ignored(api: Api, redis: Redis, bank_id: str, kind: str) -> None:
    before = {key async for key in redis.scan_iter("mem:*")}
    assert checked(await deliver(api, event(bank_id, kind)), 200)["status"] == "ignored"
    assert {key async for key in redis.scan_iter("mem:*")} == before


@pytest.mark.parametrize(
    "header",
    [
        "",
        "t=,v1=",
        "t=1",
        "nonsense",
        "v1=" + "0" * 64,
        "t=now,v1=" + "0" * 64,
        f"t=99999999999999999999,v1={'0' * 64}",
        "t=1,v1=" + "é" * 64,
    ],
)
async def test_without_a_good_signature_it_is_refused(
    api: Api, redis: Redis, bank: BankId, header: str
) -> None:
    body = json.dumps(event(bank)).encode()
    header = header.replace("now", str(int(time())))
    headers = [(b"x-hindsight-signature-v2", header.encode("latin-1"))] if header else []
    assert code_of(await api.stranger.post(PATH, content=body, headers=headers), 401) == "signature_refused"
    # The API key opens other doors, not this one.
    assert code_of(await api.client.post(PATH, content=body), 401) == "signature_refused"
    assert await epoch(redis, bank) is None


async def test_a_signature_is_for_one_body_one_secret_and_five_minutes(
    api: Api, redis: Redis, bank: BankId
) -> None:
    body = json.dumps(event(bank)).encode()

    async def refused(content: bytes, signed: str) -> None:
        reply = await api.stranger.post(PATH, content=content, headers={"X-Hindsight-Signature-V2": signed})
        assert code_of(reply, 401) == "signature_refused"

    await refused(body + b" ", signature(body))
    await refused(body, signature(body, secret="another-secret-0123456789"))
    await refused(body, signature(body, at=time() - 400))
    await refused(body, signature(body, at=time() + 400))
    old, mac = signature(body, at=time() - 400).split(",")
    await refused(body, f"t={int(time())},{mac}")
    assert await epoch(redis, bank) is None
    assert old
    assert (await deliver(api, event(bank), at=time() - 200)).status_code == 200


@pytest.mark.parametrize(
    "said",
    [
        [],
        "text",
        None,
        {},
        {"event_id": "", "event": "retain.completed", "bank_id": "u-1"},
        {"event_id": 5, "event": "retain.completed", "bank_id": "u-1"},
        {"event_id": "e", "event": None, "bank_id": "u-1"},
        {"event_id": "e" * 201, "event": "retain.completed", "bank_id": "u-1"},
    ],
)
async def test_signed_nonsense_is_malformed(api: Api, said: object) -> None:
    assert code_of(await deliver(api, said), 400) == "malformed_body"


async def test_signed_garbage_is_malformed_too(api: Api) -> None:
    for body in (b"", b"{", b"[" * 10_000, b"\xff"):
        headers = {"X-Hindsight-Signature-V2": signature(body)}
        assert code_of(await api.stranger.post(PATH, content=body, headers=headers), 400) == "malformed_body"


async def test_without_a_secret_there_is_no_such_path(
    redis: Redis, redis_server: RedisServer, stand_in: HindsightStandIn, bank: BankId
) -> None:
    async with run_api(settings_for(redis_server.url, stand_in.url)) as api:
        assert code_of(await deliver(api, event(bank)), 404) == "not_found"


async def test_while_redis_is_away_hindsight_is_told_to_come_again(
    stand_in: HindsightStandIn, bank: BankId
) -> None:
    async with run_api(settings_for("redis://127.0.0.1:1/0", stand_in.url, webhook_secret=SECRET)) as api:
        assert code_of(await deliver(api, event(bank)), 503) == "turns_log_unavailable"


async def test_a_bank_that_waits_for_its_operation_is_looked_at_now(
    api: Api, redis: Redis, workshop: Workshop, stand_in: HindsightStandIn, bank: BankId
) -> None:
    options = StoreOptions(3, 600, follow_s=0.05)
    storer = Storer(workshop.log, workshop.cache, workshop.hindsight, Metrics(), options)
    _, job_id, _ = await add_turn(workshop.log, bank)
    stand_in.hold_operations()
    for _ in range(5):  # the pauses between looks grow
        await pass_time(redis)
        [claim] = await workshop.claims()
        await storer.drain(claim)
    assert await workshop.claims() == [], "nothing is due for some seconds"
    stand_in.release_operations()
    checked(await deliver(api, event(bank)), 200)
    [claim] = await workshop.claims()
    await storer.drain(claim)
    if (job := await workshop.log.job(job_id)) is None or job.status != "done":
        # The event came before the operation was done: harmless, it is looked at again.
        await pass_time(redis)
        await workshop.work()
        job = await workshop.log.job(job_id)
    assert job is not None
    assert job.status == "done"


async def test_an_event_does_not_shorten_a_pause_after_a_failure_nor_steal_a_claim(
    api: Api, redis: Redis, workshop: Workshop, stand_in: HindsightStandIn, bank: BankId
) -> None:
    await add_turn(workshop.log, bank)
    [claim] = await workshop.claims()
    before = await look(redis)
    checked(await deliver(api, event(bank)), 200)
    assert await look(redis) == before
    stand_in.fail("retain", "close", times=1)
    await workshop.storer.drain(claim)
    before = await look(redis)
    checked(await deliver(api, event(bank)), 200)
    assert await look(redis) == before


async def test_events_in_any_order_and_often_leave_the_log_whole(
    api: Api, redis: Redis, workshop: Workshop, user: str, bank: BankId
) -> None:
    for number in range(5):
        checked(await api.add(user, f"text {number}"), 202)
    events = [event(bank) for _ in range(5)] + [event(bank, "consolidation.completed") for _ in range(3)]
    shuffled = [*reversed(events), *events, *events]
    replies, _ = await asyncio.gather(
        asyncio.gather(*(deliver(api, said) for said in shuffled)), workshop.work()
    )
    assert {reply.status_code for reply in replies} == {200}
    await pass_time(redis)
    await workshop.work()
    held = await look(redis)
    assert held.faults() == []
    assert held.documents == set()
