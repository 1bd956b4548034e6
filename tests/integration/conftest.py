"""The API in this process, against the real Redis-compatible server and a stand-in for Hindsight."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import httpx
import pytest
from fastapi import FastAPI
from service.adapters.cache import RecallCache
from service.adapters.hindsight import HindsightAdapter
from service.adapters.turns import Claim, TurnsLog
from service.app import create_app
from service.memory.extractors import open_extractors
from service.memory.policies import Policies
from service.memory.store import StoreOptions, Storer
from service.metrics import Metrics
from service.policy.bank_config import bank_config
from service.settings import Settings

from tests.fakes.hindsight import HindsightStandIn
from tests.support import RedisServer, serve

KEY = "test-key-0123456789"


@dataclass
class Api:
    """A running API: `client` sends the key, `stranger` none."""

    app: FastAPI
    url: str
    client: httpx.AsyncClient
    stranger: httpx.AsyncClient
    settings: Settings

    async def add(self, user: str, message: str, answer: str = "", **fields: str) -> httpx.Response:
        """`POST /memory/add` as a form, the way the templates do it."""
        return await self.client.post(
            "/memory/add",
            data={"user_id": user, "user_message": message, "assistant_message": answer, **fields},
        )

    async def recall(self, user: str, query: str, **fields: str) -> httpx.Response:
        """`POST /memory/recall` as a form."""
        return await self.client.post("/memory/recall", data={"user_id": user, "query": query, **fields})

    async def job(self, job_id: str, wait_s: float = 0) -> dict[str, object]:
        """State of a job."""
        reply = await self.client.get(f"/memory/jobs/{job_id}", params={"wait_s": wait_s})
        assert reply.status_code == 200, reply.text
        state: dict[str, object] = reply.json()
        return state


@pytest.fixture
async def stand_in() -> AsyncIterator[HindsightStandIn]:
    """A Hindsight whose state and faults the test controls."""
    async with HindsightStandIn() as server:
        yield server


@pytest.fixture
async def settings(redis_server: RedisServer, stand_in: HindsightStandIn) -> Settings:
    """Settings for the parts of this test; turns are due at once. The server is emptied."""
    await redis_server.command("FLUSHALL")
    return settings_for(redis_server.url, stand_in.url)


def settings_for(redis_url: str, hindsight_url: str, **changes: object) -> Settings:
    """Settings for tests: no debounce, quick time-outs, patience with the cache on a busy machine."""
    fields: dict[str, object] = {
        "api_key": KEY,
        "redis_url": redis_url,
        "hindsight_url": hindsight_url,
        "quiet_s": 0,
        "retain_timeout_s": 2,
        "max_attempts": 3,
        "cache_patience_ms": 1000,
        **changes,
    }
    return Settings.model_validate(fields)


@pytest.fixture
async def api(settings: Settings) -> AsyncIterator[Api]:
    """The API on a loopback port."""
    async with run_api(settings) as running:
        yield running


class run_api:  # noqa: N801 - used as `async with run_api(settings)`
    """An API with the given settings."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def __aenter__(self) -> Api:
        """Start it."""
        self._stack = AsyncExitStack()
        app = create_app(self._settings)
        url = await self._stack.enter_async_context(serve(app))
        client = await self._stack.enter_async_context(
            httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {KEY}"}, timeout=30)
        )
        stranger = await self._stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=30))
        return Api(app, url, client, stranger, self._settings)

    async def __aexit__(self, *exc_info: object) -> None:
        """Stop it."""
        await self._stack.aclose()


@dataclass
class Workshop:
    """The worker's parts without arq, so that a test decides when work is done."""

    log: TurnsLog
    cache: RecallCache
    hindsight: HindsightAdapter
    storer: Storer

    async def claims(self) -> list[Claim]:
        """What is due now."""
        return await self.log.claim(1000)

    async def work(self) -> int:
        """Do all that is due now; how many banks were."""
        claims = await self.claims()
        for claim in claims:
            await self.storer.drain(claim)
        return len(claims)


@pytest.fixture
async def workshop(settings: Settings) -> AsyncIterator[Workshop]:
    """A worker's parts on the settings of this test."""
    async with open_workshop(settings) as parts:
        yield parts


class open_workshop:  # noqa: N801 - used as `async with open_workshop(settings)`
    """A worker's parts on the given settings."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def __aenter__(self) -> Workshop:
        """Open them."""
        self._stack = AsyncExitStack()
        log = await self._stack.enter_async_context(TurnsLog.from_settings(self._settings))
        cache = await self._stack.enter_async_context(RecallCache.from_settings(self._settings))
        policies, mode, metrics = (
            Policies.from_settings(self._settings),
            self._settings.extraction_mode,
            Metrics(),
        )
        config, configs = bank_config(mode, policies.file.default.keep), policies.bank_configs(mode)
        hindsight = await self._stack.enter_async_context(
            HindsightAdapter.from_settings(self._settings, config, configs)
        )
        extractors = await open_extractors(self._stack, self._settings, policies, log, hindsight, metrics)
        options = StoreOptions(self._settings.max_attempts, self._settings.job_ttl_s)
        return Workshop(log, cache, hindsight, Storer(log, cache, hindsight, metrics, options, extractors))

    async def __aexit__(self, *exc_info: object) -> None:
        """Close them."""
        await self._stack.aclose()
