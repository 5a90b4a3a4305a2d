"""The one tree of errors that Sapwood raises on purpose.

    SapwoodError
    ├── InvalidRequest      400  a client's mistake; `param` names the field
    │   ├── UnknownModel    404
    │   ├── PromptTooLong   400  prompt and completion exceed the context
    │   └── Unauthorized    401
    ├── Overloaded          429  limits of this client, or a full queue (Retry-After)
    ├── TimedOut            408  the time that the request was given is over
    ├── Unavailable         503  starting, draining or recovering (Retry-After)
    ├── Aborted             499  the client, or an operator, ended the request
    ├── EngineFailed        500  a worker died or a step failed; the request is lost
    ├── ConfigError              a start option that cannot work; says what to change
    └── WeightsError             a checkpoint that is missing, damaged or not supported

Every message says what to do next. Classes carry the HTTP status and the machine-readable code
that the dialects put into their error bodies; exceptions of other libraries are never echoed.
"""

from __future__ import annotations


class SapwoodError(Exception):
    """Root of the tree; `message` is fit for a client's eyes."""

    status: int = 500
    code: str = "internal_error"
    kind: str = "server_error"

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


class InvalidRequest(SapwoodError):
    """The request can never be served as it stands; `param` names the field to change."""

    status = 400
    code = "invalid_request"
    kind = "invalid_request_error"


class UnknownModel(InvalidRequest):
    """The request names a model that this server does not serve."""

    status = 404
    code = "model_not_found"


class PromptTooLong(InvalidRequest):
    """Prompt and completion are more than the context holds; agents shorten their history when they see this code."""

    code = "context_length_exceeded"


class Unauthorized(InvalidRequest):
    """The key is missing or wrong."""

    status = 401
    code = "invalid_api_key"
    kind = "authentication_error"


class Overloaded(SapwoodError):
    """A limit was reached; the same request may succeed after `retry_after_s`."""

    status = 429
    code = "rate_limit_exceeded"
    kind = "rate_limit_error"


class TimedOut(SapwoodError):
    """The request was not finished within the time that it, or this server, allows."""

    status = 408
    code = "timeout"
    kind = "timeout_error"


class Unavailable(SapwoodError):
    """The server is starting, draining or recovering; try again after `retry_after_s`."""

    status = 503
    code = "unavailable"
    kind = "server_error"


class Aborted(SapwoodError):
    """The request was ended by its client or by an operator before it finished."""

    status = 499
    code = "aborted"
    kind = "aborted"


class EngineFailed(SapwoodError):
    """The engine lost the request: a worker died or a step failed."""

    status = 500
    code = "engine_failed"


class ConfigError(SapwoodError):
    """An option, or a combination of options, that cannot work."""

    code = "bad_config"


class WeightsError(SapwoodError):
    """A checkpoint that is missing, damaged, or of a kind that is not supported."""

    code = "bad_weights"
