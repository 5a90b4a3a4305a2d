"""How much one client may ask for: calls in a minute, and calls at the same time.

Knows ASGI and who asks; nothing of what is asked. Invariant: every answer to a counted call says what is left, one that is
refused says when to come back, and a call counts as open until its answer has ended, however it ends.
"""

from __future__ import annotations

import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sapwood.errors import Overloaded
from sapwood.server.auth import OPEN_PATHS
from sapwood.server.failures import error_response
from sapwood.server.keys import name_of

RETRY_AFTER_OPEN_S = 1.0
MAX_CLIENTS = 65_536
"""Clients that are remembered; whoever has not called for longest is forgotten, and begins anew."""


@dataclass(frozen=True, slots=True)
class Rates:
    """For each key, or each address where there are no keys; None: as many as it likes."""

    per_minute: int | None = None
    at_once: int | None = None


class Allowance:
    """A bucket for each client that holds a minute's calls and fills evenly, by the monotonic clock."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._full_at_s: OrderedDict[str, float] = OrderedDict()

    def seconds_to_full(self, name: str) -> float:
        """Until the client may call as often as if it had never called."""
        return max(0.0, self._full_at_s.get(name, 0.0) - self._clock())

    def left(self, name: str) -> int:
        """Calls that the client may make at once."""
        return int((60.0 - self.seconds_to_full(name)) * self.per_minute / 60.0 + 1e-6)

    def take(self, name: str) -> bool:
        """Count a call, if one is left."""
        if self.left(name) < 1:
            return False
        self._full_at_s[name] = self._clock() + self.seconds_to_full(name) + 60.0 / self.per_minute
        self._full_at_s.move_to_end(name)
        if len(self._full_at_s) > MAX_CLIENTS:
            self._full_at_s.popitem(last=False)
        return True

    def seconds_to_next(self, name: str) -> float:
        """Until another call is left."""
        return max(0.0, self.seconds_to_full(name) - 60.0 + 60.0 / self.per_minute)


class RateGuard:
    """ASGI middleware behind the keys and before every route but the open ones."""

    def __init__(self, app: ASGIApp, rates: Rates) -> None:
        self._app = app
        self._at_once = rates.at_once
        self._allowance = Allowance(rates.per_minute) if rates.per_minute else None
        self._open: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        name = name_of(Headers(scope=scope), (scope.get("client") or ("",))[0])
        refusal = self._refusal(name)
        marks = self._marks(name)

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *marks]
            await send(message)

        if refusal is not None:
            await error_response(refusal, scope["path"])(scope, receive, send_marked)
            return
        self._open[name] += 1
        try:
            await self._app(scope, receive, send_marked)
        finally:
            self._open[name] -= 1
            if not self._open[name]:
                del self._open[name]

    def _refusal(self, name: str) -> Overloaded | None:
        """Why this call cannot be taken now; counts it otherwise."""
        if self._at_once is not None and self._open[name] >= self._at_once:
            message = f"this key has {self._open[name]} calls open and {self._at_once} is the limit; wait for one of them"
            return Overloaded(message, retry_after_s=RETRY_AFTER_OPEN_S)
        if self._allowance is None or self._allowance.take(name):
            return None
        seconds = self._allowance.seconds_to_next(name)
        message = f"this key may make {self._allowance.per_minute} calls in a minute; try again in {math.ceil(seconds)} s"
        return Overloaded(message, retry_after_s=seconds)

    def _marks(self, name: str) -> list[tuple[bytes, bytes]]:
        """What is left, in the headers that OpenAI's clients know."""
        if self._allowance is None:
            return []
        values = {
            "limit": f"{self._allowance.per_minute}",
            "remaining": f"{self._allowance.left(name)}",
            "reset": f"{math.ceil(self._allowance.seconds_to_full(name))}s",
        }
        return [(f"x-ratelimit-{what}-requests".encode(), value.encode()) for what, value in values.items()]
