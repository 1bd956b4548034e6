"""The stack end to end: first memory, isolation, restarts, kills; everything real."""

import asyncio
import json
import os
import signal
import socket
import sys
from pathlib import Path

import pytest
from service.embedded.connection import read_connection

from tests.e2e.conftest import Stack, clean_environment, running_stack
from tests.support import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.hindsight]


async def add(stack: Stack, user: str, message: str, answer: str = "", **fields: str) -> dict[str, object]:
    """Add a turn and follow its job to the end."""
    async with stack.client as client:
        reply = await client.post(
            "/memory/add",
            data={"user_id": user, "user_message": message, "assistant_message": answer, **fields},
        )
        assert reply.status_code == 202, reply.text
        job = reply.json()["job_id"]
        state: dict[str, object] = {}
        for _ in range(8):
            followed = await client.get(f"/memory/jobs/{job}", params={"wait_s": 15})
            state = followed.json()
            if state["status"] in ("done", "failed"):
                break
    return state


def is_running(pid: int) -> bool:
    """Whether a process of that id exists."""
    return Path(f"/proc/{pid}").exists()


async def recalled(stack: Stack, user: str, query: str, **fields: str) -> dict[str, object]:
    """The reply to a recall."""
    async with stack.client as client:
        reply = await client.post(
            "/memory/recall", data={"user_id": user, "query": query, "timeout_ms": "8000", **fields}
        )
    assert reply.status_code == 200, reply.text
    body: dict[str, object] = reply.json()
    return body


@pytest.mark.parametrize(
    ("said", "asked", "word"),
    [
        ("我对花生过敏，点餐的时候请避开。", "我有什么食物不能吃？", "花生"),
        ("I am training for the Lisbon marathon in October.", "Which race am I preparing for?", "marathon"),
    ],
)
async def test_a_new_conversation_remembers_and_a_stranger_sees_nothing(
    stack: Stack, user: str, said: str, asked: str, word: str
) -> None:
    state = await add(stack, user, said, "OK", conversation_id="first")
    assert state["status"] == "done", state
    assert state["memories_kept"] == 1

    reply = await recalled(stack, user, asked, conversation_id="second")
    assert word in str(reply["context"]), reply
    assert reply["degraded"] is False
    assert (await recalled(stack, user, asked, conversation_id="second"))["cached"] is True

    stranger = await recalled(stack, f"{user}x", asked)
    assert stranger["count"] == 0
    assert stranger["context"] == ""


async def test_each_turn_is_found_by_itself(stack: Stack, user: str) -> None:
    for number, said in enumerate(
        [
            "My cat is called Biscuit.",
            "I drive a blue Volvo.",
            "My sister lives in Oslo.",
            "I play the cello.",
        ]
    ):
        await add(stack, user, said, "Noted.", conversation_id="one", turn_id=str(number))
    reply = await recalled(stack, user, "What instrument do I play?", top_k="1")
    assert "cello" in str(reply["context"]), reply
    assert "Biscuit" not in str(reply["context"])


async def test_a_recall_that_has_two_seconds_is_answered_in_time(stack: Stack, user: str) -> None:
    # The stack's own deadline is longer, for chats on a busy machine; nothing else would show it late.
    assert (await add(stack, user, "My parrot is called Admiral.", "Nice."))["status"] == "done"
    reply = await recalled(stack, user, "What is my parrot called?", timeout_ms="2000", fresh="true")
    assert reply["degraded"] is False, reply
    assert "Admiral" in str(reply["context"])


@pytest.mark.parametrize("child", ["redis", "cache", "postgres", "hindsight", "embeddings", "api", "worker"])
async def test_a_killed_child_comes_back_and_memories_stay(stack: Stack, user: str, child: str) -> None:
    word = f"Quokka{child}"
    assert (await add(stack, user, f"My nickname is {word}.", "Hello!"))["status"] == "done"
    before = stack.connection.pids[child]
    os.kill(before, signal.SIGKILL)
    await wait_until(
        lambda: stack.connection.pids.get(child) not in (None, before), f"{child} is restarted", timeout_s=60
    )
    await stack.ready(timeout_s=90)
    assert word in str((await recalled(stack, user, "What is my nickname?", fresh="true"))["context"])
    state = await add(stack, user, f"I now also collect {child} stamps.", "Nice.", conversation_id="later")
    assert state["status"] == "done", state


async def test_stop_and_start_keeps_what_was_accepted_and_what_was_stored(tmp_path: Path, user: str) -> None:
    folder = tmp_path / "data"

    async def take_a_port() -> socket.socket:
        """Be another program that takes Hindsight's port between its choice and its start."""
        chosen = await wait_until(
            lambda: json.loads((folder / "ports.json").read_text("utf-8"))["hindsight"],
            "the ports are chosen",
            timeout_s=60,
        )
        return socket.create_server(("127.0.0.1", chosen))

    rival = asyncio.create_task(take_a_port())
    async with running_stack(folder, MEMORY_QUIET_S="0.2") as first:
        with await rival as taken:
            assert not first.hindsight_url.endswith(f":{taken.getsockname()[1]}")
        assert (await add(first, user, "My favourite tea is oolong.", "Good choice."))["status"] == "done"
        pids = dict(first.connection.pids)
        second = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "service.cli.main",
            "up",
            env={**clean_environment(), "MEMORY_DATA_DIR": str(folder)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await second.communicate()
        assert second.returncode != 0, "A second start on the same folder was not refused."
        assert b"Traceback" not in said
    assert read_connection(folder) is None
    left = [name for name, pid in pids.items() if is_running(pid)]
    assert not left, f"still running: {left}"
    # Nothing is due for an hour: the second turn still waits when the stack stops.
    async with running_stack(folder, MEMORY_QUIET_S="3600", MEMORY_MAX_WAIT_S="3600") as again:
        assert "oolong" in str((await recalled(again, user, "Which tea do I like?"))["context"])
        async with again.client as client:
            added = await client.post(
                "/memory/add", data={"user_id": user, "user_message": "My favourite cake is strudel."}
            )
        assert added.status_code == 202
    async with running_stack(folder, MEMORY_QUIET_S="0.2") as third:
        reply = await recalled(third, user, "Which cake is my favourite?")
        assert "strudel" in str(reply["context"])
