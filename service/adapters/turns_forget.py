"""Forgetting in the log of accepted turns: one script takes everything that is meant out at once.

After it, no worker holds the bank: the forget itself has the claim, under a token that begins with
`f`, until it lets go or the claim runs out. A second forget of the bank waits for the first.
"""

import secrets
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Literal

from service import keyspace
from service.adapters.turns import UNFINISHED_JOB_TTL_S, Claim, TurnsLog
from service.errors import ClaimLost
from service.scope import BankId, DocumentId, JobId, OperationId, operation_of

# Longer than anybody repeats a forget that was answered with "try again".
_UNFINISHED_TTL_S = 86_400
# Longer than a request that a worker has given up can still be on its way to Hindsight.
_FENCED_TTL_S = 3_600

ForgetKind = Literal["all", "conversation", "documents"]


@dataclass(frozen=True, slots=True)
class Taken:
    """What a forget has taken out of the log, over its repetitions, and the claim it has now.

    `operations` are those under which some of it may be on its way to Hindsight.
    """

    claim: Claim
    turns: int
    jobs: int
    operations: tuple[OperationId, ...]


class TurnsEraser:
    """Forgets in a turns log. Every method raises `TurnsLogUnavailable` like the log's own."""

    def __init__(self, log: TurnsLog, *, mark_ttl_s: int, job_ttl_s: int) -> None:
        """`mark_ttl_s`: at least as long as a repeated turn is known as a repetition."""
        self._log = log
        self._mark_ttl_s = max(mark_ttl_s, UNFINISHED_JOB_TTL_S)
        self._job_ttl_s = job_ttl_s

    async def take(
        self, bank: BankId, kind: ForgetKind, labels: Sequence[str], token: str = ""
    ) -> Taken | None:
        """Take turns out of the log and get the bank's claim; None: another forget of it is not done yet.

        `labels` is the conversation, or the documents. With the `token` of an earlier call it goes on
        under the same claim.
        """
        token = token or f"f{secrets.token_hex(8)}"
        asked_at = monotonic()
        reply = await self._log.run(
            "forget",
            [
                keyspace.CLAIMS,
                keyspace.DUE,
                keyspace.CLAIM_NUMBER,
                keyspace.turns(bank),
                keyspace.conversations(bank),
                keyspace.batch(bank),
                keyspace.DEAD,
                keyspace.dead_of(bank),
                keyspace.WAITING,
                keyspace.forgotten(bank),
                keyspace.forgetting(bank),
            ],
            [
                bank,
                token,
                int(self._log.claim_s * 1000),
                self._mark_ttl_s,
                _UNFINISHED_TTL_S,
                self._job_ttl_s,
                keyspace.job(JobId("")),
                uuid.uuid4().hex,
                kind,
                *labels,
            ],
        )
        if reply == "busy":
            return None
        turns, jobs, *flat = reply
        operations: list[OperationId] = []
        for parts in zip(*[iter(flat)] * 4, strict=True):
            operations += _operations(*parts)
        return Taken(Claim(bank, token, asked_at), turns, jobs, tuple(dict.fromkeys(operations)))

    async def end(self, claim: Claim) -> None:
        """Note that nothing of the forget has to be looked for any more; raises `ClaimLost`."""
        reply = await self._log.run(
            "forget_end",
            [keyspace.CLAIMS, keyspace.forgetting(claim.bank)],
            [claim.bank, claim.token, _FENCED_TTL_S],
        )
        if reply == "lost":
            raise ClaimLost("Somebody else has this bank.")


def _operations(batch_id: str, round_: str, solo: str, first: str) -> list[OperationId]:
    """All ids under which a batch in this state may have been sent (see memory/attempt.py)."""
    rounds = [str(number) for number in range(int(round_) + 1)]
    ids = [operation_of(batch_id, number) for number in rounds]
    if solo == "1":
        ids += [operation_of(batch_id, number, DocumentId(first)) for number in rounds]
    return ids
