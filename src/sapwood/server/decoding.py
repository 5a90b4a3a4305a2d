"""Ids to text for the server: the detokenizer inside it, or the way to a detokenizer process; two twins behind one protocol.

Knows nothing of HTTP. Invariant: the server sees a request's texts in the order of its token indices, whichever twin is at work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from sapwood.detokenizer.detokenizer import Detokenizer
from sapwood.messages.channel import Sender
from sapwood.messages.types import Answer, Drain, Forget, StepEvents, StepTexts, Watch

PROBE = 0
"""The number of a question that asks the detokenizer for a sign of life; questions to the worker count from one."""


class Decoder(Protocol):
    """Ids to text."""

    def watch(self, message: Watch) -> None: ...

    def forget(self, message: Forget) -> None: ...

    def take(self, message: StepEvents) -> None:
        """A step's ids arrived at the server."""
        ...

    @property
    def probes(self) -> dict[str, Callable[[], Awaitable[object]]]:
        """By the name of the helper process, if there is one: a question that it answers at once."""
        ...

    def note_answer(self, answer: Answer) -> None:
        """An answer arrived at the server, perhaps to such a question."""
        ...

    def renew(self, sender: Sender) -> None:
        """The detokenizer process was started again; it knows no request yet."""
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

    @property
    def probes(self) -> dict[str, Callable[[], Awaitable[object]]]:
        return {}

    def note_answer(self, answer: Answer) -> None:
        pass

    def renew(self, sender: Sender) -> None:
        raise TypeError("a detokenizer process was started again although none was started")

    def close(self) -> None:
        pass


class ProcessDecoder:
    """The detokenizer process: rank 0 sends it the ids, the server hears the texts from it."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._probe: asyncio.Future[None] | None = None

    def watch(self, message: Watch) -> None:
        self._sender.send(message)

    def forget(self, message: Forget) -> None:
        self._sender.send(message)

    def take(self, message: StepEvents) -> None:
        raise TypeError("rank 0 sent ids to the server although a detokenizer process is running")

    @property
    def probes(self) -> dict[str, Callable[[], Awaitable[object]]]:
        return {"detokenizer": self._ask}

    def note_answer(self, answer: Answer) -> None:
        if answer.ask == PROBE and self._probe is not None and not self._probe.done():
            self._probe.set_result(None)

    def renew(self, sender: Sender) -> None:
        self._sender.close()
        self._sender = sender
        self.note_answer(Answer(PROBE, True))  # the question went with the process; its successor gets the next one

    async def _ask(self) -> None:
        """An answer that the detokenizer passes on, as it does with all that is not for it."""
        self._probe = asyncio.get_running_loop().create_future()
        self._sender.send(Answer(PROBE, True))
        await self._probe

    def close(self) -> None:
        self._sender.send(Drain())
        self._sender.close()
