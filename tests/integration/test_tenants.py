"""One process, several tenants with contrary policies: nobody is served by another's."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from redis.asyncio import Redis
from service.adapters.keys import KeyStore
from service.adapters.spending import Spending
from service.adapters.turns import NewTurn
from service.memory.fallback import Fallback
from service.memory.keys import Keys, NewKey
from service.scope import BankId, bank_of, conversation_of, document_of, tenant_mark
from service.settings import Settings

from tests.fakes.hindsight import HindsightStandIn
from tests.fakes.hindsight_store import Fact
from tests.fakes.llm import FakeLlm
from tests.integration.conftest import Api, Workshop, open_workshop, run_api, settings_for
from tests.integration.edge import checked, texts_of
from tests.support import RedisServer, serve, wait_until

pytestmark = [
    pytest.mark.anyio,
    # Of a provider that litellm loads at the first call.
    pytest.mark.filterwarnings("ignore:Items? .* on TypedDict class:UserWarning"),
]

POLICY = """\
version: 1
tenants:
  acme:
    importance_threshold: 0.2
    redaction: {phone: keep}
    kinds:
      - name: pets
      - name: task_state
  zeta:
    importance_threshold: 0.9
    redaction: {phone: drop}
    llm_daily_tokens: 10
    kinds:
      - name: preference
