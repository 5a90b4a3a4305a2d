"""A file descriptor that other threads make readable, for loops that poll sockets and finished work together.

Knows nothing of the work. Invariant: after `set`, the descriptor stays readable until the next `clear`; `set` never blocks.
"""

from __future__ import annotations

import contextlib
import os
import threading


class Wakeup:
    """A pipe that holds at least one byte while it is set. A pipe works on every POSIX system, unlike an eventfd."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._lock = threading.Lock()
        self._closed = False

    def fileno(self) -> int:
        """The descriptor to poll for reading."""
        return self._reader

    def set(self) -> None:
        """Make the descriptor readable; after `close`, do nothing."""
        with self._lock:
            if not self._closed:
                with contextlib.suppress(BlockingIOError):  # a full pipe is readable already
                    os.write(self._writer, b"\0")

    def clear(self) -> None:
        """Make the descriptor unreadable until the next `set`; after `close`, do nothing."""
        with self._lock:
            if not self._closed:
                with contextlib.suppress(BlockingIOError):
                    while os.read(self._reader, 4096):
                        pass

    def close(self) -> None:
        """Release both ends; closing twice is harmless."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._reader)
                os.close(self._writer)
