"""A worker inside the calling process, driven turn by turn: what the offline API owns instead of processes.

Owns a scheduler, an engine and one of the two loops; does not know text or sockets. Invariant: the same loops, plans and messages
as in a worker process, so what holds for one holds for the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sapwood.core.plan import Engine, StepResult
from sapwood.messages.types import Answer, Drain, StepInputs, TokenEvent, ToWorker
from sapwood.scheduler.scheduler import Scheduler, StepOutcome
from sapwood.scheduler.step_log import NullStepLog, StepLog
from sapwood.worker.grammars import Grammars, NoGrammars
from sapwood.worker.loop import overlapped, plain
from sapwood.worker.transfers import TRANSFER_POLL_S, NoTransfers, Transfers


@dataclass(frozen=True, slots=True)
class WorkerNews:
    """What one turn brought."""

    events: list[TokenEvent]
    answers: list[Answer]


@dataclass(slots=True)
class LocalPort:
    """A `Port` whose mailbox is a list; `share` passes each step's inputs on to the other ranks."""

    share: Callable[[StepInputs], None]
    transfers: Transfers
    grammars: Grammars
    messages: list[ToWorker] = field(default_factory=list)
    events: list[TokenEvent] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    def gather(self, results: list[StepResult], may_block: bool) -> StepInputs:
        """Never blocks for long: the driver only turns the loop when there is something to do."""
        if not results and not self.messages and (self.transfers.is_busy or self.grammars.is_busy):
            time.sleep(TRANSFER_POLL_S)  # a request may wait for them alone
        messages, self.messages = self.messages, []
        transfers, grammars = self.transfers.collect(), self.grammars.collect()
        now_s = time.monotonic()
        inputs = StepInputs(messages=messages, results=results, transfers=transfers, grammars=grammars, now_s=now_s)
        self.share(inputs)
        return inputs

    def publish(self, outcome: StepOutcome) -> None:
        self.events += outcome.events
        self.answers += outcome.answers
        self.transfers.submit(outcome.transfers)
        self.grammars.submit(outcome.grammars)

    def take(self) -> WorkerNews:
        """Everything published since the last call."""
        news = WorkerNews(self.events, self.answers)
        self.events, self.answers = [], []
        return news


class WorkerCore:
    """Rank 0 without a process around it."""

    def __init__(
        self,
        scheduler: Scheduler,
        engine: Engine,
        overlap: bool,
        share: Callable[[StepInputs], None] = lambda inputs: None,
        log: StepLog | None = None,
        transfers: Transfers | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.engine = engine
        self._port = LocalPort(share, transfers or NoTransfers(), grammars or NoGrammars())
        self._log = log or NullStepLog()
        self._turns = (overlapped if overlap else plain)(scheduler, engine, self._port, self._log)

    def step(self, messages: list[ToWorker]) -> WorkerNews:
        """One turn of the loop; raises EngineFailed when a step failed, after which the worker is of no more use."""
        self._port.messages += messages
        next(self._turns)
        return self._port.take()

    @property
    def has_work(self) -> bool:
        """Whether some request is unfinished or some launched step unconfirmed."""
        return self.scheduler.has_work

    def drain(self, messages: list[ToWorker], save_s: float) -> None:
        """Apply `messages`, which end all requests, and bring to storage what only memory holds, for up to `save_s`."""
        self.step([*messages, Drain(save_s)])
        while self.has_work:
            self.step([])

    def close(self) -> None:
        """Wait for launched steps and release the engine."""
        self._turns.close()
        self._log.close()
        self.engine.close()
        self._port.transfers.close()
        self._port.grammars.close()
