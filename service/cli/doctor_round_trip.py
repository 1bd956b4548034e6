"""The doctor's one check that leaves a trace for a moment: a throw-away user is remembered and forgotten."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from service.cli.doctor_client import Finding, ServiceClient, Trouble, refusal

# A lasting trait, so that whatever decides what is worth keeping keeps it.
_SAID: Final = "I am allergic to peanuts."
_ANSWERED: Final = "I will keep that in mind."
_ASKED: Final = "Which food am I allergic to?"
_EXPECTED: Final = "peanut"
_LONG_POLL_S: Final = 20
_TIME_TO_STORE_S: Final = 20.0
_POLL_S: Final = 0.2


async def round_trip(client: ServiceClient, patience_s: float) -> AsyncIterator[Finding]:
    """Add a turn of a new user, follow its job for `patience_s`, recall it, ask as a stranger, forget it.

    Whatever happens after the turn was accepted, the user is forgotten again, or named where that fails.
    """
    user = f"dify-memory-doctor-{secrets.token_hex(8)}"
    try:
        added = await client.ask(
            "POST",
            "/memory/add",
            user_id=user,
            conversation_id=f"{user}-first",
            turn_id=f"{user}-turn",
            user_message=_SAID,
            assistant_message=_ANSWERED,
        )
        if added.status in (409, 422):
            # The request itself is right: what is refused is a user of our own making.
            yield Finding("round_trip", "skipped", "key_of_some")
            return
        if added.status not in (200, 202):
            raise refusal(added)
    except Trouble as trouble:
        yield trouble.finding("round_trip")
        return
    try:
        yield await _remembered(client, user, str(added.data.get("job_id")), added.ms, patience_s)
    except Trouble as trouble:
        yield trouble.finding("round_trip")
    finally:
        forgotten = await _forget(client, user)
    yield forgotten


async def _remembered(
    client: ServiceClient, user: str, job: str, add_ms: float, patience_s: float
) -> Finding:
    loop = asyncio.get_running_loop()
    started = loop.time()
    state = await _followed(client, job, started + patience_s)
    stored_s = loop.time() - started
    status = str(state.get("status"))
    if status in ("failed", "cancelled"):
        facts = {"state": status, "reason": str(state.get("reason") or "?")}
        return Finding("round_trip", "fail", "job_failed", facts)
    if status != "done":
        facts = {"state": status, "seconds": f"{patience_s:g}"}
        return Finding("round_trip", "fail", "not_stored", facts)
    # Where it is not known the recall shows it.
    if state.get("memories_kept") == 0:
        return Finding("round_trip", "warn", "kept_nothing")
    asked = {"query": _ASKED, "conversation_id": f"{user}-second"}
    recalled = await client.ask_for("POST", "/memory/recall", 200, user_id=user, **asked)
    stranger = await client.ask_for("POST", "/memory/recall", 200, user_id=f"{user}-stranger", **asked)
    if stranger.data.get("memories"):
        return Finding("round_trip", "fail", "leaked")
    if _EXPECTED not in str(recalled.data.get("memories")).lower():
        return Finding("round_trip", "fail", "not_recalled")
    if recalled.data.get("degraded"):
        return Finding("round_trip", "warn", "degraded", {"reason": str(recalled.data.get("reason") or "?")})
    facts = {
        "add_ms": f"{add_ms:.0f}",
        "stored_s": f"{stored_s:.1f}",
        "recall_ms": f"{recalled.ms:.0f}",
    }
    return Finding("round_trip", "ok", "round_trip_ok", facts)


async def _followed(client: ServiceClient, job: str, ends: float) -> Mapping[str, Any]:
    """The job's state once it has ended, or at `ends` (the loop's time)."""
    loop = asyncio.get_running_loop()
    while True:
        wait_s = min(_LONG_POLL_S, max(0.0, ends - loop.time()))
        answer = await client.ask_for(
            "GET",
            f"/memory/jobs/{job}",
            200,
            params={"wait_s": f"{wait_s:.3f}"},
            timeout_s=wait_s + _TIME_TO_STORE_S,
        )
        if answer.data.get("status") in ("done", "failed", "cancelled") or loop.time() >= ends:
            return answer.data
        await asyncio.sleep(_POLL_S)


async def _forget(client: ServiceClient, user: str) -> Finding:
    left_behind = {"user": user}
    try:
        answer = await client.ask("POST", "/memory/forget", user_id=user, all="true", timeout_s=60)
        if answer.status == 404:
            return Finding("forget", "warn", "forget_missing", left_behind)
        if answer.status == 403:
            return Finding("forget", "warn", "forget_not_allowed", left_behind)
        if answer.status != 200:
            raise refusal(answer)
        if not answer.data.get("verified"):
            return Finding("forget", "fail", "forget_unverified", left_behind)
        recalled = await client.ask_for("POST", "/memory/recall", 200, user_id=user, query=_ASKED)
    except Trouble as trouble:
        return trouble.finding("forget")
    if recalled.data.get("memories"):
        return Finding("forget", "fail", "not_forgotten", left_behind)
    return Finding("forget", "ok", "forget_ok")
