"""Add while the turns log is away: turns go straight to Hindsight's own durable queue.

The documents are those of the turns, so that a turn which reached both (the log's reply was lost)
is one document with one text. Where a language model makes memories of turns, these have documents
of their own, and the worker deletes the turn's own one once they are stored, after the end of the
operation that writes it. Only a repetition that comes this way after all that is kept beside them.
What differs: nothing is debounced, the order inside a conversation is that of the calls, and nobody makes
memories of them. Nothing here could vet what a model makes, so that they are kept word for word even where
Hindsight extracts (also if they reach the log as well: see `words`).

Its job ids cannot be kept anywhere. They are tickets: bank and operation, sealed for the tenant.
"""

import asyncio
import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal
from uuid import UUID

from service.adapters.hindsight import HindsightAdapter, OperationState
from service.adapters.turns import NewTurn
from service.errors import HindsightUnavailable
from service.memory.turn_items import turn_item
from service.scope import BankId, ConversationId, OperationId, operation_of
from service.settings import Settings

# With the two seconds that a hanging log takes, an add is answered within five.
_LIMIT_S = 2.0
# An operation id is used once for ever, also for what was forgotten since or has failed.
_MOST_ROUNDS = 5
_SEAL_CHARS = 32
_TICKET = re.compile(r"direct([0-9a-f]{48})([0-9a-f]{32})([0-9a-f]{32})")


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of turns that were handed over: new, or known already; `job_id` is a ticket."""

    status: Literal["queued", "duplicate"]
    job_id: str


class Fallback:
    """Hands turns to Hindsight, and finds them again by their ticket."""

    def __init__(self, hindsight: HindsightAdapter, seal_key: bytes, *, limit_s: float = _LIMIT_S) -> None:
        self._hindsight = hindsight
        self._seal_key = seal_key
        self._limit_s = limit_s

    @classmethod
    def from_settings(cls, settings: Settings, hindsight: HindsightAdapter) -> "Fallback":
        """Tickets are sealed by the secrets that all processes of an installation share."""
        secrets = (settings.api_key, settings.key_pepper, settings.hindsight_api_key, settings.webhook_secret)
        parts = [hashlib.sha256(s.get_secret_value().encode()).digest() if s else b"" for s in secrets]
        return cls(hindsight, hashlib.sha256(b"ticket" + b"/".join(parts)).digest())

    async def send(
        self, tenant: str, bank: BankId, conversation: ConversationId, turns: Sequence[NewTurn]
    ) -> Sent:
        """Hand the turns of one request over; when this returns Hindsight has them on its disk.

        Raises `HindsightUnavailable` or `HindsightRejected` when that is not certain; the same
        request can be sent again then.
        """
        try:
            async with asyncio.timeout(self._limit_s):
                return await self._send(tenant, bank, conversation, turns)
        except TimeoutError as exc:
            raise HindsightUnavailable("Hindsight does not answer; try again soon.", retry_after_s=5) from exc

    async def _send(
        self, tenant: str, bank: BankId, conversation: ConversationId, turns: Sequence[NewTurn]
    ) -> Sent:
        for number in range(_MOST_ROUNDS):
            documents = "/".join(turn.document_id for turn in turns)
            operation = operation_of("direct", documents, str(number))
            state = await self._hindsight.operation_state(bank, operation)
            if state.status == "not_found":
                await self._hindsight.make_bank(bank, tenant, for_verbatim=True)
                now = datetime.now(UTC).isoformat()
                items = [turn_item(turns, place, conversation, now) for place in range(len(turns))]
                # What the worker has stored meanwhile is no work, but its observations would go if it became
                # verbatim; and one operation takes one kind of items.
                held = await asyncio.gather(
                    *(self._hindsight.memories_in(bank, item.document_id) for item in items)
                )
                new = [item for item, memories in zip(items, held, strict=True) if not memories]
                await self._hindsight.retain(bank, new or items, operation, is_verbatim=bool(new))
                return Sent("queued" if new else "duplicate", self._ticket(tenant, bank, operation))
            if await self._still_holds(bank, turns, state):
                return Sent("duplicate", self._ticket(tenant, bank, operation))
        raise HindsightUnavailable("Hindsight has failed to store this several times.", retry_after_s=60)

    async def _still_holds(self, bank: BankId, turns: Sequence[NewTurn], state: OperationState) -> bool:
        """Whether an operation that was found is storing the turns, or has stored them for good."""
        if state.status in ("pending", "processing"):
            return True
        return (
            state.status == "completed" and await self._hindsight.memories_in(bank, turns[0].document_id) > 0
        )

    async def look_up(self, ticket: str, tenant: str) -> OperationState | None:
        """The operation behind a ticket, or None when the tenant has no such ticket or it is long over."""
        found = _TICKET.fullmatch(ticket)
        if found is None:
            return None
        bank, operation = BankId(f"u-{found[1]}"), OperationId(str(UUID(found[2])))
        if not hmac.compare_digest(found[3], self._seal(tenant, bank, operation)):
            return None
        state = await self._hindsight.operation_state(bank, operation)
        return None if state.status == "not_found" else state

    def _ticket(self, tenant: str, bank: BankId, operation: OperationId) -> str:
        seal = self._seal(tenant, bank, operation)
        return f"direct{bank.removeprefix('u-')}{UUID(operation).hex}{seal}"

    def _seal(self, tenant: str, bank: BankId, operation: OperationId) -> str:
        # Bank and operation have fixed lengths: nothing can move from one part to another.
        said = f"{bank}/{operation}/{tenant}".encode()
        return hmac.new(self._seal_key, said, hashlib.sha256).hexdigest()[:_SEAL_CHARS]
