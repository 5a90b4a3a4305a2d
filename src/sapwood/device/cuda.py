"""An NVIDIA GPU as a device: CUDA streams, events and graphs.

Knows no model. Invariant: a function submitted to a stream runs at once on the calling thread and only queues kernels; what it
returns is complete when the event recorded behind those kernels is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Generic, TypeVar

import torch

from sapwood.device.api import Graph, Launched, Stream
from sapwood.device.wakeup import Wakeup
from sapwood.errors import EngineFailed

T = TypeVar("T")
_WARM_UP_RUNS = 3  # libraries allocate their workspaces on first use, which must not happen while recording


@dataclass(frozen=True, slots=True)
class CudaLaunched(Generic[T]):
    """What the function returned, and the event behind its kernels."""

    value: T
    event: torch.cuda.Event

    def done(self) -> bool:
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    def result(self) -> T:
        self.event.synchronize()
        return self.value


@dataclass(frozen=True, slots=True)
class FailedLaunch(Generic[T]):
    """A function that raised before its kernels were queued."""

    error: Exception

    def done(self) -> bool:
        return True

    def result(self) -> T:
        raise self.error


class CudaStream:
    """A CUDA stream; a small thread waits for its events, so that a loop can poll for their ends."""

    def __init__(self, device: torch.device, name: str, synchronous: bool) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._synchronous = synchronous
        self._wakeup = Wakeup()
        self._events: SimpleQueue[torch.cuda.Event | None] = SimpleQueue()
        self._closed = False
        self._watcher = threading.Thread(target=self._watch, name=f"{name}-events", daemon=True)
        self._watcher.start()

    def submit(self, work: Callable[[], T]) -> Launched[T]:
        if self._closed:
            raise EngineFailed("the compute stream is closed: the engine is shutting down; send the request to a running server")
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        launched: Launched[T]
        with torch.cuda.stream(self._stream):
            try:
                launched = CudaLaunched(work(), event)
            except Exception as error:
                launched = FailedLaunch(error)  # raised again by `result`
            event.record(self._stream)
        if self._synchronous:
            event.synchronize()
        self._events.put(event)
        return launched

    def _watch(self) -> None:
        while (event := self._events.get()) is not None:
            event.synchronize()
            self._wakeup.set()

    def fileno(self) -> int:
        return self._wakeup.fileno()

    def acknowledge(self) -> None:
        self._wakeup.clear()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._events.put(None)
            self._watcher.join()
            self._wakeup.close()


class CudaGraph:
    """Kernels recorded once and replayed without Python."""

    def __init__(self, work: Callable[[], None]) -> None:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP_RUNS):
                work()
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            work()

    def replay(self) -> None:
        self._graph.replay()


class CudaDevice:
    """GPU number `index` of this process."""

    kind = "cuda"

    def __init__(self, index: int = 0) -> None:
        self._device = torch.device("cuda", index)
        torch.cuda.set_device(self._device)

    @property
    def torch_device(self) -> torch.device:
        return self._device

    def open_stream(self, name: str, synchronous: bool = False) -> Stream:
        return CudaStream(self._device, name, synchronous)

    def capture(self, work: Callable[[], None]) -> Graph:
        return CudaGraph(work)

    def total_memory_bytes(self) -> int:
        return int(torch.cuda.mem_get_info(self._device)[1])

    def available_memory_bytes(self) -> int:
        return int(torch.cuda.mem_get_info(self._device)[0])
