"""Compiles grammars beside the loop and keeps them.

Owns one thread, the compiled grammars and the backend that makes them; does not know slots or masks. Invariant: every order is
answered once, a grammar that a live request needs is never dropped, and of the others at most `num_kept` are held.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import msgspec

from sapwood.core.constraint import Constraint, GrammarDone, GrammarOrder, PrepareGrammar
from sapwood.errors import SapwoodError
from sapwood.grammar.api import Grammar, GrammarBackend

logger = logging.getLogger(__name__)


class Grammars(Protocol):
    """What the loop's ports talk to."""

    @property
    def is_busy(self) -> bool:
        """Whether an answer is still to come."""
        ...

    def submit(self, orders: list[GrammarOrder]) -> None:
        """Begin these orders."""
        ...

    def collect(self) -> list[GrammarDone]:
        """What is done since the last call."""
        ...

    def close(self) -> None:
        """Let go of the thread."""
        ...


class NoGrammars:
    """For ranks that do not sample: rank 0's answers reach them with its inputs."""

    is_busy = False

    def submit(self, orders: list[GrammarOrder]) -> None:
        """Rank 0 does it."""

    def collect(self) -> list[GrammarDone]:
        """Nothing is done here."""
        return []

    def close(self) -> None:
        """Nothing to end."""


class GrammarLibrary:
    """`open_backend` is called once, in the thread, when the first grammar is asked for."""

    def __init__(self, open_backend: Callable[[], GrammarBackend], num_kept: int) -> None:
        self._open_backend = open_backend
        self._backend: GrammarBackend | None = None
        self._num_kept = num_kept
        self._thread = ThreadPoolExecutor(1, "sapwood-grammars")
        self._pending: deque[Future[GrammarDone]] = deque()
        self._done: list[GrammarDone] = []
        self._grammars: OrderedDict[Constraint, Grammar] = OrderedDict()
        self._used: dict[int, Constraint] = {}

    @property
    def is_busy(self) -> bool:
        """Whether an answer is still to come."""
        return bool(self._pending or self._done)

    @property
    def num_held(self) -> int:
        """Compiled grammars."""
        return len(self._grammars)

    @property
    def backend(self) -> GrammarBackend:
        """What made the grammars; there is one as soon as there are grammars."""
        assert self._backend is not None
        return self._backend

    def grammar(self, constraint: Constraint) -> Grammar:
        """A grammar that was prepared for a request that has not ended."""
        return self._grammars[_key(constraint)]

    def submit(self, orders: list[GrammarOrder]) -> None:
        """Begin these orders; what is compiled already is answered at the next `collect`."""
        for order in orders:
            if not isinstance(order, PrepareGrammar):
                self._used.pop(order.number, None)
                self._trim()
                continue
            key = self._used[order.number] = _key(order.constraint)
            if key in self._grammars:
                self._grammars.move_to_end(key)
                self._done.append(GrammarDone(order.number))
            else:
                self._pending.append(self._thread.submit(self._prepare, order.number, key))

    def collect(self) -> list[GrammarDone]:
        """What is done since the last call, in the order of the orders."""
        done, self._done = self._done, []
        while self._pending and self._pending[0].done():
            done.append(self._pending.popleft().result())
        if done:
            self._trim()
        return done

    def close(self) -> None:
        """Let what is compiled now finish, and nothing more."""
        self._thread.shutdown(cancel_futures=True)

    def _prepare(self, number: int, key: Constraint) -> GrammarDone:
        try:
            if self._backend is None:
                self._backend = self._open_backend()
            if key not in self._grammars:
                self._grammars[key] = self._backend.compile(key)
        except SapwoodError as error:
            return GrammarDone(number, error.message)
        return GrammarDone(number)

    def _trim(self) -> None:
        """Drop the grammars that were used least recently, of those that nobody needs."""
        if len(self._grammars) <= self._num_kept or self._pending:
            return
        used = set(self._used.values())
        for key in [key for key in self._grammars if key not in used][: len(self._grammars) - self._num_kept]:
            del self._grammars[key]


def _key(constraint: Constraint) -> Constraint:
    """Equal for constraints that compile alike: when they start makes no difference."""
    return msgspec.structs.replace(constraint, starts_after=()) if constraint.starts_after else constraint
