"""A client for a running memory service, for code that is no Dify: `MemoryClient`, `AsyncMemoryClient`.

    from service.client import MemoryClient

    with MemoryClient("http://127.0.0.1:8000", "the key") as memory:
        added = memory.add("alice", user_message="I live in Lisbon.", turn_id="run-1")
        memory.wait(added.job_id)
        print(memory.recall("alice", "Where do I live?").context)

Both have the same methods, with `await` and `async for` in the second one. Without arguments they read
`DIFY_MEMORY_URL` and `DIFY_MEMORY_API_KEY`. Proxies and certificates are httpx's: `HTTPS_PROXY`,
`SSL_CERT_FILE`. Everything that goes wrong on the way is a `MemoryClientError`; what cannot be sent at all
(half a character, NaN, a URL that is none) is a `ValueError`.

What can be repeated without harm is repeated, `retries` times, when the service is out of reach or busy:
all that reads, and an `add` that has a `turn_id`, which the service stores once. Anything else only if it
has never left this machine. Needs httpx and nothing else of this package.
"""

from service.client.clients import AsyncMemoryClient, MemoryClient
from service.client.errors import (
    ApiError,
    ExportCut,
    MemoryClientError,
    NotAllowed,
    NotFound,
    RequestRefused,
    StillWaiting,
    Unavailable,
    UnexpectedReply,
    Unreachable,
)
from service.client.results import Added, Exported, Forgotten, Job, Memory, Page, Recall, Reflection

__all__ = [
    "Added",
    "ApiError",
    "AsyncMemoryClient",
    "ExportCut",
    "Exported",
    "Forgotten",
    "Job",
    "Memory",
    "MemoryClient",
    "MemoryClientError",
    "NotAllowed",
    "NotFound",
    "Page",
    "Recall",
    "Reflection",
    "RequestRefused",
    "StillWaiting",
    "Unavailable",
    "UnexpectedReply",
    "Unreachable",
]
