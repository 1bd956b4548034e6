"""What Hindsight tells of its own accord: something was stored or consolidated.

An event is only a hint to look: it changes the bank's write epoch, so that cached answers are old,
and wakes the worker's look at the bank. Both may happen twice, late or in any order without harm.
"""

import hashlib
import hmac
import json
import logging
import re
from dataclasses import dataclass
from time import time
from typing import Literal

from service.adapters.cache import RecallCache
from service.adapters.turns import TurnsLog
from service.errors import CacheUnavailable, MalformedBody, SignatureRefused, Unavailable
from service.scope import BankId
from service.settings import Settings

_log = logging.getLogger(__name__)

# How far a signature's time may be from ours: deliveries are signed when they are sent.
_TOLERANCE_S = 300
_SIGNATURE = re.compile(r"t=(\d{1,12}),v1=([0-9a-f]{64})")
_BANK = re.compile(r"u-[0-9a-f]{48}")
_CHANGES = frozenset({"retain.completed", "consolidation.completed"})
_MOST_EVENT_ID_CHARS = 200
_CACHE_TRIES = 20


@dataclass(frozen=True, slots=True)
class Event:
    """One event, as far as it matters here."""

    id: str
    kind: str
    bank: str


Outcome = Literal["seen", "known", "ignored"]


class Events:
    """Checks and sees to events."""

    def __init__(self, log: TurnsLog, cache: RecallCache, secret: str) -> None:
        self._turns = log
        self._cache = cache
        self._secret = secret.encode()

    @classmethod
    def from_settings(cls, settings: Settings, log: TurnsLog, cache: RecallCache) -> "Events | None":
        """None without `MEMORY_WEBHOOK_SECRET`: nobody could tell who sends them."""
        if settings.webhook_secret is None:
            return None
        return cls(log, cache, settings.webhook_secret.get_secret_value())

    def read(self, body: bytes, *, signature: str, event_id: str) -> Event:
        """The event in a delivery (Hindsight 1.1: `X-Hindsight-Signature-V2` and `-Event-Id`).

        Raises `SignatureRefused` unless the body was signed with the secret within the last five
        minutes, `MalformedBody` when it is no event.
        """
        found = _SIGNATURE.fullmatch(signature)
        if found is None:
            raise SignatureRefused(
                "The event is not signed as Hindsight signs them (X-Hindsight-Signature-V2)."
            )
        expected = hmac.new(self._secret, found[1].encode() + b"." + body, hashlib.sha256).hexdigest()
        if not hmac.compare_digest(expected, found[2]):
            raise SignatureRefused("The signature is not made with MEMORY_WEBHOOK_SECRET.")
        if abs(time() - int(found[1])) > _TOLERANCE_S:
            raise SignatureRefused("The signature is too old, or a clock is wrong.")
        return _event_in(body, event_id)

    async def handle(self, event: Event) -> Outcome:
        """Take note of an event once; kinds and banks that are not ours are ignored.

        Raises `Unavailable` when Redis is away; Hindsight then sends the event again.
        """
        if event.kind not in _CHANGES or not _BANK.fullmatch(event.bank):
            return "ignored"
        bank = BankId(event.bank)
        # JSON can say half a character, which plain UTF-8 cannot.
        known_as = hashlib.sha256(event.id.encode("utf-8", "surrogatepass")).hexdigest()[:48]
        if await self._turns.knows_event(known_as):
            return "known"  # or whoever has caught a delivery could empty a user's cache with it for minutes
        # Before the event is marked as known: what is done twice does no harm, what is left out might.
        await self._make_old(bank)
        is_new = await self._turns.wake(bank, known_as)
        _log.info("event_seen", extra={"event": event.kind, "is_new": is_new})
        return "seen" if is_new else "known"

    async def _make_old(self, bank: BankId) -> None:
        # More patient than recall: after its second try Hindsight waits for minutes.
        for tries_left in reversed(range(_CACHE_TRIES)):
            try:
                await self._cache.note_write(bank)
                break
            except CacheUnavailable as exc:
                if not tries_left:
                    sentence = "The cache does not answer; send the event again."
                    raise Unavailable(sentence, retry_after_s=5) from exc


def _event_in(body: bytes, event_id: str) -> Event:
    try:
        said = json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise MalformedBody("The event is not valid JSON.") from exc
    if not isinstance(said, dict):
        raise MalformedBody("The event must be a JSON object.")
    # The body's own id is covered by the signature, the header's is not.
    known_as = said.get("event_id") or event_id
    kind, bank = said.get("event"), said.get("bank_id")
    if not isinstance(known_as, str) or not isinstance(kind, str) or not isinstance(bank, str):
        raise MalformedBody("The event names no id, kind or bank.")
    if not 0 < len(known_as) <= _MOST_EVENT_ID_CHARS:
        raise MalformedBody("The event has no id, or one that is too long.")
    return Event(known_as, kind, bank)
