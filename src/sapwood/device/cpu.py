"""The CPU as a device: a stream is one thread, a graph is the function itself, memory is the machine's or the container's.

Knows no model. Invariant: a stream runs its work on one thread in order; torch releases the GIL inside operations, so the
submitting thread goes on meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch

from sapwood.device import host_memory
from sapwood.device.api import Graph, Launched, Stream
from sapwood.device.wakeup import Wakeup
from sapwood.errors import EngineFailed

T = TypeVar("T")


def _closed_error() -> EngineFailed:
    return EngineFailed("the compute stream is closed: the engine is shutting down; send the request to a running server")


class ThreadStream:
    """A compute stream on a thread of its own."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._wakeup = Wakeup()
        self._closed = False

    def submit(self, work: Callable[[], T]) -> Launched[T]:
        if self._closed:
            raise _closed_error()
        future = self._pool.submit(work)
        future.add_done_callback(lambda _: self._wakeup.set())
        return future

    def fileno(self) -> int:
        return self._wakeup.fileno()

    def acknowledge(self) -> None:
        self._wakeup.clear()

    def close(self) -> None:
        self._closed = True
        self._pool.shutdown(wait=True)
        self._wakeup.close()


class InlineStream:
    """A synchronous stream: `submit` runs the work before it returns."""

    def __init__(self) -> None:
        self._wakeup = Wakeup()
        self._closed = False

    def submit(self, work: Callable[[], T]) -> Launched[T]:
        if self._closed:
            raise _closed_error()
        future: Future[T] = Future()
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)  # raised again by `result`, as on the other streams
        self._wakeup.set()
        return future

    def fileno(self) -> int:
        return self._wakeup.fileno()

    def acknowledge(self) -> None:
        self._wakeup.clear()

    def close(self) -> None:
        self._closed = True
        self._wakeup.close()


@dataclass(frozen=True, slots=True)
class EagerGraph:
    """The twin of a recorded graph where there is nothing to record: replaying calls the function."""

    work: Callable[[], None]

    def replay(self) -> None:
        self.work()


class CpuDevice:
    """The processor that Python runs on."""

    kind = "cpu"

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    def open_stream(self, name: str, synchronous: bool = False) -> Stream:
        return InlineStream() if synchronous else ThreadStream(name)

    def capture(self, work: Callable[[], None]) -> Graph:
        return EagerGraph(work)

    def total_memory_bytes(self) -> int:
        return host_memory.total_bytes()

    def available_memory_bytes(self) -> int:
        return host_memory.available_bytes()
