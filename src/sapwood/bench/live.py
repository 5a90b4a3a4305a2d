"""Sends a generated workload to a worker in this process, in real time: `simulate` with a real engine and clock.

Owns the requests that are open and what came of each; does not decide. Invariant: the same arrivals, pauses and limit of open
requests as in a simulation of the same workload; a prompt that waited for an answer contains the ids that the engine chose.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from sapwood.bench.prompts import into_vocabulary
from sapwood.core.plan import Int32Array
from sapwood.core.sampling import SamplingParams
from sapwood.errors import EngineFailed
from sapwood.messages.types import Submit, TokenEvent, ToWorker
from sapwood.simulate.workload import SimRequest
from sapwood.worker.core import WorkerCore


@dataclass(slots=True)
class Served:
    """A request as its client saw it. Seconds after the start of the run: asked, and when each id was heard."""

    request: SimRequest
    prompt: Int32Array
    asked_s: float
    heard_s: list[float] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    num_cached: int = 0


class LiveRun:
    """One run of a workload on a worker, with at most `max_concurrency` requests open (None: no limit)."""

    def __init__(self, worker: WorkerCore, max_concurrency: int | None = None) -> None:
        self.served: list[Served] = []
        self._worker = worker
        self._vocab_size = worker.engine.limits.vocab_size
        self._most = max_concurrency
        self._due: list[tuple[float, int, SimRequest, Int32Array]] = []
        self._backlog: deque[Served] = deque()
        self._open: dict[int, Served] = {}
        self._num_arrivals = 0
        self._began_s = 0.0

    def run(self, requests: Iterable[SimRequest]) -> float:
        """Everything to its end; returns the seconds that it took. Raises EngineFailed when a request failed."""
        for request in requests:
            self._expect(request.arrival_s, request, into_vocabulary(request.prompt, self._vocab_size))
        self._began_s = time.perf_counter()
        while self._due or self._open or self._backlog:
            messages = self._arrivals()
            if not messages and not self._worker.has_work:
                time.sleep(max(self._due[0][0] - self._now_s(), 0.0))
                continue
            for event in self._worker.step(messages).events:
                self._hear(event)
        return self._now_s()

    def _now_s(self) -> float:
        return time.perf_counter() - self._began_s

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

    def _hear(self, event: TokenEvent) -> None:
        served, now_s = self._open[event.number], self._now_s()
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
