"""The Hindsight stand-in for ten thousand users: durable by a journal, and as quick with many as with few.

The one of the other tests writes all it has at every change; after some thousand turns that would be all it
does. Here each change appends the bank that changed. What counts stays: what was acknowledged is there
after `kill -9`. The real Hindsight answers some ten recalls a second on two cores: it would be a test of it.
"""

import argparse
import asyncio
import dataclasses
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import IO, Any, Self

from aiohttp import web

from tests.fakes.hindsight import HindsightProcess, HindsightStandIn
from tests.fakes.hindsight_store import Operation, Store, load_bank

_REQUESTS_KEPT = 1000


class _Store(Store):
    """Knows the operations of a bank, and which wait, without looking at all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.by_bank: dict[str, dict[str, Operation]] = defaultdict(dict)
        self.waiting: list[Operation] = []

    def submit(self, bank_id: str, items: list[dict[str, Any]], operation_id: str | None) -> Operation:
        parent = super().submit(bank_id, items, operation_id)
        child = self.operations.get(parent.child_id or "")
        if child is not None and child.id not in self.by_bank[bank_id]:
            self.by_bank[bank_id] |= {parent.id: parent, child.id: child}
            self.waiting.append(child)
        return parent

    def delete_bank(self, bank_id: str) -> int:
        self.by_bank.pop(bank_id, None)
        return super().delete_bank(bank_id)

    def restore(self, bank_id: str, entry: dict[str, Any]) -> None:
        """Take over what the journal says of a bank."""
        if entry["bank"] is not None:
            self.banks[bank_id] = load_bank(entry["bank"])
        for value in entry["operations"]:
            operation = Operation(**value)
            if operation.status == "processing":
                operation.status = "pending"
            self.operations[operation.id] = self.by_bank[bank_id][operation.id] = operation
            if operation.kind == "retain" and operation.status == "pending":
                self.waiting.append(operation)


class Backend(HindsightStandIn):
    """The stand-in on a journal."""

    def __init__(self, *, port: int, journal: Path) -> None:
        super().__init__(port=port)
        self.store: _Store = _Store()
        self._path = journal
        self._journal: IO[bytes] | None = None
        self._dirty: set[str] = set()

    async def __aenter__(self) -> Self:
        entries: dict[str, dict[str, Any]] = {}
        if self._path.exists():
            for line in self._path.read_bytes().splitlines():
                try:
                    entry = json.loads(line)
                except ValueError:
                    break  # the last line of a process that was killed: nobody was told of it
                entries[entry["id"]] = entry
        for bank_id, entry in entries.items():
            self.store.restore(bank_id, entry)
        fresh = self._path.with_suffix(".new")
        fresh.write_bytes(b"".join(json.dumps(entry).encode() + b"\n" for entry in entries.values()))
        fresh.replace(self._path)
        self._journal = self._path.open("ab", buffering=0)
        await super().__aenter__()
        self._work.set()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await super().__aexit__(*exc_info)
        if self._journal is not None:
            self._journal.close()

    async def _answer(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if request.method != "GET" and not request.path.endswith("/recall"):
            self._dirty.add(request.match_info.get("bank", ""))
        return await super()._answer(request, handler)

    async def _run(self, child: Operation) -> None:
        await super()._run(child)
        self._dirty.add(child.bank_id)
        self._save()

    async def _work_off(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            waiting, self.store.waiting = self.store.waiting, []
            for child in waiting:
                await self._run(child)

    def _save(self) -> None:
        del self.requests[:-_REQUESTS_KEPT]
        dirty, self._dirty = self._dirty - {""}, set()
        assert self._journal is not None
        for bank_id in dirty:
            bank = self.store.banks.get(bank_id)
            entry = {
                "id": bank_id,
                "bank": dataclasses.asdict(bank) if bank is not None else None,
                "operations": [dataclasses.asdict(op) for op in self.store.by_bank[bank_id].values()],
            }
            self._journal.write(json.dumps(entry).encode() + b"\n")


class BackendProcess(HindsightProcess):
    """It as a process that can be killed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.argv = [sys.executable, "-m", "tests.soak.backend", "--port", str(self.port)]
        self.argv += ["--journal", str(folder / "journal.jsonl")]

    async def pending(self) -> int:
        """How many operations have not ended."""
        operations = (await self._state())["operations"].values()
        return sum(operation["status"] in ("pending", "processing") for operation in operations)


async def _serve(port: int, journal: Path) -> None:
    async with Backend(port=port, journal=journal):
        await asyncio.Event().wait()


def main() -> None:
    """Run it until it is killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--journal", type=Path, required=True)
    given = parser.parse_args()
    asyncio.run(_serve(given.port, given.journal))


if __name__ == "__main__":
    main()
