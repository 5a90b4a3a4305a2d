"""A worker process: one rank's scheduler and engine, from start to drain.

Composes what the other files of this package provide; does not know text, nor how an engine is built (`main`, `null_main`).
Invariant: it says Ready only when it can serve, and a failure ends the process with a message and a non-zero status, never with a
silent hang.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec
import zmq

from sapwood.config.sections import EngineSection, ModelOptions, SchedulerSection
from sapwood.core.garbage import spare_the_living
from sapwood.errors import EngineFailed, SapwoodError
from sapwood.messages.channel import Receiver, Sender
from sapwood.messages.child import receive_orders
from sapwood.messages.control import ControlLink
from sapwood.messages.flight import FlightRecorder
from sapwood.messages.topology import Topology
from sapwood.messages.types import Ready, ToWorker
from sapwood.observability.logging import configure_logging
from sapwood.observability.stacks import keep_stacks, note_error
from sapwood.scheduler.step_log import StepLog, open_step_log
from sapwood.worker.built import BuiltWorker
from sapwood.worker.event_feed import NoFeed, ZmqFeed
from sapwood.worker.loop import overlapped, plain
from sapwood.worker.ports import FollowerPort, Outboxes, ServerPort, share_with_ranks
from sapwood.worker.recorded import RecordedEngine

COUNT_TURNS = 16
"""Turns of the loop between two counts of the pages, each of which takes about a microsecond for each running request."""

logger = logging.getLogger(__name__)


class WorkerOrders(msgspec.Struct, frozen=True):
    """What one rank needs to know. `model_path` is a file or folder on this machine."""

    name: str
    rank: int
    topology: Topology
    model_path: str
    model: ModelOptions
    engine: EngineSection
    scheduler: SchedulerSection
    inline_detokenizer: bool
    log_level: str


def run(built: BuiltWorker, port: ServerPort | FollowerPort, overlap: bool, log: StepLog) -> None:
    """Turn the loop until drained. At its second turn in a row without work the law of pages is proved, and what is wrong is
    mended; while there is work the pages are counted now and then, and where the sum is wrong, the worker ends with EngineFailed:
    its successor has sound pages, and goes on with what this one had."""
    scheduler, idle_turns = built.scheduler, 0
    for turn, _ in enumerate((overlapped if overlap else plain)(scheduler, built.engine, port, log)):
        idle_turns = 0 if scheduler.has_work else idle_turns + 1
        if idle_turns and port.draining:
            break
        if idle_turns == 2:
            for violation in scheduler.check():
                logger.error("the law of pages is broken: %s", violation)
        elif not idle_turns and turn % COUNT_TURNS == 0 and scheduler.num_unaccounted:
            raise EngineFailed(f"the law of pages is broken: {'; '.join(scheduler.check()[:3])}")
    log.close()
    built.engine.close()


@dataclass(frozen=True, slots=True)
class Rank:
    """A rank that is ready to run, the link to the others, and how to leave them."""

    built: BuiltWorker
    control: ControlLink
    leave: Callable[[], None] = lambda: None


OpenRank = Callable[[WorkerOrders], Rank]


def serve_rank(orders: WorkerOrders, open_rank: OpenRank) -> None:
    """Build this rank, say so, run it."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    topology = orders.topology
    server = Sender(context, topology.server)
    rank = open_rank(orders)
    built = rank.built
    port: ServerPort | FollowerPort
    if orders.rank == 0:
        inbox: Receiver[ToWorker] = Receiver(context, topology.worker, ToWorker)
        events = server if orders.inline_detokenizer else Sender(context, topology.detokenizer)
        share = share_with_ranks(rank.control, orders.engine.tp_size)
        cache = orders.engine.cache
        feed = ZmqFeed(context, cache.events_endpoint, cache.events_topic) if cache.events_endpoint else NoFeed()
        outboxes = Outboxes(events, server, topology.epoch, built.transfers, feed, built.grammars, built.steward)
        port = ServerPort(inbox, outboxes, share, built.scheduler.stats, lambda address: Sender(context, address))
        recorder = FlightRecorder(topology.flight, time.monotonic)
        built = replace(built, engine=RecordedEngine(built.engine, recorder, lambda: built.scheduler.suspects))
    else:
        port = FollowerPort(rank.control, built.steward)
    log = open_step_log(_step_log_path(orders), built.engine.limits, built.options)
    spare_the_living()
    server.send(Ready(orders.name, os.getpid(), built.info))
    run(built, port, orders.scheduler.overlap, log)
    built.transfers.close()
    built.grammars.close()
    rank.leave()
    context.destroy(linger=500)


def _step_log_path(orders: WorkerOrders) -> str | None:
    """Where rank 0 logs its steps; a worker that was started again does not overwrite what an earlier life wrote."""
    path, life = orders.scheduler.step_log, orders.topology.life("worker")
    if path is None or orders.rank:
        return None
    return f"{path}.{life}" if life else path


def work(open_rank: OpenRank) -> int:
    """The process's exit status: 0 after a drain, 1 after a failure that was reported."""
    orders = receive_orders(WorkerOrders)
    configure_logging(orders.log_level)
    stacks = orders.topology.stacks(orders.name)
    keep_stacks(stacks)
    try:
        serve_rank(orders, open_rank)
    except SapwoodError as error:
        logger.error("%s: %s", orders.name, error.message)
        note_error(stacks, error)
        return 1
    return 0
