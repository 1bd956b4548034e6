"""Everybody who may call, each with a memory that only they may see; and one request for every route."""

import base64
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx
from service.adapters.keys import (
    ALL_SCOPES,
    Grant,
    Identity,
    KeyRecord,
    KeyStore,
    Scope,
    digest_of,
    new_key,
)
from service.adapters.user_tokens import UserTokens
from service.scope import BankId, bank_of

from tests.fakes.hindsight import HindsightStandIn
from tests.fakes.llm import FakeLlm
from tests.integration.conftest import Api, run_api, settings_for
from tests.support import RedisServer, serve

Json = dict[str, Any]
Target = Literal["own", "other user"]

SECRET = "a-secret-of-more-than-32-characters"
PREFIX = "app1-"
ANNE, BERT = "app1-anne", "app2-bert"
TENANTS = ("default", "another")
QUERY = "which harbour restaurant serves grilled sardines"
NOTHING = "no-such-conversation"
# Each scope alone, none, all, and what one route or another needs together.
SCOPES: tuple[frozenset[Scope], ...] = (
    *(frozenset[Scope]({scope}) for scope in sorted(ALL_SCOPES)),
    frozenset(),
    ALL_SCOPES,
    frozenset[Scope]({"add", "review"}),
    frozenset[Scope]({"admin", "review"}),
)


def mark(tenant: str, user: str) -> str:
    """A word of the one memory of a user."""
    return f"{tenant}-{user.partition('-')[2]}-quokka"


@dataclass(frozen=True)
class Person:
    """Somebody with a key: always of Anne in their tenant, however she is known."""

    tenant: str
    identity: Identity
    scopes: frozenset[Scope]
    key: str = field(repr=False)
    key_id: str = ""

    def named(self, target: Target, tokens: UserTokens) -> str:
        """What they say as `user_id` when they mean themselves, or try to be Bert."""
        user = ANNE if target == "own" else BERT
        if self.identity != "signed":
            return user
        mine = tokens.make(self.tenant, bank_of(self.tenant, ANNE), 600).text
        return mine if target == "own" else forged(mine, bank_of(self.tenant, BERT))


def forged(token: str, bank: BankId) -> str:
    """A token with another bank put into it, under its old signature."""
    head, claims, signature = token.split(".")
    read = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    changed = base64.urlsafe_b64encode(json.dumps(read | {"sub": bank}).encode()).decode().rstrip("=")
    return f"{head}.{changed}.{signature}"


@dataclass
class World:
    """The API with all of them."""

    api: Api
    client: httpx.AsyncClient
    hindsight: HindsightStandIn
    tokens: UserTokens
    people: list[Person]

    async def ask(self, person: Person, method: str, path: str, **request: Any) -> httpx.Response:
        """One request with their key."""
        headers = {"Authorization": f"Bearer {person.key}", **request.pop("headers", {})}
        return await self.client.request(method, path, headers=headers, **request)

    def of(self, *, tenant: str = "default", identity: Identity = "trusted") -> Person:
        """Who has all scopes there."""
        return next(one for one in self.everybody(tenant, identity) if one.scopes == ALL_SCOPES)

    def everybody(self, tenant: str, identity: Identity) -> Iterator[Person]:
        """All who are known that way there."""
        return (one for one in self.people if (one.tenant, one.identity) == (tenant, identity))

    def knows(self, tenant: str, user: str) -> list[str]:
        """What Hindsight has of somebody."""
        return [memory.text for memory in self.hindsight.banks[bank_of(tenant, user)].memories.values()]


@asynccontextmanager
async def permissions_world(redis_server: RedisServer) -> AsyncIterator[World]:
    """All parts, on an emptied Redis."""
    await redis_server.command("FLUSHALL")
    async with AsyncExitStack() as stack:
        hindsight = await stack.enter_async_context(HindsightStandIn())
        for tenant in TENANTS:
            for user in (ANNE, BERT):
                hindsight.add_memory(bank_of(tenant, user), f"{QUERY} {mark(tenant, user)}")
        llm_url = await stack.enter_async_context(serve(FakeLlm().app))
        settings = settings_for(
            redis_server.url,
            hindsight.url,
            min_score=0,
            token_keys=f"a:{SECRET}",
            audit_days=1,
            gateway_model="openai/fake-model",
            gateway_api_key="key-of-the-upstream",
            gateway_base_url=f"{llm_url}/v1",
        )
        async with KeyStore.from_settings(settings) as store:
            people = [person async for person in _make(store)]
        api = await stack.enter_async_context(run_api(settings))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=api.url, timeout=30))
        yield World(api, client, hindsight, UserTokens({"a": SECRET}), people)


