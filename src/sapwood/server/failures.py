"""The one way in which errors become HTTP: body, status and headers.

Knows the error tree; echoes no other exception's text. Invariant: every failing response has the body
`{"error": {"message", "type", "param", "code"}}`, and one that may be tried again says when.
"""

from __future__ import annotations

import math

import msgspec
from starlette.responses import Response

from sapwood.errors import Aborted, EngineFailed, InvalidRequest, Overloaded, SapwoodError, Unauthorized, Unavailable
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
    """The body of every failing response, and of an error event in a stream."""

    error: ErrorDetail


def error_body(error: SapwoodError) -> ErrorBody:
    """The body that describes `error`."""
    return ErrorBody(ErrorDetail(error.message, error.kind, error.param, error.code))


def error_body_bytes(error: SapwoodError) -> bytes:
    """That body as it travels."""
    return msgspec.json.encode(error_body(error))


def error_response(error: SapwoodError) -> Response:
    """The whole response."""
    headers = {}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    if isinstance(error, Unauthorized):
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, (BodyTooLarge, TooSlow)):
        headers["connection"] = "close"
    return Response(error_body_bytes(error), error.status, headers, "application/json")


_BY_CODE: dict[str, type[SapwoodError]] = {
    kind.code: kind for kind in (InvalidRequest, Overloaded, Unavailable, Aborted, EngineFailed)
}


def as_error(finish: Finish) -> SapwoodError:
    """The error behind a finish of kind abort or error."""
    kind = _BY_CODE.get(finish.code, Aborted if finish.kind == "abort" else EngineFailed)
    retry_after_s = 1.0 if kind in (Overloaded, Unavailable) else None
    return kind(finish.message or "the request was ended; send it again", retry_after_s=retry_after_s)
