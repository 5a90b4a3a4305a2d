"""A thread that turns an offline engine's desk while anybody waits for something, and tells them when it is there.

Owns jobs, each a few requests with one future; does not know prompts. Invariant: every job's future ends, whatever fails; a
cancelled one ends after its requests have left the worker; and there is no thread while there is no job.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from sapwood.errors import Aborted, SapwoodError
from sapwood.offline import Desk, raise_if_failed
from sapwood.server.record import RequestRecord, Update
from sapwood.server.requests import PromptRequest

OnUpdate = Callable[[Update], None]


@dataclass(slots=True, eq=False)
class Ticket:
    """Requests under way. `future` ends with one update for each sample, in order, that holds all of it; `has_begun` tells that
    `records` is complete."""

    requests: Sequence[PromptRequest]
    on_update: OnUpdate | None
    future: Future[list[Update]] = field(default_factory=Future)
    records: list[RequestRecord] = field(default_factory=list)
    waiting: list[RequestRecord] = field(default_factory=list)
    has_begun: threading.Event = field(default_factory=threading.Event)


class Pump:
    """All methods may be called from any thread, also from what a future or `on_update` calls back."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._lock = threading.Lock()
        self._fresh: list[Ticket] = []
        self._cancelled: list[Ticket] = []
        self._running: list[Ticket] = []
        self._of: dict[int, Ticket] = {}
        self._seen = 0
        self._thread: threading.Thread | None = None

    def submit(self, requests: Sequence[PromptRequest], on_update: OnUpdate | None = None) -> Ticket:
        """Run the samples of resolved requests; `on_update` is told, on the pump's thread, whatever is new of them."""
        ticket = Ticket(requests, on_update)
        ticket.future.set_running_or_notify_cancel()  # whoever waits may stop waiting; only `cancel` ends it
        with self._lock:
            self._fresh.append(ticket)
            self._wake()
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Ask for the end of a ticket; its future ends with Aborted, unless it is done."""
        with self._lock:
            if not ticket.future.done():
                self._cancelled.append(ticket)
                self._wake()

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="sapwood-pump", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                fresh, self._fresh = self._fresh, []
                cancelled, self._cancelled = self._cancelled, []
                if not (fresh or cancelled or self._running):
                    self._thread = None
                    return
            for ticket in fresh:
                self._begin(ticket)
            for ticket in cancelled:
                if not ticket.future.done():
                    self._end(ticket, Aborted("the request was cancelled"))
            if self._running:
                self._turn()

    def _begin(self, ticket: Ticket) -> None:
        try:
            for index, request in enumerate(ticket.requests):
                self._desk.submit(request, index, ticket.records)
        except SapwoodError as error:
            self._end(ticket, error)
            return
        ticket.waiting = list(ticket.records)
        ticket.has_begun.set()
        self._of |= {record.number: ticket for record in ticket.records}
        self._running.append(ticket)

    def _turn(self) -> None:
        """Let one step pass, and hand out what it brought."""
        followed = [ticket for ticket in self._running if ticket.on_update is not None]
        others = [ticket for ticket in self._running if ticket.on_update is None]
        try:
            self._seen, updates = self._desk.advance(self._seen, _waited_for(followed), partial=True)
            updates += self._desk.advance(self._seen - 1, _waited_for(others), partial=False)[1]
        except SapwoodError as error:
            for ticket in list(self._running):
                self._end(ticket, error)
            return
        for update in updates:
            self._hand_out(update)

    def _hand_out(self, update: Update) -> None:
        ticket = self._of[update.record.number]
        if ticket.future.done():
            return
        try:
            raise_if_failed(update)
        except SapwoodError as error:
            self._end(ticket, error)
            return
        if ticket.on_update is not None:
            ticket.on_update(update)
        if update.finish is not None:
            ticket.waiting.remove(update.record)
            if not ticket.waiting:
                self._end(ticket, None)

    def _end(self, ticket: Ticket, error: SapwoodError | None) -> None:
        """Take the ticket off the list, its requests out of the worker, and end its future."""
        if ticket in self._running:
            self._running.remove(ticket)
        for record in ticket.records:
            self._of.pop(record.number, None)
        ticket.has_begun.set()
        if error is not None:
            self._desk.abandon(ticket.records)
            ticket.future.set_exception(error)
        else:
            ticket.future.set_result([record.everything() for record in ticket.records])


def _waited_for(tickets: Iterable[Ticket]) -> list[RequestRecord]:
    return [record for ticket in tickets for record in ticket.waiting]
