"""Ids to text for the server: the detokenizer inside it, or the way to a detokenizer process; two twins behind one protocol.

Knows nothing of HTTP. Invariant: the server sees a request's texts in the order of its token indices, whichever twin is at work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sapwood.detokenizer.detokenizer import Detokenizer
from sapwood.messages.channel import Sender
from sapwood.messages.types import Drain, Forget, StepEvents, StepTexts, Watch


class Decoder(Protocol):
    """Ids to text."""

    def watch(self, message: Watch) -> None: ...

    def forget(self, message: Forget) -> None: ...

    def take(self, message: StepEvents) -> None:
        """A step's ids arrived at the server."""
        ...

    def close(self) -> None: ...


class InlineDecoder:
    """The detokenizer on the server's event loop."""

    def __init__(self, detokenizer: Detokenizer, deliver: Callable[[StepTexts], None]) -> None:
        self._detokenizer = detokenizer
        self._deliver = deliver

    def watch(self, message: Watch) -> None:
        for texts in self._detokenizer.watch(message):
            self._deliver(texts)

    def forget(self, message: Forget) -> None:
        self._detokenizer.forget(message)

    def take(self, message: StepEvents) -> None:
        self._deliver(self._detokenizer.process(message))

    def close(self) -> None:
        pass


class ProcessDecoder:
    """The detokenizer process: rank 0 sends it the ids, the server hears the texts from it."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    def watch(self, message: Watch) -> None:
        self._sender.send(message)

    def forget(self, message: Forget) -> None:
        self._sender.send(message)

    def take(self, message: StepEvents) -> None:
        raise TypeError("rank 0 sent ids to the server although a detokenizer process is running")

    def close(self) -> None:
        self._sender.send(Drain())
        self._sender.close()
