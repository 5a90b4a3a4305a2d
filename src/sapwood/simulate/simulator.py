"""The event loop of a simulation: arrivals, routing, turns of the replicas, and what clients would have seen.

Owns virtual time; does not decide anything that the scheduler decides. Invariant: a replica never begins a turn past the next
arrival before that was routed, so a router sees the replicas as they were at that moment.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import inf
from random import Random

from sapwood.core.plan import EngineLimits
from sapwood.core.sampling import SamplingParams
from sapwood.messages.types import Submit, TokenEvent
from sapwood.scheduler.options import SchedulerOptions
from sapwood.simulate.cost import CostModel
from sapwood.simulate.replica import Replica
from sapwood.simulate.report import Latencies, Report
from sapwood.simulate.routing import routers
from sapwood.simulate.workload import SimRequest

Progress = Callable[[int], None]
PROGRESS_EVERY = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """What is simulated: `num_replicas` alike, the way to them, and how many requests may be open at once (None: no limit)."""

    limits: EngineLimits
    options: SchedulerOptions
    cost: CostModel
    num_replicas: int = 1
    routing: str = "round-robin"
    max_concurrency: int | None = None
    overlap: bool = True


@dataclass(slots=True)
class _Open:
    """A request on its way. `asked_s` is when its client sent it."""

    request: SimRequest
    replica: int
    asked_s: float
    last_s: float = 0.0


class Simulator:
    """One run."""

    def __init__(self, simulation: Simulation, workload: Iterable[SimRequest], progress: Progress) -> None:
        self._simulation = simulation
        self._route = routers.get(simulation.routing)()
        chance = Random(simulation.options.seed)
        self._replicas = [
            Replica(simulation.limits, simulation.options, simulation.cost, simulation.overlap, chance)
            for _ in range(simulation.num_replicas)
        ]
        self._source: Iterator[SimRequest] = iter(workload)
        self._upcoming = next(self._source, None)
        self._later: list[tuple[float, int, SimRequest]] = []
        self._num_later = 0
        self._backlog: deque[tuple[float, SimRequest]] = deque()
        self._open: dict[int, _Open] = {}
        self._num_submitted = 0
        self._num_done = 0
        self._num_failed = 0
        self._output_tokens = 0
        self._end_s = 0.0
        self._progress = progress
        self._latencies = {name: Latencies() for name in ("ttft", "itl", "e2e", "queue")}

    def run(self) -> Report:
        """Everything to its end."""
        while True:
            next_s = self._next_arrival_s()
            self._advance(next_s)
            later_s = self._next_arrival_s()  # a turn that ended meanwhile may have brought an earlier one
            if later_s == inf:
                if not any(replica.has_work for replica in self._replicas):
                    return self._report()
            elif later_s <= next_s:
                self._arrive(later_s)

    @property
    def num_cached_pages(self) -> int:
        """Pages that the replicas' prefix indexes hold now."""
        return sum(replica.scheduler.stats().num_cached_pages for replica in self._replicas)

    # ------------------------------------------------------------------------------------------------- arrivals
    def _next_arrival_s(self) -> float:
        planned_s = self._upcoming.arrival_s if self._upcoming is not None else inf
        return min(planned_s, self._later[0][0] if self._later else inf)

    def _arrive(self, now_s: float) -> None:
        """Take the next arrival: into a replica, or into the backlog when enough are open."""
        if self._later and self._later[0][0] <= now_s:
            request = heapq.heappop(self._later)[2]
        else:
            assert self._upcoming is not None
            request, self._upcoming = self._upcoming, next(self._source, None)
        most = self._simulation.max_concurrency
        if most is not None and len(self._open) >= most:
            self._backlog.append((now_s, request))
        else:
            self._submit(request, now_s, now_s)

    def _submit(self, request: SimRequest, asked_s: float, now_s: float) -> None:
        self._num_submitted += 1
        number = self._num_submitted
        index = self._route(self._replicas, request)
        replica = self._replicas[index]
        completion = request.completion.tolist() if request.completion is not None else [number]
        replica.completions[number] = (len(request.prompt), completion)
        params = SamplingParams(max_new_tokens=request.num_new, temperature=0.0, seed=number, ignore_eos=True)
        ids = request.prompt.tobytes()
        replica.send(Submit(number, number, 0, ids, params, priority=request.priority, namespace=request.namespace), now_s)
        replica.num_open += 1
        self._open[number] = _Open(request, index, asked_s)

    # ------------------------------------------------------------------------------------------------- time
    def _advance(self, until_s: float) -> None:
        """Turn the replicas, the one furthest behind first, until all that have work have reached `until_s` or an arrival comes
        before that."""
        while True:
            busy = [replica for replica in self._replicas if replica.has_work]
            replica = min(busy, key=lambda replica: replica.now_s, default=None)
            if replica is None or replica.now_s >= min(until_s, self._next_arrival_s()):
                return
            events = replica.turn()
            if events:
                self._hear(replica, events, replica.told_s)

    def _hear(self, replica: Replica, events: list[TokenEvent], now_s: float) -> None:
        gaps: Counter[float] = Counter()
        for event in events:
            opened = self._open[event.number]
            if event.token_ids:
                self._output_tokens += 1
                if event.index:
                    gaps[now_s - opened.last_s] += 1
                else:
                    self._latencies["ttft"].add(now_s - opened.asked_s)
                opened.last_s = now_s
            if event.queue_s is not None:
                self._latencies["queue"].add(event.queue_s)
            if event.finish is not None:
                self._finish(replica, event, opened, now_s)
        for gap_s, count in gaps.items():
            self._latencies["itl"].add(gap_s, count)

    def _finish(self, replica: Replica, event: TokenEvent, opened: _Open, now_s: float) -> None:
        del self._open[event.number], replica.completions[event.number]
        replica.num_open -= 1
        self._end_s = max(self._end_s, now_s)
        self._num_done += 1
        if self._num_done % PROGRESS_EVERY == 0:
            self._progress(self._num_done)
        if event.finish is not None and event.finish.kind == "error":
            self._num_failed += 1
        else:
            self._latencies["e2e"].add(now_s - opened.asked_s)
            for following in opened.request.then:
                self._num_later += 1
                heapq.heappush(self._later, (now_s + following.arrival_s, self._num_later, following))
        if self._backlog:
            asked_s, request = self._backlog.popleft()
            self._submit(request, asked_s, now_s)

    # ------------------------------------------------------------------------------------------------- the end
    def _report(self) -> Report:
        stats = [replica.scheduler.stats() for replica in self._replicas]
        prompt, cached = (sum(getattr(s, name) for s in stats) for name in ("prompt_tokens_total", "cached_tokens_total"))
        limited: dict[str, float] = {}
        for replica in self._replicas:
            for name, seconds in replica.totals.limited_s.items():
                limited[name] = limited.get(name, 0.0) + seconds
        busy_s = sum(replica.totals.busy_s for replica in self._replicas)
        duration_s = max(self._end_s, 1e-9)
        return Report(
            num_requests=self._num_done,
            num_failed=self._num_failed,
            num_replicas=len(self._replicas),
            duration_s=duration_s,
            requests_per_s=(self._num_done - self._num_failed) / duration_s,
            output_tokens_per_s=self._output_tokens / duration_s,
            total_tokens_per_s=(self._output_tokens + prompt) / duration_s,
            prompt_tokens=prompt,
            output_tokens=self._output_tokens,
            computed_tokens=sum(s.computed_tokens_total for s in stats),
            cached_tokens=cached,
            hit_rate=cached / prompt if prompt else 0.0,
            num_steps=sum(s.steps_total for s in stats),
            num_retractions=sum(s.retractions_total for s in stats),
            num_preemptions=sum(s.preemptions_total for s in stats),
            num_evicted_pages=sum(s.evicted_pages_total for s in stats),
            busy_share=busy_s / (duration_s * len(self._replicas)),
            limited={name: seconds / max(busy_s, 1e-9) for name, seconds in sorted(limited.items())},
            **{name: latencies.summary() for name, latencies in self._latencies.items()},
        )


def simulate(simulation: Simulation, workload: Iterable[SimRequest], progress: Progress = lambda done: None) -> Report:
    """Run a workload to its end; `progress` hears how many requests are done."""
    return Simulator(simulation, workload, progress).run()
