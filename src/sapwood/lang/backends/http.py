"""JSON over HTTP to a server that continues text: requests, streams of events, and its errors as ours.

Owns the connection pool; knows no route. Invariant: whatever goes wrong is raised as a SapwoodError that says what the server
said. httpx is an optional dependency (the extra `lang`).
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from sapwood.errors import ConfigError, EngineFailed, InvalidRequest, Overloaded, SapwoodError, Unauthorized, Unavailable

ERROR_CHARS = 2000
_BY_STATUS: dict[int, type[SapwoodError]] = {401: Unauthorized, 403: Unauthorized, 429: Overloaded, 503: Unavailable}


def optional(module: str) -> Any:
    """A module of the extra `lang`; raises ConfigError where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ConfigError(f"{module} is not installed; install it, or sapwood with the extra [lang]") from None


def raise_for(status: int, body: str) -> None:
    """Raise what an answer with this status and body means."""
    kind = _BY_STATUS.get(status, InvalidRequest if 400 <= status < 500 else EngineFailed)
    raise kind(f"the server answered {status}: {_message(body)}")


def _message(body: str) -> str:
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return body[:ERROR_CHARS].strip()
    return str(error.get("message", error) if isinstance(error, Mapping) else error)[:ERROR_CHARS]


class JsonClient:
    """One server. May be used from any thread."""

    def __init__(self, base_url: str, api_key: str | None, verify: Any, num_connections: int) -> None:
        self._httpx = optional("httpx")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        limits = self._httpx.Limits(max_connections=num_connections, max_keepalive_connections=num_connections)
        self._client = self._httpx.Client(
            base_url=base_url.rstrip("/"), headers=headers, verify=True if verify is None else verify, timeout=None, limits=limits
        )

    def get(self, path: str) -> Any:
        """The answer to a GET."""
        return self._answer("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The answer to a POST."""
        return self._answer("POST", path, body)

    def events(self, path: str, body: Mapping[str, Any]) -> Iterator[Any]:
        """The data of the answer's events, up to [DONE]."""
        try:
            with self._client.stream("POST", path, json=body) as response:
                if response.status_code != 200:
                    raise_for(response.status_code, response.read().decode(errors="replace"))
                for line in response.iter_lines():
                    if line.startswith("data:") and (data := line[len("data:") :].strip()) != "[DONE]":
                        yield _checked(json.loads(data))
        except self._httpx.TransportError as error:
            raise self._unreachable(error) from None

    def _answer(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        try:
            response = self._client.request(method, path, json=body)
        except self._httpx.TransportError as error:
            raise self._unreachable(error) from None
        if response.status_code != 200:
            raise_for(response.status_code, response.text)
        return response.json() if "json" in response.headers.get("content-type", "") else response.text

    def _unreachable(self, error: Exception) -> Unavailable:
        return Unavailable(f"{self._client.base_url} cannot be reached ({type(error).__name__}: {error}); does the server run?")


def _checked(event: Any) -> Any:
    """An event; one that carries an error is raised."""
    if isinstance(event, Mapping) and "error" in event:
        raise_for(int((event["error"] or {}).get("code_status", 500)), json.dumps(event))
    return event
