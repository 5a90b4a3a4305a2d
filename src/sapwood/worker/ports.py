"""How a worker process's loop hears and answers: rank 0 through sockets, the other ranks through rank 0.

Owns the way of a `StepInputs` to every rank; does not know what is in it but for `Drain`. Invariant: all ranks see equal inputs
in the same order, and rank 0 shares something at least every `HEARTBEAT_S`, so that no rank waits in vain.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from sapwood.core.plan import StepResult
from sapwood.messages.channel import Receiver, Sender
from sapwood.messages.control import ControlLink
from sapwood.messages.types import Drain, Renew, StepEvents, StepInputs, StepStats, ToWorker
from sapwood.scheduler.scheduler import StepOutcome
from sapwood.worker.event_feed import EventFeed, NoFeed
from sapwood.worker.grammars import Grammars, NoGrammars
from sapwood.worker.overhaul import NoSteward, Steward
from sapwood.worker.transfers import TRANSFER_POLL_S, NoTransfers, Transfers

HEARTBEAT_S = 5.0
STATS_INTERVAL_S = 0.5
"""How often statistics travel with a running batch's events. They have more fields than a token, and whoever wants to know how
the worker stands now asks it."""


def share_with_ranks(control: ControlLink, num_ranks: int) -> Callable[[StepInputs], None]:
    """What rank 0 does with its inputs before it acts on them; nothing when it is alone."""
    if num_ranks == 1:
        return lambda inputs: None
    encoder = msgspec.msgpack.Encoder()

    def share(inputs: StepInputs) -> None:
        control.share(encoder.encode(inputs))

    return share


@dataclass(frozen=True, slots=True)
class Outboxes:
    """Where rank 0 sends: `events` to the detokenizer or the server, `answers` to the server; both in this `epoch`. Orders for
    the cache's storage go to `transfers`, those for grammars to `grammars`, those for the engine to `steward`, news of the cache
    to `feed`."""

    events: Sender
    answers: Sender
    epoch: int
    transfers: Transfers = NoTransfers()
    feed: EventFeed = NoFeed()
    grammars: Grammars = NoGrammars()
    steward: Steward = NoSteward()


class ServerPort:
    """Rank 0's port: messages from the server, events to the detokenizer (or the server), answers to the server."""

    def __init__(
        self,
        inbox: Receiver[ToWorker],
        outboxes: Outboxes,
        share: Callable[[StepInputs], None],
        stats: Callable[[], StepStats],
        connect: Callable[[str], Sender],
    ) -> None:
        self._inbox = inbox
        self._outboxes = outboxes
        self._share = share
        self._stats = stats
        self._connect = connect
        self._last_stats: StepStats | None = None
        self._now_s = self._stats_due_s = 0.0
        self.draining = False

    def gather(self, results: list[StepResult], may_block: bool) -> StepInputs:
        transfers, grammars = self._outboxes.transfers, self._outboxes.grammars
        is_idle = not results and (transfers.is_busy or grammars.is_busy)  # a request may wait for them alone
        messages = self._inbox.receive(wait_s=TRANSFER_POLL_S if is_idle else HEARTBEAT_S if may_block else 0.0)
        for message in messages:
            if isinstance(message, Renew):
                self._renew(message)
            self.draining = self.draining or isinstance(message, Drain)
        self._now_s = time.monotonic()
        inputs = StepInputs(
            messages=messages,
            results=results,
            transfers=transfers.collect(),
            grammars=grammars.collect(),
            now_s=self._now_s,
        )
        self._share(inputs)
        return inputs

    def publish(self, outcome: StepOutcome) -> None:
        out, stats = self._outboxes, self._due_stats(outcome)
        if outcome.events or stats is not None:
            out.events.send(StepEvents(out.epoch, outcome.events, stats))
        if outcome.transfers:
            out.transfers.submit(outcome.transfers)
        if outcome.grammars:
            out.grammars.submit(outcome.grammars)
        if outcome.cache_events:
            out.feed.publish(outcome.cache_events)
        if outcome.answers or outcome.orders:
            for answer in (*outcome.answers, *map(out.steward.obey, outcome.orders)):
                out.answers.send(answer)
        out.events.flush()
        if out.answers is not out.events:
            out.answers.flush()

    def _due_stats(self, outcome: StepOutcome) -> StepStats | None:
        """What is new in the statistics: with the first events of an epoch and then now and then, always when nothing runs on."""
        if outcome.plan is not None and self._now_s < self._stats_due_s:
            return None
        if outcome.events:
            self._stats_due_s = self._now_s + STATS_INTERVAL_S
        stats = self._stats()
        if stats == self._last_stats:
            return None
        self._last_stats = stats
        return stats

    def _renew(self, renew: Renew) -> None:
        """What is published from now on belongs to the new epoch: the scheduler forgets in this very step what went before."""
        out = self._outboxes
        events = out.events
        if renew.events_address != events.address:
            events = self._connect(renew.events_address)
            out.events.close()
        self._outboxes = replace(out, events=events, epoch=renew.epoch)
        self._last_stats, self._stats_due_s = None, 0.0


class FollowerPort:
    """The port of the ranks that only compute."""

    def __init__(self, control: ControlLink, steward: Steward) -> None:
        self._control = control
        self._steward = steward
        self._decoder = msgspec.msgpack.Decoder(StepInputs)
        self.draining = False

    def gather(self, results: list[StepResult], may_block: bool) -> StepInputs:
        """Rank 0's inputs; this rank's own results say the same and are dropped."""
        inputs = self._decoder.decode(self._control.share())
        self.draining = self.draining or any(isinstance(message, Drain) for message in inputs.messages)
        return inputs

    def publish(self, outcome: StepOutcome) -> None:
        """Rank 0 has answered; orders for the engine concern every rank."""
        for order in outcome.orders:
            self._steward.obey(order)
