"""Who may ask: keys, and browsers of other sites.

Knows headers and paths; nothing of what the routes do. Invariant: deny by default; with a key set, every path but health,
readiness and the chat page's files needs one, admin routes need the admin key, and keys are compared in constant time.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from sapwood.errors import SapwoodError, Unauthorized
from sapwood.server.failures import Forbidden, error_response
from sapwood.server.webpage import FILES

LOOPBACK_HOSTS = frozenset(("127.0.0.1", "localhost", "::1"))
OPEN_PATHS = frozenset(("/health", "/ready", *FILES))


class KeyGuard:
    """ASGI middleware in front of every route."""

    def __init__(self, app: ASGIApp, api_key: str | None, admin_api_key: str | None, host: str) -> None:
        self._app = app
        self._is_private = host in LOOPBACK_HOSTS and not api_key
        self._api_key = api_key
        self._keys = tuple(key for key in (api_key, admin_api_key) if key)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._check(scope["path"], Headers(scope=scope))
            except SapwoodError as error:
                await error_response(error, scope["path"])(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, path: str, headers: Headers) -> None:
        self._check_origin(headers)
        if self._api_key and path not in OPEN_PATHS and not _has_key(headers, self._keys):
            raise Unauthorized("this server needs an API key; send it as the header Authorization: Bearer KEY, or x-api-key: KEY")

    def _check_origin(self, headers: Headers) -> None:
        """A browser names the page's site in Origin; a page of another site must not drive this server behind its user's back.

        On a loopback address without a key a name that merely points here (DNS rebinding) is another site too.
        """
        origin, host = headers.get("origin"), headers.get("host", "")
        if origin is None:
            return
        if origin.partition("://")[2] != host:
            raise Forbidden(
                "requests from pages of other sites are refused; call the server from a program, or from its own pages"
            )
        if self._is_private and _without_port(host) not in LOOPBACK_HOSTS:
            raise Forbidden(
                f"pages reach this server as localhost only, not as {host[:100]!r}; set --api-key to serve other names"
            )


def admin_check(api_key: str | None, admin_api_key: str | None) -> Callable[[Request], Awaitable[None]]:
    """A FastAPI dependency for admin routes: the admin key if there is one, else the API key, else none."""
    wanted = admin_api_key or api_key

    async def check(request: Request) -> None:
        if wanted and not _has_key(request.headers, (wanted,)):
            raise Unauthorized("this route needs the admin key; send it as the header Authorization: Bearer KEY")

    return check


def _has_key(headers: Headers, keys: tuple[str, ...]) -> bool:
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        given = headers.get("x-api-key", "")
    offered = given.strip().encode("latin-1", "replace")
    matches = [hmac.compare_digest(offered, key.encode()) for key in keys]
    return any(matches)


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
