"""What the engine asks of an accelerator: streams of work in order, graphs, and facts about memory.

Knows no model. Invariant: work submitted to one stream runs in the order of its submission, and a `Launched` is done only when
everything that its function started on the device has finished.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import torch

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Launched(Protocol[T_co]):
    """Work given to a stream; also the event that marks its end."""

    def done(self) -> bool:
        """Whether `result` would return (or raise) at once."""
        ...

    def result(self) -> T_co:
        """Wait for the end and return what the function returned, or raise what it raised."""
        ...


class Stream(Protocol):
    """Runs functions one after the other, beside the thread that submits them."""

    def submit(self, work: Callable[[], T]) -> Launched[T]:
        """Queue `work` and return; raises EngineFailed once the stream is closed."""
        ...

    def fileno(self) -> int:
        """A file descriptor, readable after work has finished: poll it beside sockets, then call `acknowledge`."""
        ...

    def acknowledge(self) -> None:
        """Make the descriptor unreadable again. Call it first, then look for finished work, so that none is missed."""
        ...

    def close(self) -> None:
        """Wait for the submitted work, then release the stream; closing twice is harmless."""
        ...


class Graph(Protocol):
    """A recorded piece of work on fixed tensors."""

    def replay(self) -> None:
        """Run it again on whatever its input tensors now hold."""
        ...


class Device(Protocol):
    """One place where tensors live and compute happens."""

    @property
    def kind(self) -> str:
        """`cpu` or `cuda`."""
        ...

    @property
    def torch_device(self) -> torch.device:
        """Where tensors are made."""
        ...

    def open_stream(self, name: str, synchronous: bool = False) -> Stream:
        """A new stream. A synchronous one finishes each piece of work before `submit` returns."""
        ...

    def capture(self, work: Callable[[], None]) -> Graph:
        """Record `work`, which touches only tensors that outlive the graph."""
        ...

    def total_memory_bytes(self) -> int:
        """Memory that this process could ever use here."""
        ...

    def available_memory_bytes(self) -> int:
        """Memory that it could take now."""
        ...
