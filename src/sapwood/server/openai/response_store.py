"""Responses that may be asked for again, or gone on from: in memory, bounded, the least recently used go first.

Owns the responses and the tasks that make those in the background; does not know what is in them. Invariant: at most `max_count`
responses of `max_bytes` in all are kept, those that are still being made excepted.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sapwood.errors import InvalidRequest
from sapwood.server.stream import Stream

MAX_COUNT = 1000
MAX_BYTES = 64 << 20


class ResponseNotFound(InvalidRequest):
    """There is no response of that id, or none any more."""

    status = 404
    code = "response_not_found"


@dataclass(slots=True)
class StoredResponse:
    """One response: its object, what was asked (`items`), and everything before it (`history`). `stream` while it is made;
    `count` gives its usage so far."""

    body: dict[str, Any]
    items: list[dict[str, Any]]
    history: list[dict[str, Any]]
    stream: Stream | None = None
    count: Callable[[], dict[str, Any]] | None = None
    num_bytes: int = field(default=0)

    @property
    def is_running(self) -> bool:
        return self.body["status"] in ("queued", "in_progress")

    @property
    def context(self) -> list[dict[str, Any]]:
        """What a response that goes on from this one has before its own input."""
        return [*self.history, *self.items, *self.body["output"]]


class ResponseStore:
    """The responses of one server."""

    def __init__(self, max_count: int = MAX_COUNT, max_bytes: int = MAX_BYTES) -> None:
        self._max_count, self._max_bytes = max_count, max_bytes
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self._num_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._responses)

    def put(self, response: StoredResponse) -> None:
        """Keep a response, or what has become of it."""
        self.drop(response.body["id"])
        # What it has in common with those before it counts for each, so that no chain can grow without bound.
        response.num_bytes = len(msgspec.json.encode((response.body, response.items, response.history)))
        self._responses[response.body["id"]] = response
        self._num_bytes += response.num_bytes
        for id in [id for id, kept in self._responses.items() if not kept.is_running and kept is not response]:
            if len(self._responses) <= self._max_count and self._num_bytes <= self._max_bytes:
                break
            self.drop(id)

    def get(self, id: str, param: str | None = None) -> StoredResponse:
        """The response; raises ResponseNotFound. `param` is the field that named it."""
        if id not in self._responses:
            name = param or "the response"
            raise ResponseNotFound(f"{name}: there is no response {id[:80]!r}, or none any more; send its content", param=param)
        self._responses.move_to_end(id)
        return self._responses[id]

    def find_item(self, id: str, param: str) -> dict[str, Any]:
        """The item of that id in any response; raises ResponseNotFound. `param` is the field that named it."""
        for response in reversed(self._responses.values()):
            items: list[dict[str, Any]] = [*response.body["output"], *response.items]
            for item in items:
                if item["id"] == id:
                    return item
        raise ResponseNotFound(f"{param}: there is no item {id[:80]!r}, or none any more; send the item itself", param=param)

    def drop(self, id: str) -> None:
        """Forget a response."""
        dropped = self._responses.pop(id, None)
        self._num_bytes -= dropped.num_bytes if dropped is not None else 0

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Let `work` go on without a client."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self, id: str) -> StoredResponse:
        """End a response that is made in the background; one that has ended stays as it is."""
        response = self.get(id)
        if not response.body["background"]:
            raise InvalidRequest("only responses with background true can be cancelled; close the connection instead")
        if response.is_running:
            response.body = {**response.body, "status": "cancelled"}
            if response.stream is not None:
                response.stream.close()
            if response.count is not None:
                response.body["usage"] = response.count()
        return response
