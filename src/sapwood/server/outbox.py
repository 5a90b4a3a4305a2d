"""What must reach the worker, even when the way is full for a moment.

Owns the messages that wait; does not know what they mean. Invariant: they leave in the order in which they came.
"""

from __future__ import annotations

from collections import deque

from sapwood.errors import Overloaded
from sapwood.messages.types import ToWorker
from sapwood.server.backend import Backend


class Outbox:
    """Sends now what it can, and the rest at the next occasion."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._unsent: deque[ToWorker] = deque()

    def send(self, message: ToWorker) -> None:
        """Send what must not get lost: when the way is full it follows later, in order."""
        self._unsent.append(message)
        self.flush()

    def flush(self) -> None:
        """Send as much as goes."""
        while self._unsent:
            try:
                self._backend.send(self._unsent[0])
            except Overloaded:
                return
            self._unsent.popleft()

    def clear(self) -> None:
        """Nobody is there to take it."""
        self._unsent.clear()
