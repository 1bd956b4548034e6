"""What can go wrong between a client and the memory service."""

from collections.abc import Mapping
from typing import Final

from service.client.results import Job


class MemoryClientError(Exception):
    """Base of all errors of this module; none of them holds what was asked or said."""


class Unreachable(MemoryClientError):
    """No answer: refused, cut off, or not within the time limit. What was sent may have been done."""


class UnexpectedReply(MemoryClientError):
    """An answer that is not the memory service's; most often the URL is that of something else."""


class ExportCut(MemoryClientError):
    """An export ended before its last line: what came of it is good, but not all there is."""


class StillWaiting(MemoryClientError):
    """A job has not ended in time; `job` is how it stands. It goes on all the same."""

    def __init__(self, job: Job) -> None:
        super().__init__(f"The job is still {job.status}.")
        self.job = job


class ApiError(MemoryClientError):
    """The service has answered with an error.

    `status` is HTTP's, `code` a stable word for programs, `message` a sentence for people, `request_id` what
    to look for in the service's logs, `retry_after_s` after how many seconds to try again (None: in vain).
    """

    def __init__(self, status: int, code: str, message: str, request_id: str, retry_after_s: float | None):
        super().__init__(f"{status} {code}: {message}")
        self.status = status
        self.code = code
        self.message = message
        self.request_id = request_id
        self.retry_after_s = retry_after_s


class NotAllowed(ApiError):
    """The key is wrong (401) or may not do this (403)."""


class NotFound(ApiError):
    """No such memory, job or path, or somebody else's (404)."""


class RequestRefused(ApiError):
    """A field has to be changed first (400, 409, 413, 422): `message` says which."""


class Unavailable(ApiError):
    """Busy or out of order for now (429, 502, 503, 504): nothing was accepted."""


# The kind of an `ApiError` by its status; any other status is a plain one.
ERRORS: Final[Mapping[int, type[ApiError]]] = {
    **dict.fromkeys((401, 403), NotAllowed),
    404: NotFound,
    **dict.fromkeys((400, 409, 413, 422), RequestRefused),
    **dict.fromkeys((429, 502, 503, 504), Unavailable),
}
