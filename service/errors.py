"""Everything that can go wrong, named by what went wrong.

Each error carries the HTTP status and the stable code it becomes at the edge, but knows no HTTP
library. `detail` is one sentence that tells the author of the flow what to do; it never holds
input, content or upstream text. Statuses are those whose bodies Dify shows its users wherever
one fits (it hides the bodies of 429 and 5xx).
"""

from typing import ClassVar


class ServiceError(Exception):
    """Base of all errors that leave a use case or an adapter.

    `status` is an HTTP status, `code` a stable identifier for programs, `retry_after_s` the
    seconds after which a repetition makes sense (None: a repetition does not help).
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"

    def __init__(self, detail: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.retry_after_s = retry_after_s


class MalformedBody(ServiceError):
    """The body is not what its content type says, or has two values of one field."""

    status = 400
    code = "malformed_body"


class KeyRefused(ServiceError):
    """No API key, or one that is not known."""

    status = 401
    code = "key_refused"


class SignatureRefused(ServiceError):
    """An event without a signature of the shared secret, or with one that is too old."""

    status = 401
    code = "signature_refused"


class LinkRefused(ServiceError):
    """No valid personal link: forged, ended, revoked, or none at all; the answer does not tell which."""

    status = 401
    code = "link_refused"


class FormRefused(ServiceError):
    """A form of a personal page that was not made for this visit."""

    status = 403
    code = "form_refused"


class ScopeMissing(ServiceError):
    """The key is good but may not do this."""

    status = 403
    code = "scope_missing"


class NotFound(ServiceError):
    """No such thing, or somebody else's: the answer does not tell which."""

    status = 404
    code = "not_found"


class MethodNotAllowed(ServiceError):
    """The path exists but takes another method."""

    status = 405
    code = "method_not_allowed"


class IdentityConflict(ServiceError):
    """One request names two different people."""

    status = 409
    code = "identity_conflict"


class NotStoredYet(ServiceError):
    """What was said is accepted, but waits to be stored and cannot be changed before that."""

    status = 409
    code = "not_stored_yet"


class TooLarge(ServiceError):
    """A body or a turn is over its limit."""

    status = 413
    code = "too_large"


class InvalidRequest(ServiceError):
    """A field is missing, of the wrong type or out of its range."""

    status = 422
    code = "invalid_request"


class IdentityRequired(InvalidRequest):
    """No usable user id: blank, a placeholder, or one that cannot be an id."""

    code = "user_id_required"


class TokenRefused(IdentityRequired):
    """No valid user token, where the key wants one: forged, expired, another tenant's, or none at all."""

    code = "user_token_refused"


class TooManyRequests(ServiceError):
    """A key or a user has made more requests in a minute than it may."""

    status = 429
    code = "too_many_requests"


class TooManyWaiting(ServiceError):
    """So many turns wait to be stored that no more are taken for now."""

    status = 429
    code = "too_many_waiting"


class Unavailable(ServiceError):
    """Something we depend on does not answer; the same request may work later."""

    status = 503
    code = "unavailable"


class HindsightUnavailable(Unavailable):
    """Hindsight refuses connections, hangs, is over capacity or answers with a 5xx.

    `reached` tells whether the request itself may be to blame (a 500, an answer that cannot be
    read): no answer at all, or "too busy", never counts against the turns being stored.
    """

    code = "hindsight_unavailable"

    def __init__(self, detail: str, *, retry_after_s: int | None = None, reached: bool = False) -> None:
        super().__init__(detail, retry_after_s=retry_after_s)
        self.reached = reached


class HindsightRejected(ServiceError):
    """Hindsight understood the request and will never accept it."""

    status = 502
    code = "hindsight_rejected"


class LanguageModelMissing(Unavailable):
    """What was asked for needs a language model, and there is none."""

    code = "language_model_missing"


class LlmUnavailable(Unavailable):
    """The language model does not answer, is too busy, fails, or says what cannot be used."""

    code = "llm_unavailable"


class LlmNotAsked(LlmUnavailable):
    """The language model has asked for a pause that is not over: nobody failed, and time alone helps."""

    code = "llm_paused"


class LlmBudgetSpent(LlmNotAsked):
    """The language model has cost as much today as it may, and is not asked before tomorrow."""

    code = "llm_budget_spent"


class LlmMisconfigured(Unavailable):
    """The language model refuses our key or does not exist: only the operator can help."""

    code = "llm_misconfigured"


class LlmRejected(ServiceError):
    """The language model understood the request and will never answer it."""

    status = 502
    code = "llm_rejected"


class TurnsLogUnavailable(Unavailable):
    """The Redis that holds accepted turns does not answer."""

    code = "turns_log_unavailable"


class KeysUnavailable(Unavailable):
    """The Redis that holds API keys and the audit trail does not answer."""

    code = "keys_unavailable"


class CacheUnavailable(Unavailable):
    """The Redis that holds cached answers does not answer; never leaves the service."""

    code = "cache_unavailable"


class ClaimLost(ServiceError):
    """Another worker took this bank over; whoever gets this must stop writing."""

    status = 409
    code = "claim_lost"
