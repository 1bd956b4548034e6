"""Remember a turn, wait until it is stored, recall it, and take it away again. 记住、等待、回忆、导出、忘记。

DIFY_MEMORY_URL=http://127.0.0.1:8000 DIFY_MEMORY_API_KEY=… python remember.py
"""

# ruff: noqa: T201 - an example prints

import sys

from service.client import MemoryClient, MemoryClientError

USER = "example-alice"


def main() -> None:
    """Print what is remembered before and after."""
    with MemoryClient() as memory:
        # With a turn_id the client may send it again when the service is busy: it is stored once.
        added = memory.add(
            USER,
            user_message="I live in Lisbon and work as a nurse.",
            assistant_message="Noted!",
            conversation_id="example",
            turn_id="example-1",
        )
        job = memory.wait(added.job_id)
        kept = "?" if job.memories_kept is None else job.memories_kept
        print(f"{job.status}: {kept} kept")
        print(memory.recall(USER, "Where do I live?").context)
        for line in memory.export(USER):
            print(f"{line.said_at} {line.text}")
        print(memory.forget(USER, all=True))


if __name__ == "__main__":
    try:
        main()
    except MemoryClientError as exc:
        sys.exit(f"{type(exc).__name__}: {exc}")
