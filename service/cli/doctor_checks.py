"""The doctor's checks: each asks one thing, changes nothing, and ends in findings, never in an exception."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import urlsplit

from service.cli.doctor_client import Answer, Finding, ServiceClient, Trouble, refusal
from service.policy.dify_import import import_faults, server_url_of
from service.policy.dify_network import address_faults, is_inner_name

TESTED_HINDSIGHT: Final = "1.1"
_SLOW_MS: Final = 500
_OVERDUE_S: Final = 120
_CLOCK_OFF_S: Final = 60
# What a request without a body is answered tells whether the key may do it, and changes nothing.
_PROBES: Final[Sequence[tuple[str, str, str]]] = (
    ("recall", "POST", "/memory/recall"),
    ("add", "POST", "/memory/add"),
    ("review", "POST", "/memory/list"),
    ("forget", "POST", "/memory/forget"),
    ("chat", "GET", "/v1/models"),
    ("admin", "GET", "/admin/diagnosis"),
)
_NEEDED: Final = ("recall", "add")
# Faults of an address that the service's own deployment cannot help: they may hold or not, by where Dify is.
_DEPENDS: Final = ("localhost", "private")

Check = Callable[[], Awaitable[list[Finding]]]


async def reach(client: ServiceClient) -> list[Finding]:
    """Whether the memory service answers at this address."""
    answer = await client.ask("GET", "/health/live", has_key=False)
    if answer.status != 200 or answer.data.get("status") != "alive":
        kind = answer.headers.get("content-type", "?")
        raise Trouble("not_ours", place=answer.place, status=str(answer.status), type=kind)
    ms = {"ms": f"{answer.ms:.0f}"}
    if answer.ms > _SLOW_MS:
        return [Finding("reach", "warn", "slow", ms), *_clock(answer)]
    return [Finding("reach", "ok", "reached", ms), *_clock(answer)]


async def ready(client: ServiceClient) -> list[Finding]:
    """Redis, Hindsight and the worker, as the service sees them."""
    answer = await client.ask_for("GET", "/health/ready", 200, 503, has_key=False)
    parts = _mapping(answer.data.get("parts"))
    log, hindsight = _mapping(parts.get("turns_log")), _mapping(parts.get("hindsight"))
    findings = [
        Finding("ready", "fail", code)
        for code, part in (("redis_down", log), ("hindsight_down", hindsight))
        if not part.get("ok")
    ]
    if log.get("dead_letters"):
        findings.append(Finding("ready", "warn", "dead_letters", {"count": str(log["dead_letters"])}))
    reasons = answer.data.get("reasons")
    reasons = reasons if isinstance(reasons, list) else []
    if "queue_full" in reasons:
        findings.append(Finding("ready", "fail", "queue_full"))
    if "not_durable" in reasons:
        findings.append(Finding("ready", "fail", "not_durable"))
    if "cache_down" in reasons:
        findings.append(Finding("ready", "warn", "cache_down"))
    findings = findings or [Finding("ready", "ok", "parts_ok")]
    return [*findings, _worker(log, is_stuck="queue_stuck" in reasons)] if log.get("ok") else findings


async def key(client: ServiceClient, secret: str) -> list[Finding]:
    """Whether the key is known and what it may do."""
    if not secret:
        return [Finding("key", "fail", "key_missing")]
    if not secret.isascii() or not secret.isprintable() or secret != secret.strip():
        return [Finding("key", "fail", "key_odd")]
    may: list[str] = []
    may_not: list[str] = []
    for scope, method, path in _PROBES:
        answer = await client.ask(method, path)
        if answer.status == 401:
            return [Finding("key", "fail", "key_refused")]
        if answer.status >= 500:
            raise refusal(answer)
        if answer.status == 403:
            may_not.append(scope)
        elif answer.status != 404:
            may.append(scope)
    facts = {"may": ", ".join(may) or "—", "may_not": ", ".join(may_not) or "—"}
    if not set(_NEEDED) <= set(may):
        missing = ", ".join(scope for scope in _NEEDED if scope not in may)
        return [Finding("key", "fail", "key_useless", {"may_not": missing})]
    return [Finding("key", "ok", "key_partial" if may_not else "key_ok", facts)]


async def document(client: ServiceClient, dify_url: str) -> list[Finding]:
    """Whether Dify imports the tool document, and reaches the address in it (or `dify_url`, if given)."""
    answer = await client.ask_for("GET", "/dify/openapi.json", 200, has_key=False)
    faults = import_faults(answer.data)
    if faults:
        told = "; ".join(f"{fault.code} {fault.place}".strip() for fault in faults[:5])
        findings = [Finding("document", "fail", "document_bad", {"faults": told})]
    else:
        findings = [Finding("document", "ok", "document_ok", {"tools": str(len(answer.data["paths"]))})]
    url = dify_url or server_url_of(answer.data)
    return [*findings, *network(url)] if url else findings


def network(url: str) -> list[Finding]:
    """Whether Dify's nodes get to `url`, as far as it can be told from the address."""
    faults = address_faults(url)
    if faults == ["not_a_url"]:
        return [Finding("network", "fail", "network_not_a_url", {"url": url})]
    parts = urlsplit(url)
    facts = {"url": url, "host": parts.hostname or "", "port": str(parts.port or 80)}
    findings = [
        Finding("network", "warn" if fault in _DEPENDS else "fail", f"network_{fault}", facts)
        for fault in faults
    ]
    if not findings and is_inner_name(url):
        findings = [Finding("network", "warn", "network_inner", facts)]
    return findings or [Finding("network", "ok", "network_ok", facts)]