async def _make(store: KeyStore) -> AsyncIterator[Person]:
    # Past the API: it makes no key without scopes, and none for operators that is one user's.
    for tenant in TENANTS:
        known: tuple[tuple[Identity, BankId | None, str], ...] = (
            ("trusted", None, PREFIX),
            ("signed", None, ""),
            ("bound", bank_of(tenant, ANNE), ""),
        )
        for identity, bank, prefix in known:
            for scopes in SCOPES:
                key, key_id = new_key()
                grant = Grant(tenant, tuple(sorted(scopes)), identity, bank, prefix)
                await store.add(KeyRecord(key_id, "n", grant, 0, 1, digest_of(key, grant, b"")))
                yield Person(tenant, identity, scopes, key, key_id)


@dataclass(frozen=True)
class Entry:
    """What a route wants and does.

    `needs` are the scopes that open it, all together. `about` makes the request that names a user, `plain`
    that of a route about no user. `done` is the answer's status; `shows`: it holds the memory of whom it is
    about. `soft` are the identities that get an answer without memory, not a refusal, for another user.
    """

    needs: frozenset[Scope]
    about: Callable[[str], Json] | None = None
    plain: Callable[[], Json] = dict
    done: int = 200
    shows: bool = False
    soft: frozenset[Identity] = frozenset()


def _body(**fields: str) -> Callable[[str], Json]:
    return lambda user: {"json": {"user_id": user, **fields}}


def _knowledge(user: str) -> Json:
    condition = {"name": "user_id", "comparison_operator": "is", "value": user}
    return {"json": {"query": QUERY, "metadata_condition": {"conditions": [condition]}}}


def _chat(user: str) -> Json:
    return {
        "json": {
            "model": "memory",
            "messages": [{"role": "user", "content": QUERY}],
            "user": user,
            "memory": {"store": False},
        }
    }


def _needs(*scopes: Scope) -> frozenset[Scope]:
    return frozenset(scopes)


ENTRIES: dict[tuple[str, str], Entry] = {
    ("POST", "/memory/recall"): Entry(_needs("recall"), _body(query=QUERY), shows=True),
    ("POST", "/memory/add"): Entry(_needs("add"), _body(user_message="an intruder was here"), done=202),
    ("POST", "/memory/list"): Entry(_needs("review"), _body(), shows=True),
    ("POST", "/memory/correct"): Entry(
        _needs("review"), _body(memory_id="00000000-0000-0000-0000-000000000000", text="x"), done=404
    ),
    ("GET", "/memory/export"): Entry(
        _needs("review"), lambda user: {"headers": {"X-Memory-User-Id": user}}, shows=True
    ),
    ("POST", "/memory/import"): Entry(
        _needs("add", "review"), lambda user: {"params": {"user_id": user}, "content": b""}, done=202
    ),
    ("POST", "/memory/forget"): Entry(_needs("forget"), _body(conversation_id=NOTHING)),
    ("POST", "/memory/reflect"): Entry(_needs("recall"), _body(query=QUERY), shows=True),
    ("POST", "/dify/knowledge/retrieval"): Entry(
        _needs("recall"), _knowledge, shows=True, soft=frozenset({"trusted", "signed", "bound"})
    ),
    ("POST", "/v1/chat/completions"): Entry(_needs("chat"), _chat, shows=True, soft=frozenset({"signed"})),
    ("GET", "/v1/models"): Entry(_needs("chat")),
    ("GET", "/v1/models/{model:path}"): Entry(_needs("chat"), done=404),
    ("GET", "/memory/jobs/{job_id}"): Entry(_needs("add"), done=404),
    ("GET", "/admin/dead-letters"): Entry(_needs("admin")),
    ("POST", "/admin/dead-letters/replay"): Entry(_needs("admin"), plain=lambda: {"json": {"all": "true"}}),
    ("POST", "/admin/dead-letters/drop"): Entry(_needs("admin"), plain=lambda: {"json": {"all": "true"}}),
    ("GET", "/admin/diagnosis"): Entry(_needs("admin")),
    ("GET", "/admin/audit"): Entry(_needs("admin")),
    ("GET", "/admin/keys"): Entry(_needs("admin")),
    ("POST", "/admin/keys"): Entry(
        _needs("admin"), plain=lambda: {"json": {"name": "n", "scopes": "admin"}}, done=201
    ),
    ("POST", "/admin/keys/rotate"): Entry(_needs("admin"), plain=lambda: {"json": {"id": "none"}}, done=404),
    ("POST", "/admin/keys/expire"): Entry(
        _needs("admin"), plain=lambda: {"json": {"id": "none", "in_s": 60}}, done=404
    ),
    ("POST", "/admin/keys/revoke"): Entry(_needs("admin"), plain=lambda: {"json": {"id": "none"}}, done=404),
    ("POST", "/admin/user-tokens"): Entry(_needs("admin"), _body(), done=201),
    ("POST", "/admin/me-links"): Entry(_needs("admin", "review", "forget"), _body(), done=201),
    ("POST", "/admin/me-links/end"): Entry(_needs("admin"), _body()),
}
