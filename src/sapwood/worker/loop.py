"""The two loops of a worker, side by side: `plain` shows the meaning, `overlapped` hides the host's work behind the device.

Owns the order of gathering, deciding, launching and answering; does not know where messages come from (a `Port`), what a plan
means or how it is computed. Invariant: at most one launched step is unconfirmed while the scheduler decides, and answers are
published before anything is waited for. Both are generators that yield once per turn, so a caller can drive them by hand.

    plain        gather ─ decide k ─ publish ─ launch k ─ wait k ─┐
                   └─────────────────────────────────────────────┘
    overlapped   gather ─ decide k ─ launch k ─ publish ─ wait k-1 ─┐      (the device runs k while k+1 is decided)
                   └───────────────────────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol

from sapwood.core.plan import Engine, StepResult
from sapwood.messages.types import StepInputs
from sapwood.scheduler.scheduler import Scheduler, StepOutcome
from sapwood.scheduler.step_log import StepLog
from sapwood.worker.stopwatch import Stopwatch


class Port(Protocol):
    """The loop's way in and out."""

    def gather(self, results: list[StepResult], may_block: bool) -> StepInputs:
        """What arrived, with `results`; waits for something to arrive when `may_block` (nothing runs, nothing is ready)."""
        ...

    def publish(self, outcome: StepOutcome) -> None:
        """Pass the events and answers of one decision on. Never blocks."""
        ...


def plain(scheduler: Scheduler, engine: Engine, port: Port, log: StepLog) -> Generator[None]:
    """Decide, run, wait; one step at a time."""
    engine, results = Stopwatch(engine), list[StepResult]()
    while True:
        inputs = port.gather(results, may_block=not results and not scheduler.has_work)
        outcome = scheduler.step(inputs)
        log.add(inputs, outcome.plan)
        port.publish(outcome)
        yield
        results = [engine.launch(outcome.plan).wait()] if outcome.plan else []


def overlapped(scheduler: Scheduler, engine: Engine, port: Port, log: StepLog) -> Generator[None]:
    """Decide step k while step k-1 runs."""
    engine, results = Stopwatch(engine), list[StepResult]()
    running = None
    while True:
        may_block = not results and running is None and not scheduler.has_work
        inputs = port.gather(results, may_block)
        outcome = scheduler.step(inputs)
        launched = engine.launch(outcome.plan) if outcome.plan else None
        log.add(inputs, outcome.plan)
        port.publish(outcome)
        yield
        results = [running.wait()] if running else []
        running = launched
