"""Sends a generated workload to a worker's loop in this process, in real time: `simulate` with a real engine and clock.

Owns the requests that are open and what came of each; does not decide. Invariant: the same arrivals, pauses and limit of open
requests as in a simulation of the same workload, and messages reach the loop where a server's would, after a step was waited for
and not before; a prompt that waited for an answer contains the ids that the engine chose.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from sapwood.bench.prompts import into_vocabulary
from sapwood.core.plan import Engine, Int32Array, StepResult
from sapwood.core.sampling import SamplingParams
from sapwood.errors import EngineFailed
from sapwood.messages.types import StepInputs, Submit, TokenEvent, ToWorker
from sapwood.scheduler.scheduler import Scheduler, StepOutcome
from sapwood.scheduler.step_log import NullStepLog, StepLog
from sapwood.simulate.workload import SimRequest
from sapwood.worker.loop import overlapped, plain


@dataclass(slots=True)
class Served:
    """A request as its client saw it. Seconds after the start of the run: asked, and when each id was heard."""

    request: SimRequest
    prompt: Int32Array
    asked_s: float
    heard_s: list[float] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    num_cached: int = 0


@dataclass(frozen=True, slots=True)
class Clock:
    """Where a run's time comes from."""

    now_s: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep


class LiveRun:
    """One run of a workload on an engine with a scheduler of its own, with at most `max_concurrency` requests open (None: no
    limit). It is the loop's `Port`."""

    def __init__(
        self,
        scheduler: Scheduler,
        engine: Engine,
        *,
        overlap: bool,
        log: StepLog | None = None,
        max_concurrency: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.served: list[Served] = []
        self._scheduler = scheduler
        self._turns = (overlapped if overlap else plain)(scheduler, engine, self, log or NullStepLog())
        self._vocab_size = engine.limits.vocab_size
        self._most = max_concurrency
        self._clock = clock or Clock()
        self._due: list[tuple[float, int, SimRequest, Int32Array]] = []
        self._backlog: deque[Served] = deque()
        self._open: dict[int, Served] = {}
        self._num_arrivals = 0
        self._began_s = 0.0

    def run(self, requests: Iterable[SimRequest]) -> float:
        """Everything to its end; returns the seconds that it took. Raises EngineFailed when a request failed."""
        for request in requests:
            self._expect(request.arrival_s, request, into_vocabulary(request.prompt, self._vocab_size))
        self._began_s = self._clock.now_s()
        while self._due or self._open or self._backlog:
            next(self._turns)
        duration_s = self._now_s()
        while self._scheduler.has_work:  # a step was launched ahead
            next(self._turns)
        self._turns.close()
        return duration_s

    # ------------------------------------------------------------------------------------------------- the loop's port
    def gather(self, results: list[StepResult], may_block: bool) -> StepInputs:
        """What is due; sleeps until something is when there is nothing else to do."""
        if may_block and not self._backlog and self._due:
            self._clock.sleep(max(self._due[0][0] - self._now_s(), 0.0))
        messages = self._arrivals()
        return StepInputs(messages=messages, results=results, now_s=self._now_s())

    def publish(self, outcome: StepOutcome) -> None:
        """Clients hear of it at once."""
        now_s = self._now_s()
        for event in outcome.events:
            self._hear(event, now_s)

    def _now_s(self) -> float:
        return self._clock.now_s() - self._began_s

    def _expect(self, at_s: float, request: SimRequest, prompt: Int32Array) -> None:
        self._num_arrivals += 1
        heapq.heappush(self._due, (at_s, self._num_arrivals, request, prompt))

    def _arrivals(self) -> list[ToWorker]:
        """Those whose time has come and for whom there is room."""
        now_s = self._now_s()
        while self._due and self._due[0][0] <= now_s:
            at_s, _, request, prompt = heapq.heappop(self._due)
            self._backlog.append(Served(request, prompt, at_s))
        messages: list[ToWorker] = []
        while self._backlog and (self._most is None or len(self._open) < self._most):
            served = self._backlog.popleft()
            self.served.append(served)
            number = len(self.served)
            self._open[number] = served
            params = SamplingParams(max_new_tokens=served.request.num_new, temperature=0.0, seed=number, ignore_eos=True)
            messages.append(Submit(number, number, 0, served.prompt.tobytes(), params))
        return messages

    def _hear(self, event: TokenEvent, now_s: float) -> None:
        served = self._open[event.number]
        served.heard_s += [now_s] * len(event.token_ids)
        served.ids += event.token_ids
        served.num_cached = event.num_cached
        if event.finish is None:
            return
        if event.finish.kind == "error":
            raise EngineFailed(f"a measured request failed: {event.finish.message}")
        del self._open[event.number]
        num_said = len(served.request.prompt) + served.request.num_new
        for request in served.request.then:
            own = into_vocabulary(request.prompt[num_said:], self._vocab_size)
            said = np.array(served.ids, dtype=np.int32)
            self._expect(now_s + request.arrival_s, request, np.concatenate([served.prompt, said, own]))
