"""Text to ids for the server: in a thread of its own, or by tokenizer processes; two twins behind one method.

Knows nothing of requests. Invariant: the event loop never waits for a tokenizer, and a question whose asker left is forgotten.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

from sapwood.errors import InvalidRequest, SapwoodError
from sapwood.messages.channel import Sender
from sapwood.messages.types import Drain, Tokenize, Tokenized, unpack_ids
from sapwood.server.backend import Pieces
from sapwood.tokenizer.tokenizer import Tokenizer

INLINE_CHARS = 2048
"""Texts up to this length are encoded on the event loop: that takes less time than the way to a thread and back."""


class Encoder(Protocol):
    """Text to ids."""

    async def encode(self, pieces: Pieces, add_special: bool) -> list[int]:
        """The ids of one prompt; raises InvalidRequest for a text that has none."""
        ...

    def take(self, message: Tokenized) -> None:
        """An answer of a tokenizer process arrived."""
        ...

    @property
    def probes(self) -> dict[str, Callable[[], Awaitable[object]]]:
        """By the names of the helper processes: a question that each of them answers at once."""
        ...

    def renew(self, index: int, sender: Sender) -> None:
        """A tokenizer process was started again: what it was asked, and has not answered, it is asked again."""
        ...

    def fail_all(self, error: SapwoodError) -> None:
        """No more answers will come."""
        ...

    def close(self) -> None:
        """Let the helpers end once they have nothing to do."""
        ...


class InlineEncoder:
    """The tokenizer inside the server."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenizer")

    async def encode(self, pieces: Pieces, add_special: bool) -> list[int]:
        if sum(len(text) for text, _ in pieces) <= INLINE_CHARS:
            return self._tokenizer.encode_pieces(pieces, add_special)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._tokenizer.encode_pieces, pieces, add_special)

    @property
    def probes(self) -> dict[str, Callable[[], Awaitable[object]]]:
        return {}

    def take(self, message: Tokenized) -> None:
        raise TypeError("an answer from a tokenizer process although none was started")

    def renew(self, index: int, sender: Sender) -> None:
        raise TypeError("a tokenizer process was started again although none was started")

    def fail_all(self, error: SapwoodError) -> None:
        pass

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


class ProcessEncoder:
    """Tokenizer processes, taken in turn; `take` is fed with their answers."""

    def __init__(self, senders: list[Sender]) -> None:
        self._senders = senders
        self._turn = itertools.cycle(range(len(senders)))
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[list[int]]] = {}
        self._asked: dict[int, tuple[int, Tokenize]] = {}

    async def encode(self, pieces: Pieces, add_special: bool) -> list[int]:
        return await self._ask(next(self._turn), pieces, add_special)

    @property
    def probes(self) -> dict[str, Callable[[], Awaitable[object]]]:
        return {f"tokenizer {index}": partial(self._ask, index, [("", True)], False) for index in range(len(self._senders))}

    def take(self, message: Tokenized) -> None:
        future = self._waiting.get(message.ask)
        if future is None or future.done():
            return
        if message.error:
            future.set_exception(InvalidRequest(message.error, param="text"))
        else:
            future.set_result(unpack_ids(message.token_ids).tolist())

    async def _ask(self, index: int, pieces: Pieces, add_special: bool) -> list[int]:
        ask = next(self._numbers)
        future: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        question = Tokenize(ask, pieces, add_special)
        self._waiting[ask], self._asked[ask] = future, (index, question)
        try:
            self._senders[index].send(question)
            return await future
        finally:
            del self._waiting[ask], self._asked[ask]

    def renew(self, index: int, sender: Sender) -> None:
        self._senders[index].close()
        self._senders[index] = sender
        for asked, question in self._asked.values():
            if asked == index:
                sender.send(question)

    def fail_all(self, error: SapwoodError) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)

    def close(self) -> None:
        for sender in self._senders:
            sender.send(Drain())
            sender.close()
