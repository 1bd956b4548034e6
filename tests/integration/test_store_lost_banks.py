"""A bank that Hindsight has lost, or has as it was once, is made anew before the next turn is stored."""

from collections.abc import AsyncIterator

import pytest
from service.scope import bank_of, tenant_mark
from service.settings import Settings

from tests.fakes.hindsight import HindsightStandIn
from tests.fakes.hindsight_store import Bank
from tests.integration.conftest import Api, Workshop, open_workshop, run_api, settings_for
from tests.support import RedisServer

pytestmark = pytest.mark.anyio

ANNE = bank_of("acme", "anne")


@pytest.fixture
async def settings(redis_server: RedisServer, stand_in: HindsightStandIn) -> Settings:
    """Texts are stored as they come, which their banks have to be told."""
    await redis_server.command("FLUSHALL")
    return settings_for(redis_server.url, stand_in.url, tenant="acme", extraction="none")


@pytest.fixture
async def api(settings: Settings) -> AsyncIterator[Api]:
    """The API of those settings."""
    async with run_api(settings) as running:
        yield running


@pytest.fixture
async def workshop(settings: Settings) -> AsyncIterator[Workshop]:
    """The worker of those settings."""
    async with open_workshop(settings) as parts:
        yield parts


def assert_is_ours(bank: Bank) -> None:
    assert bank.name == tenant_mark("acme")
    assert bank.config["retain_extraction_mode"] == "chunks"
    assert bank.config["enable_observations"] is False
    assert bank.config["enable_graph_retrieval"] is False


def asked(stand_in: HindsightStandIn) -> list[tuple[str, str]]:
    """What of banks was asked for or made."""
    return [(one.operation, one.method) for one in stand_in.requests if one.operation.startswith("bank")]


async def test_a_bank_that_is_as_it_was_made_is_looked_at_and_left_alone(
    api: Api, stand_in: HindsightStandIn, workshop: Workshop
) -> None:
    await api.add("anne", "I like tea.")
    await workshop.work()
    assert_is_ours(stand_in.banks[ANNE])
    before = len(asked(stand_in))
    await api.add("anne", "I like coffee.")
    await workshop.work()
    assert asked(stand_in)[before:] == [("bank_config", "GET")]


async def test_a_bank_that_hindsight_has_lost_is_made_with_all_it_has_to_have(
    api: Api, stand_in: HindsightStandIn, workshop: Workshop
) -> None:
    await api.add("anne", "I like tea.")
    await workshop.work()
    stand_in.store.delete_bank(ANNE)
    await api.add("anne", "I like coffee.")
    await workshop.work()
    assert_is_ours(stand_in.banks[ANNE])
    assert stand_in.banks[ANNE].texts == ["User: I like coffee."]


@pytest.mark.parametrize(
    "changed",
    [
        {"retain_extraction_mode": "concise"},
        {"retain_extraction_mode": None},
        {"enable_observations": True},
        {"entity_labels": [{"key": "memory_type"}]},
        {"enable_graph_retrieval": True},
    ],
)
async def test_a_bank_that_is_back_at_what_it_was_once_is_made_anew(
    api: Api, stand_in: HindsightStandIn, workshop: Workshop, changed: dict[str, object]
) -> None:
    await api.add("anne", "I like tea.")
    await workshop.work()
    bank = stand_in.banks[ANNE]
    bank.config.update(changed)
    bank.name = ANNE
    await api.add("anne", "I like coffee.")
    await workshop.work()
    assert_is_ours(bank)
    assert not bank.config.get("entity_labels")


async def test_a_bank_that_cannot_be_looked_at_costs_no_turn(
    api: Api, stand_in: HindsightStandIn, workshop: Workshop
) -> None:
    await api.add("anne", "I like tea.")
    await workshop.work()
    # A gateway lets banks be made and not read.
    stand_in.fail("bank_config", "status", status=403, times=1)
    await api.add("anne", "I like coffee.")
    await workshop.work()
    assert stand_in.banks[ANNE].texts == ["User: I like tea.", "User: I like coffee."]
    stand_in.fail("bank_config", "status", status=503, times=1)
    job = (await api.add("anne", "I like milk.")).json()["job_id"]
    await workshop.work()
    assert (await api.job(job))["status"] == "waiting"
    assert len(await workshop.log.pending(ANNE)) == 1
