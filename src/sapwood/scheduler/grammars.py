"""Which waiting requests still need their grammar compiled.

Owns the orders for whoever compiles, and who waits for an answer; does not compile. Invariant: a request is ordered once, waits
until it is answered (step inputs), and is forgotten when it ends.
"""

from __future__ import annotations

from sapwood.core.constraint import ForgetGrammar, GrammarDone, GrammarOrder, PrepareGrammar
from sapwood.core.request import Request


class GrammarQueue:
    """One scheduler's."""

    def __init__(self) -> None:
        self._orders: list[GrammarOrder] = []
        self._awaited: set[int] = set()

    def seek(self, request: Request) -> None:
        """A new request waits; it may be constrained."""
        constraint = request.params.constraint
        if constraint is not None:
            self._awaited.add(request.number)
            self._orders.append(PrepareGrammar(request.number, constraint))

    def is_awaited(self, number: int) -> bool:
        """Whether request `number` cannot be admitted yet."""
        return number in self._awaited

    def done(self, done: GrammarDone) -> None:
        """An answer came."""
        self._awaited.discard(done.number)

    def forget(self, request: Request) -> None:
        """A request has ended."""
        if request.params.constraint is not None:
            self._awaited.discard(request.number)
            self._orders.append(ForgetGrammar(request.number))

    def take_orders(self) -> list[GrammarOrder]:
        """What is to be carried out since the last call."""
        orders, self._orders = self._orders, []
        return orders
