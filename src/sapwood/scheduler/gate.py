"""Whether steps are planned at all, and what is done to the engine while they are not.

Owns the pause, who waits for quiet, and orders for the engine; does not retract. Invariant: an order leaves only while nothing is
planned, in flight or resident, and steps are planned again only when the engine has its memory.
"""

from __future__ import annotations

from sapwood.messages.types import Answer, Continue, Order, Overhaul, Pause, Profile


class Gate:
    """Open unless somebody paused the replica."""

    def __init__(self) -> None:
        self.is_closed = False
        self._is_released = False
        self._waiting: list[int] = []
        self._orders: list[Order] = []

    def close(self, pause: Pause) -> None:
        """Plan nothing more; the answer comes when it has become quiet."""
        self.is_closed = True
        self._waiting.append(pause.ask)

    def open(self, message: Continue) -> Answer:
        """Go on, unless the engine has no memory."""
        if self._is_released:
            return Answer(message.ask, False, "the engine's memory is released; resume it first")
        self.is_closed = False
        return Answer(message.ask, True, "steps are planned again")

    def order(self, order: Order, is_empty: bool) -> Answer | None:
        """Keep an order for `take_orders`, or refuse it; `is_empty`: nothing is in flight or resident."""
        if isinstance(order, Profile):
            self._orders.append(order)
            return None
        if self._is_released != (order.action == "restore"):
            state = "released already" if self._is_released else "not released"
            return Answer(order.ask, False, f"the engine's memory is {state}")
        if not (self.is_closed and is_empty):
            return Answer(order.ask, False, "requests run; pause with retraction first")
        self._is_released = order.action == "release"
        self._orders.append(order)
        return None

    def take_orders(self) -> list[Order]:
        """What the engine's holder has to do before anything else runs."""
        orders, self._orders = self._orders, []
        return orders

    def answers(self) -> list[Answer]:
        """To those who waited until nothing is in flight, which is now."""
        waiting, self._waiting = self._waiting, []
        return [Answer(ask, True, "nothing runs") for ask in waiting]


def is_engine_order(orders: list[Order]) -> bool:
    """Whether one of `orders` changes the engine, so that nothing may be launched beside it."""
    return any(isinstance(order, Overhaul) for order in orders)
