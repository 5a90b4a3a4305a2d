"""`/`: the chat page, which talks to `/v1/chat/completions` like any other client.

Serves the package's own files, read once. Invariant: the page asks for nothing outside this server, and says nothing about it, so
that it needs no key; what it calls does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import resources

from fastapi import APIRouter, Response

FILES = {
    "/": ("index.html", "text/html"),
    "/webui/chat.css": ("chat.css", "text/css"),
    "/webui/chat.js": ("chat.js", "text/javascript"),
}
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    "cache-control": "no-cache",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


def page_routes() -> APIRouter:
    """The router of this family."""
    router = APIRouter()
    folder = resources.files("sapwood.webui")
    for path, (name, kind) in FILES.items():
        router.add_api_route(path, _file((folder / name).read_bytes(), kind), methods=["GET"], include_in_schema=False)
    return router


def _file(content: bytes, kind: str) -> Callable[[], Awaitable[Response]]:
    async def answer() -> Response:
        return Response(content, headers=HEADERS, media_type=kind)

    return answer
