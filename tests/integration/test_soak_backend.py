"""The soak's Hindsight: what it acknowledged survives `kill -9`; half a line in its journal is no line."""

from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from tests.soak.backend import BackendProcess
from tests.support import wait_until

pytestmark = pytest.mark.anyio


async def test_what_was_acknowledged_survives_a_kill(folder: Path) -> None:
    backend = BackendProcess(folder / "hindsight")
    await backend.start()
    try:
        async with httpx.AsyncClient(base_url=f"{backend.url}/v1/default/banks", trust_env=False) as client:
            for bank, text in (("one", "tea"), ("two", "music"), ("one", "garden")):
                item = {"content": text, "document_id": f"d-{text}"}
                body = {"items": [item], "async": True, "operation_id": str(uuid4())}
                assert (await client.post(f"/{bank}/memories", json=body)).is_success
            assert (await client.delete("/two")).is_success

            async def is_stored() -> bool:
                return len((await backend.banks())["one"].documents) == 2 and not await backend.pending()

            await wait_until(is_stored, "both turns are stored")
            await backend.kill()
            journal = folder / "hindsight" / "journal.jsonl"
            journal.write_bytes(journal.read_bytes() + b'{"id": "one", "bank": nu')
            await backend.start()
            banks = await backend.banks()
            assert set(banks) == {"one"}
            assert {document.text for document in banks["one"].documents.values()} == {"tea", "garden"}
            assert (await client.post("/one/memories", json={"items": [{"content": "x"}]})).is_success
            await backend.kill()
            await backend.start()
            assert len((await backend.banks())["one"].documents) == 3
    finally:
        await backend.stop()
