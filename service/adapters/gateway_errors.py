"""What can go wrong with a model behind `/v1`, from the status and the code its provider answers with."""

from service.errors import InvalidRequest, LlmMisconfigured, LlmUnavailable, NotFound, TooManyRequests


class ModelMissing(NotFound):
    """There is no model of that name."""

    code = "model_not_found"


class ModelRefused(InvalidRequest):
    """The model's provider understood the request and will never answer it."""

    status = 400
    code = "model_refused"


class ContextTooLong(ModelRefused):
    """The messages do not fit into the model."""

    code = "context_length_exceeded"


class ContentFiltered(ModelRefused):
    """The provider's filter does not let this through."""

    code = "content_filter"


class ModelBusy(TooManyRequests):
    """The provider asks for a pause."""

    code = "rate_limit_exceeded"


class ModelTimedOut(LlmUnavailable):
    """No answer within the time limit."""

    status = 504
    code = "model_timed_out"


GatewayError = ModelMissing | ModelRefused | ModelBusy | LlmMisconfigured | LlmUnavailable


def error_for(status: int, code: str = "") -> GatewayError:
    """The error for an HTTP status (0: there was no answer) and OpenAI's code of it, if there is one."""
    if code == "context_length_exceeded":
        return ContextTooLong("The messages are too long for this model; send fewer.")
    if code in ("content_filter", "content_policy_violation"):
        return ContentFiltered("The model's provider does not let this content through.")
    if status in (408, 504):
        return ModelTimedOut("The model does not answer in time.", retry_after_s=5)
    if status == 429:
        return ModelBusy("The model's provider asks for a pause; try again soon.", retry_after_s=5)
    if status in (401, 403, 404):
        return LlmMisconfigured(
            f"The model's provider answers {status}: the operator has to check the gateway's model, key "
            "and URL."
        )
    if status in (400, 413, 422):
        return ModelRefused(
            f"The model's provider refuses this request with {status}: one of its parameters or messages "
            "does not fit this model."
        )
    return LlmUnavailable("The model does not answer at the moment; try again soon.", retry_after_s=5)
