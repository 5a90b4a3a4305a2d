"""Threads for backends whose calls block: a server's answers are waited for here.

Owns the pool and how a call learns that it was cancelled; knows no call. Invariant: a job's future ends when its call has
returned.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from sapwood.errors import Aborted
from sapwood.lang.backends.base import Job, nothing

T = TypeVar("T")


class Cancellation:
    """Told once; whoever blocks says with `on_cancel` how to be woken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wake: Callable[[], None] = nothing
        self.is_asked = False

    def ask(self) -> None:
        """End soon."""
        with self._lock:
            self.is_asked, wake = True, self._wake
        wake()

    def on_cancel(self, wake: Callable[[], None]) -> None:
        """Call this when cancelled."""
        with self._lock:
            self._wake = wake
        self.check()

    def check(self) -> None:
        """Raise Aborted when cancelled."""
        if self.is_asked:
            raise Aborted("the request was cancelled")


class Workers:
    """At most `count` calls at once; the others wait."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count, "sapwood-backend")

    def run(self, call: Callable[[Cancellation], T]) -> Job[T]:
        """Begin a call; it raises Aborted where it was cancelled."""
        cancellation = Cancellation()

        def checked() -> T:
            cancellation.check()
            result = call(cancellation)
            cancellation.check()
            return result

        future: Future[T] = self._pool.submit(checked)
        return Job(future, cancellation.ask)
