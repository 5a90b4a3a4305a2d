"""The one way in which errors become HTTP: body, status and headers.

Knows the error tree and the dialects' shapes of an error; echoes no other exception's text. Invariant: every failing response
has the body that clients of its path expect (OpenAI's, unless the path is another dialect's), and one that may be tried again
says when.
"""

from __future__ import annotations

import math

import msgspec
from starlette.responses import Response

from sapwood.errors import (
    Aborted,
    EngineFailed,
    InvalidRequest,
    Overloaded,
    PromptTooLong,
    SapwoodError,
    TimedOut,
    Unauthorized,
    Unavailable,
)
from sapwood.messages.types import Finish


class BodyTooLarge(InvalidRequest):
    """The body has more bytes than the server reads."""

    status = 413
    code = "body_too_large"


class HeadTooLarge(InvalidRequest):
    """The request line and headers have more bytes than the server reads."""

    status = 431
    code = "head_too_large"


class TooSlow(InvalidRequest):
    """The body did not arrive in time."""

    status = 408
    code = "request_timeout"


class UnsupportedEncoding(InvalidRequest):
    """The body is compressed."""

    status = 415
    code = "unsupported_encoding"


class Forbidden(InvalidRequest):
    """The request comes from a place that may not ask."""

    status = 403
    code = "forbidden"
    kind = "permission_error"


class RouteNotFound(InvalidRequest):
    """There is no such path."""

    status = 404
    code = "not_found"


class MethodNotAllowed(InvalidRequest):
    """The path exists, but not with this method."""

    status = 405
    code = "method_not_allowed"


class ErrorDetail(msgspec.Struct, frozen=True):
    """What went wrong, in OpenAI's shape."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of a failing response, and of an error event in a stream."""

    error: ErrorDetail


class AnthropicErrorDetail(msgspec.Struct, frozen=True):
    """What went wrong, in Anthropic's shape."""

    type: str
    message: str


class AnthropicErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """The same as `ErrorBody` for Anthropic's clients."""

    type: str = "error"
    error: AnthropicErrorDetail


class OllamaErrorBody(msgspec.Struct, frozen=True):
    """The same for Ollama's clients, also as a line of a stream."""

    error: str


ANTHROPIC_PATH, OLLAMA_PATH = "/v1/messages", "/api/"
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def openai_error(error: SapwoodError) -> ErrorBody:
    """`error` for everyone but the clients of the dialects below."""
    return ErrorBody(ErrorDetail(error.message, error.kind, error.param, error.code))


def anthropic_error(error: SapwoodError) -> AnthropicErrorBody:
    """`error` for Anthropic's clients."""
    other = "api_error" if error.status >= 500 else "invalid_request_error"
    known = "prompt is too long: " if isinstance(error, PromptTooLong) else ""  # the words that its agents look for
    return AnthropicErrorBody(error=AnthropicErrorDetail(_ANTHROPIC_TYPES.get(error.status, other), known + error.message))


def ollama_error(error: SapwoodError) -> OllamaErrorBody:
    """`error` for Ollama's clients."""
    return OllamaErrorBody(error.message)


def error_body_bytes(error: SapwoodError, path: str = "") -> bytes:
    """The body that describes `error` to a client of `path`."""
    if path == ANTHROPIC_PATH or path.startswith(ANTHROPIC_PATH + "/"):
        return msgspec.json.encode(anthropic_error(error))
    if path.startswith(OLLAMA_PATH):
        return msgspec.json.encode(ollama_error(error))
    return msgspec.json.encode(openai_error(error))


def error_response(error: SapwoodError, path: str) -> Response:
    """The whole response to a request for `path`."""
    headers = {}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    if isinstance(error, Unauthorized):
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, (BodyTooLarge, TooSlow)):
        headers["connection"] = "close"
    return Response(error_body_bytes(error, path), error.status, headers, "application/json")


_BY_CODE: dict[str, type[SapwoodError]] = {
    kind.code: kind for kind in (InvalidRequest, Overloaded, TimedOut, Unavailable, Aborted, EngineFailed)
}


def raise_failure(finish: Finish | None) -> None:
    """Raise the error that ended a request, if one did (the dialects have no finish reason for it)."""
    if finish is not None and finish.kind not in ("stop", "length"):
        raise as_error(finish)


def as_error(finish: Finish) -> SapwoodError:
    """The error behind a finish of kind abort or error."""
    kind = _BY_CODE.get(finish.code, Aborted if finish.kind == "abort" else EngineFailed)
    retry_after_s = 1.0 if kind in (Overloaded, Unavailable) else None
    return kind(finish.message or "the request was ended; send it again", retry_after_s=retry_after_s)