async def knowledge(client: ServiceClient) -> list[Finding]:
    """The check Dify makes when an external knowledge base is registered."""
    answer = await client.ask("POST", "/dify/knowledge/retrieval")
    if answer.status == 404:
        return [Finding("knowledge", "warn", "knowledge_missing")]
    if answer.status != 200:
        raise refusal(answer)
    return [Finding("knowledge", "ok", "knowledge_ok", {"url": f"{client.base_url}/dify/knowledge"})]


async def diagnosis(client: ServiceClient) -> list[Finding]:
    """What the service tells of its Redis, its Hindsight and its settings."""
    answer = await client.ask("GET", "/admin/diagnosis")
    if answer.status in (403, 404):
        code = "not_allowed" if answer.status == 403 else "not_there"
        return [Finding(check, "skipped", code) for check in ("storage", "hindsight", "settings")]
    if answer.status != 200:
        raise refusal(answer)
    told = answer.data
    return [
        *_storage(_mapping(told.get("turns_redis"))),
        *_hindsight(_mapping(told.get("hindsight"))),
        *_settings(_mapping(told.get("settings"))),
    ]


async def guarded(check: str, run: Check) -> list[Finding]:
    """The findings of a check; one that cannot be made is one finding."""
    try:
        return await run()
    except Trouble as trouble:
        return [trouble.finding(check)]


def _clock(answer: Answer) -> list[Finding]:
    try:
        theirs = parsedate_to_datetime(answer.headers.get("date", ""))
    except ValueError:
        return [Finding("clock", "skipped", "clock_unknown")]
    theirs = theirs if theirs.tzinfo else theirs.replace(tzinfo=UTC)
    off_s = abs((datetime.now(UTC) - theirs).total_seconds())
    facts = {"seconds": f"{off_s:.0f}"}
    if off_s > _CLOCK_OFF_S:
        return [Finding("clock", "warn", "clock_off", facts)]
    return [Finding("clock", "ok", "clock_ok", facts)]


def _worker(log: Mapping[str, Any], *, is_stuck: bool) -> Finding:
    if not log.get("worker"):
        return Finding("worker", "fail", "worker_dead")
    overdue_s = log.get("overdue_s")
    if isinstance(overdue_s, int | float) and overdue_s >= _OVERDUE_S:
        return Finding("worker", "fail", "worker_stuck", {"seconds": f"{overdue_s:.0f}"})
    if is_stuck:
        # Tried again and again, so that nothing is due for long.
        return Finding("worker", "fail", "tried_in_vain")
    return Finding("worker", "ok", "worker_ok", {"waiting": str(log.get("waiting_banks", 0))})


def _storage(redis: Mapping[str, Any]) -> list[Finding]:
    if not redis.get("ok"):
        return [Finding("storage", "fail", "redis_down")]
    findings: list[Finding] = []
    if redis.get("append_only") is False:
        findings.append(Finding("storage", "fail", "storage_aof_off"))
    policy = redis.get("eviction")
    if policy not in (None, "noeviction"):
        findings.append(Finding("storage", "fail", "storage_evicts", {"policy": str(policy)}))
    unknown = [
        word
        for word, value in (("appendonly", redis.get("append_only")), ("maxmemory-policy", policy))
        if value is None
    ]
    if unknown:
        findings.append(Finding("storage", "warn", "storage_unknown", {"what": ", ".join(unknown)}))
    fsync = redis.get("fsync")
    if redis.get("append_only") and fsync == "no":
        findings.append(Finding("storage", "fail", "storage_fsync_off"))
    if redis.get("append_only") and fsync == "everysec":
        findings.append(Finding("storage", "warn", "storage_everysec"))
    return findings or [Finding("storage", "ok", "storage_ok", {"fsync": f"appendfsync {fsync or '?'}"})]


def _hindsight(hindsight: Mapping[str, Any]) -> list[Finding]:
    if not hindsight.get("ok"):
        return [Finding("hindsight", "fail", "hindsight_down")]
    version = str(hindsight.get("version") or "?")
    facts = {"version": version, "tested": TESTED_HINDSIGHT}
    features = _mapping(hindsight.get("features"))
    findings = [
        Finding("hindsight", "warn", f"hindsight_{feature}", facts)
        for feature in ("llm_trace", "audit_log")
        if features.get(feature)
    ]
    if version != TESTED_HINDSIGHT and not version.startswith(f"{TESTED_HINDSIGHT}."):
        findings.append(Finding("hindsight", "warn", "hindsight_untested", facts))
    return findings or [Finding("hindsight", "ok", "hindsight_ok", facts)]


def _settings(settings: Mapping[str, Any]) -> list[Finding]:
    if settings.get("allow_anonymous_users"):
        return [Finding("settings", "warn", "settings_anonymous")]
    return [Finding("settings", "ok", "settings_ok")]


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
