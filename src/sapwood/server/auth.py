"""Who may ask: keys, and browsers of other sites.

Knows headers and paths; nothing of what the routes do. Invariant: deny by default; with a key set, every path but health,
readiness and the chat page's files needs one, and admin routes need the admin key.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from sapwood.errors import SapwoodError, Unauthorized
from sapwood.server.failures import Forbidden, error_response
from sapwood.server.keys import Keys
from sapwood.server.webpage import FILES

LOOPBACK_HOSTS = frozenset(("127.0.0.1", "localhost", "::1"))
LOCAL_ENDINGS = (".localhost", ".local", ".internal")
OPEN_PATHS = frozenset(("/health", "/ready", *FILES))


class KeyGuard:
    """ASGI middleware in front of every route."""

    def __init__(self, app: ASGIApp, keys: Keys, host: str) -> None:
        self._app = app
        self._is_private = host in LOOPBACK_HOSTS and not keys.users
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._check(scope["path"], Headers(scope=scope))
            except SapwoodError as error:
                await error_response(error, scope["path"])(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, path: str, headers: Headers) -> None:
        if self._is_private and is_public_name(_without_port(headers.get("host", ""))):
            raise Forbidden("this server answers to localhost, not to other sites' names; set --api-key to serve other names")
        self._check_origin(headers)
        if path not in OPEN_PATHS and not self._keys.open_route(headers):
            raise Unauthorized("this server needs an API key; send it as the header Authorization: Bearer KEY, or x-api-key: KEY")

    def _check_origin(self, headers: Headers) -> None:
        """A browser names the page's site in Origin; a page of another site must not drive this server behind its user's back.

        On a loopback address without a key a name that merely points here (DNS rebinding) is another site too; since browsers
        leave Origin out where a page reads from its own name, a name of the internet is refused with or without it.
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


def admin_check(keys: Keys) -> Callable[[Request], Awaitable[None]]:
    """A FastAPI dependency for admin routes."""

    async def check(request: Request) -> None:
        if not keys.open_admin_route(request.headers):
            raise Unauthorized("this route needs the admin key; send it as the header Authorization: Bearer KEY")

    return check


def is_public_name(host: str) -> bool:
    """Whether this may be a name that somebody else registered: one with a dot that is neither an address nor of this network."""
    name = host.lower()
    if "." not in name or name.endswith(LOCAL_ENDINGS):
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return True
    return False


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
