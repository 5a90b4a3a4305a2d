"""A lock whose holders tell both threads and event loops that something has changed.

Owns who waits; does not know for what. Invariant: whoever waits looks again after every `changed`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable


class Signal:
    """Use `with signal:` around reads and writes of what it guards."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._listeners: list[Callable[[], None]] = []

    def __enter__(self) -> None:
        self._condition.acquire()

    def __exit__(self, *error: object) -> None:
        self._condition.release()

    def changed(self) -> None:
        """Wake everybody; the lock must be held."""
        self._condition.notify_all()
        for listener in self._listeners:
            listener()

    def wait_for(self, is_true: Callable[[], bool]) -> None:
        """Let go of the lock until something is true; the lock must be held."""
        self._condition.wait_for(is_true)

    async def await_change(self, is_true: Callable[[], bool]) -> None:
        """`wait_for` on an event loop; the lock must not be held."""
        loop, event = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(event.set)

        with self:
            self._listeners.append(wake)
        try:
            while True:
                event.clear()
                with self:
                    if is_true():
                        return
                await event.wait()
        finally:
            with self:
                self._listeners.remove(wake)