"""
TENANTS = ("acme", "zeta", "house")
SECRET = "a-secret-of-more-than-32-characters"


@dataclass
class World:
    """An API and a worker on one policy file, and a client of each tenant; `house` is not named in it."""

    api: Api
    workshop: Workshop
    clients: dict[str, httpx.AsyncClient]

    async def post(self, tenant: str, path: str, **fields: object) -> httpx.Response:
        return await self.clients[tenant].post(path, json={"user_id": "anne", **fields})

    async def say(self, tenant: str, text: str) -> None:
        checked(await self.post(tenant, "/memory/add", user_message=text), 202)

    async def waiting(self, tenant: str) -> list[str]:
        return [turn.text for turn in await self.workshop.log.pending(anne(tenant))]

    async def recalled(self, tenant: str, query: str) -> set[str]:
        return set(texts_of(checked(await self.post(tenant, "/memory/recall", query=query), 200)))


def anne(tenant: str) -> BankId:
    """The bank of the user of that name; there is one of each tenant."""
    return bank_of(tenant, "anne")


def rewrite(policy_file: Path, old: str, new: str) -> None:
    """Change the policy for whoever starts from now on."""
    policy_file.write_text(POLICY.replace(old, new), "utf-8")


@pytest.fixture
def policy_file(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY, "utf-8")
    return path


@pytest.fixture
async def settings(redis_server: RedisServer, stand_in: HindsightStandIn, policy_file: Path) -> Settings:
    await redis_server.command("FLUSHALL")
    return settings_for(
        redis_server.url,
        stand_in.url,
        policy_file=policy_file,
        tenant="house",
        extraction="hindsight",
        min_score=0,
        token_keys=f"a:{SECRET}",
    )


@asynccontextmanager
async def world_of(settings: Settings) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(KeyStore.from_settings(settings))
        ask = NewKey.read({"name": "n", "scopes": "recall,add,review,forget,chat,admin"})
        keys = {
            tenant: (await Keys(store, settings, tenant=None).create(ask, tenant))[0]
            for tenant in ("acme", "zeta")
        }
        api = await stack.enter_async_context(run_api(settings))
        workshop = await stack.enter_async_context(open_workshop(settings))
        clients = {"house": api.client}
        for tenant, key in keys.items():
            client = httpx.AsyncClient(base_url=api.url, headers={"Authorization": f"Bearer {key}"})
            clients[tenant] = await stack.enter_async_context(client)
        world = World(api, workshop, clients)

        async def are_known() -> bool:
            replies = [await world.post(tenant, "/memory/list") for tenant in TENANTS]
            return all(reply.status_code == 200 for reply in replies)

        await wait_until(are_known, "the keys are known")
        yield world


@pytest.fixture
async def world(settings: Settings) -> AsyncIterator[World]:
    async with world_of(settings) as made:
        yield made


# --- Sensitive data -------------------------------------------------------------------------------------
SAID = "我住上海。我的手机号是13800138000。"
WRITTEN = {
    "acme": "我住上海。我的手机号是13800138000。",
    "zeta": "我住上海。",
    "house": "我住上海。我的手机号是[phone]。",
}


async def test_what_is_said_is_redacted_by_its_tenants_policy(
    world: World, stand_in: HindsightStandIn
) -> None:
    for tenant in TENANTS:
        await world.say(tenant, SAID)
        assert await world.waiting(tenant) == [f"用户：{WRITTEN[tenant]}"]
    await world.workshop.work()
    for tenant in TENANTS:
        [document] = stand_in.banks[anne(tenant)].documents.values()
        assert document.text == f"用户：{WRITTEN[tenant]}"


async def test_so_is_what_is_corrected_imported_and_asked(world: World, stand_in: HindsightStandIn) -> None:
    line = {"type": "memory", "text": SAID, "kind": "pets", "said_at": "", "tags": [], "metadata": {}}
    query = "谁的手机号是13800138000？"
    for tenant in TENANTS:
        memory = stand_in.add_memory(anne(tenant), "Anne is in Rome.", document_id="d")
        reply = await world.post(tenant, "/memory/correct", memory_id=memory.id, text=SAID)
        assert checked(reply, 200)["memory"]["text"] == WRITTEN[tenant]
        found = checked(await world.post(tenant, "/memory/list", query="13800138000"), 200)["memories"]
        assert len(found) == (tenant != "zeta")
        reply = await world.clients[tenant].post(
            "/memory/import", params={"user_id": "anne"}, content=json.dumps(line).encode()
        )
        assert checked(reply, 202)["accepted"] == 1
        [turn] = await world.workshop.log.pending(anne(tenant))
        assert turn.text == WRITTEN[tenant]
        # Of the kinds that are kept, `pets` is acme's alone.
        assert ("memory_type:pets" in turn.tags) is (tenant == "acme")
        await world.post(tenant, "/memory/recall", query=query, fresh=True)
        await world.post(tenant, "/memory/reflect", query=query)
        for way in ("recall", "reflect"):
            asked = stand_in.requests_for(way)[-1].body["query"]
            assert ("13800138000" in asked) is (tenant == "acme")
            assert ("[phone]" in asked) is (tenant != "acme")


async def test_so_is_what_is_said_to_a_model_with_memory(settings: Settings) -> None:
    llm = FakeLlm()
    async with serve(llm.app) as url:
        gateway = {
            "gateway_model": "openai/fake-model",
            "gateway_api_key": "key-of-tests",
            "gateway_base_url": f"{url}/v1",
        }
        with_model = Settings.model_validate(settings.model_dump(exclude_unset=True) | gateway)
        async with world_of(with_model) as world:
            for tenant in TENANTS:
                body = {
                    "model": "memory",
                    "user": "anne",
                    "messages": [{"role": "user", "content": SAID}],
                }
                reply = await world.clients[tenant].post("/v1/chat/completions", json=body)
                assert reply.status_code == 200, reply.text
                [text] = await world.waiting(tenant)
                assert text.startswith(f"用户：{WRITTEN[tenant]}")
                assert ("13800138000" in text) is (tenant == "acme")


# --- What is kept ---------------------------------------------------------------------------------------
FACTS = (
    Fact("Anne keeps three cats", tags=["memory_type:pets", "importance:0.3"]),
    Fact("Anne keeps it short", tags=["memory_type:preference", "importance:0.9"]),
    Fact("Anne keeps to tea", tags=["memory_type:preference", "importance:0.5"]),
    Fact("Anne keeps a diary", tags=["memory_type:task_state", "importance:0.3"]),
)
KEPT = {
    "acme": {"Anne keeps three cats", "Anne keeps a diary"},
    "zeta": {"Anne keeps it short"},
    "house": {"Anne keeps it short", "Anne keeps to tea"},
}


async def test_what_is_extracted_is_kept_by_its_tenants_policy(
    world: World, stand_in: HindsightStandIn
) -> None:
    stand_in.extract_with({"keeps": FACTS})
    for tenant in TENANTS:
        await world.say(tenant, "Anne keeps things")
    await world.workshop.work()
    for tenant in TENANTS:
        bank = stand_in.banks[anne(tenant)]
        assert {memory.text for memory in bank.memories.values() if memory.state == "valid"} == KEPT[tenant]
        assert await world.recalled(tenant, "What does Anne keep?") == KEPT[tenant]


async def test_only_kinds_of_its_own_tenant_are_recalled(world: World, stand_in: HindsightStandIn) -> None:
    """Also where another policy held when it was stored; by every way to ask."""
    kinds = {
        "acme": {"Anne keeps three cats", "Anne keeps a diary"},
        "zeta": {"Anne keeps it short", "Anne keeps to tea"},
        "house": {"Anne keeps it short", "Anne keeps to tea", "Anne keeps a diary"},
    }
    for tenant in TENANTS:
        for fact in FACTS:
            stand_in.add_memory(anne(tenant), fact.text, tags=list(fact.tags))
    for tenant in TENANTS:
        for _ in range(2):
            assert await world.recalled(tenant, "What does Anne keep?") == kinds[tenant]
        condition = {"name": "user_id", "comparison_operator": "is", "value": "anne"}
        reply = await world.clients[tenant].post(
            "/dify/knowledge/retrieval",
            json={
                "query": "What does Anne keep?",
                "knowledge_id": "k",
                "retrieval_setting": {"top_k": 10, "score_threshold": 0},
                "metadata_condition": {"conditions": [condition]},
            },
        )
        assert {record["content"] for record in checked(reply, 200)["records"]} == kinds[tenant]


async def test_a_page_shows_the_kinds_and_the_retention_of_its_tenant(
    settings: Settings, policy_file: Path
) -> None:
    rewrite(policy_file, "  acme:\n", "  acme:\n    retention_days: 17\n")
    shown = {"acme": "17", "zeta": "90"}
    async with world_of(settings) as world:
        for tenant, days in shown.items():
            reply = await world.clients[tenant].post("/admin/me-links", json={"user_id": "anne"})
            link = checked(reply, 201)["url"]
            async with httpx.AsyncClient(follow_redirects=True) as browser:
                path = httpx.URL(link).copy_with(
                    host="127.0.0.1", port=httpx.URL(world.api.url).port, scheme="http"
                )
                await browser.get(path)
                page = (await browser.get(f"{world.api.url}/me", params={"lang": "en"})).text
            assert f"{days} days" in page
            assert ('value="pets"' in page) is (tenant == "acme")
            assert ('value="preference"' in page) is (tenant == "zeta")


# --- Banks in Hindsight ---------------------------------------------------------------------------------
def kinds_in(stand_in: HindsightStandIn, tenant: str) -> list[str]:
    """The kinds that Hindsight is told to label facts of a bank with."""
    kinds, _ = stand_in.banks[anne(tenant)].config["entity_labels"]
    return [value["value"] for value in kinds["values"]]


async def test_a_bank_is_labelled_and_marked_for_its_tenant(world: World, stand_in: HindsightStandIn) -> None:
    for tenant in TENANTS:
        await world.say(tenant, "I like tea")
    await world.workshop.work()
    assert kinds_in(stand_in, "acme") == ["pets", "task_state"]
    assert kinds_in(stand_in, "zeta") == ["preference"]
    assert kinds_in(stand_in, "house") == ["user_profile", "preference", "task_state"]
    assert {stand_in.banks[anne(tenant)].name for tenant in TENANTS} == set(map(tenant_mark, TENANTS))
    assert not any(tenant in tenant_mark(tenant) for tenant in TENANTS)


async def test_a_bank_gets_its_mark_on_the_way_past_redis_too(
    world: World, stand_in: HindsightStandIn, settings: Settings
) -> None:
    bank = anne("acme")
    conversation = conversation_of(bank, "")
    turn = NewTurn(document_of(bank, conversation, "t", 0), "I like tea")
    await Fallback.from_settings(settings, world.workshop.hindsight).send("acme", bank, conversation, [turn])
    assert stand_in.banks[bank].name == tenant_mark("acme")
    assert kinds_in(stand_in, "acme") == ["pets", "task_state"]


def changes(stand_in: HindsightStandIn) -> int:
    """How often a bank was configured; that it is looked at is none."""
    return sum(one.method == "PATCH" for one in stand_in.requests_for("bank_config"))


async def test_a_changed_policy_reaches_the_banks_of_its_tenant_and_no_others(
    settings: Settings, stand_in: HindsightStandIn, policy_file: Path
) -> None:
    async with world_of(settings) as world:
        for tenant in TENANTS:
            await world.say(tenant, "I like tea")
        await world.workshop.work()
    made = changes(stand_in)
    rewrite(policy_file, "name: pets", "name: plants")
    async with world_of(settings) as world:
        for tenant in TENANTS:
            await world.say(tenant, "I like coffee")
        await world.workshop.work()
        assert kinds_in(stand_in, "acme") == ["plants", "task_state"]
        assert kinds_in(stand_in, "zeta") == ["preference"]
        assert changes(stand_in) == made + 1


async def test_what_an_earlier_mode_has_set_is_cleared(
    settings: Settings, stand_in: HindsightStandIn
) -> None:
    async with world_of(settings) as world:
        await world.say("acme", "I like tea")
        await world.workshop.work()
    async with world_of(settings.model_copy(update={"extraction": "none"})) as world:
        await world.say("acme", "I like coffee")
        await world.workshop.work()
    config = stand_in.banks[anne("acme")].config
    assert config["retain_extraction_mode"] == "chunks"
    assert not {"entity_labels", "default_observation_scopes"} & config.keys()
    assert stand_in.banks[anne("acme")].name == tenant_mark("acme")


async def test_turns_whose_job_is_forgotten_mark_no_bank(
    world: World, stand_in: HindsightStandIn, settings: Settings
) -> None:
    """Nothing says whose they are then, and a wrong mark would stay."""
    await world.say("acme", "I like tea")
    await world.workshop.work()
    await world.say("acme", "I like coffee")
    await world.say("zeta", "I like juice")
    async with Redis.from_url(settings.redis_url) as redis:
        for key in await redis.keys("mem:job:*"):
            await redis.delete(key)
    await world.workshop.work()
    assert stand_in.banks[anne("acme")].name == tenant_mark("acme")
    assert kinds_in(stand_in, "acme") == ["pets", "task_state"]
    assert stand_in.banks[anne("zeta")].name == anne("zeta")
    assert len(stand_in.banks[anne("zeta")].documents) == 1


# --- Cached answers and costs ---------------------------------------------------------------------------
async def test_an_answer_from_before_a_policy_changed_is_not_served(
    settings: Settings, stand_in: HindsightStandIn, policy_file: Path
) -> None:
    for fact in FACTS:
        stand_in.add_memory(anne("acme"), fact.text, tags=list(fact.tags))
    async with world_of(settings) as world:
        assert await world.recalled("acme", "What does Anne keep?") == KEPT["acme"]
    rewrite(policy_file, "name: pets", "name: plants")
    async with world_of(settings) as world:
        assert await world.recalled("acme", "What does Anne keep?") == {"Anne keeps a diary"}


async def test_our_own_extraction_follows_the_tenant_in_kinds_and_costs(
    settings: Settings, stand_in: HindsightStandIn
) -> None:
    llm = FakeLlm()
    async with serve(llm.app) as url:
        with_llm = Settings.model_validate(
            settings.model_dump(exclude_unset=True)
            | {
                "extraction": "litellm",
                "llm_model": "openai/fake-model",
                "llm_api_key": "key-of-tests",
                "llm_base_url": f"{url}/v1",
            }
        )
        async with world_of(with_llm) as world, Spending.from_settings(with_llm) as spending:
            for tenant in TENANTS:
                await spending.note(tenant, usd=0, tokens=1_000)
                await world.say(tenant, "我在杭州做后端")

            async def are_stored() -> bool:
                await world.workshop.work()
                return [len(await world.waiting(tenant)) for tenant in TENANTS] == [0, 1, 0]

            # Loading litellm takes its time.
            await wait_until(are_stored, "all but one are stored", timeout_s=60)
            # A spent budget holds up its tenant alone.
            assert len(llm.calls_for("memories")) == 2
            [house], [acme] = (stand_in.banks[anne(tenant)].memories.values() for tenant in ("house", "acme"))
            assert "memory_type:user_profile" in house.tags
            # Which is no kind of acme's: its model is offered others.
            assert {"memory_type:pets", "memory_type:task_state"} & set(acme.tags)
