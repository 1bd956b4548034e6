"""Questions that this process has read before, so that asking again costs only the look-up.

Reading a recall (parsing, validation, the digests of bank and question) takes several times what
the cached answer takes to fetch, and it is a pure function of the request's bytes, the key and the
settings. (A key says for ever whose memory its requests are about; requests of keys that want user tokens,
which end, are not remembered.) Whoever repeats a question sends the same bytes; a digest of them names
where its answer is cached. The key is still checked each time, and the answer is still read from Redis,
under its epochs.
Kept are digests and numbers only, no words.
"""

import hashlib
from collections import OrderedDict
from typing import NamedTuple

from service.adapters.cache import Address
from service.scope import BankId

# About 700 bytes each: 11 MiB when it is full.
_MOST = 16_384


class Asked(NamedTuple):
    """A valid question: where its answer is cached, its form, whether the cache may answer, its deadline."""

    bank: BankId
    key: str
    address: Address
    as_text: bool
    is_fresh: bool
    deadline_s: float


class AskedBefore:
    """The questions asked last, by name; one per process."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._known: OrderedDict[bytes, Asked] = OrderedDict()

    def get(self, name: bytes) -> Asked | None:
        """The question of that name, if it was asked lately."""
        asked = self._known.get(name)
        if asked is not None:
            self._known.move_to_end(name)
        return asked

    def remember(self, name: bytes, asked: Asked) -> None:
        """Keep a question that was read and found valid; the one that was not asked longest makes room."""
        self._known[name] = asked
        self._known.move_to_end(name)
        if len(self._known) > self._most:
            self._known.popitem(last=False)


def name_of(key_id: str, content_type: bytes, query_string: bytes, body: bytes) -> bytes:
    """A digest of all that a request is read from; length-prefixed, so that no part runs into another."""
    owner = key_id.encode()
    head = b"%d %d %d " % (len(owner), len(content_type), len(query_string))
    return hashlib.sha256(b"".join((head, owner, content_type, query_string, body))).digest()
