"""One replica in virtual time: the scheduler, a device that only takes time, and the worker's loop around them.

Owns its clock; does not know workloads or other replicas. Invariant: the order of gathering, deciding, launching and waiting is
that of `worker.loop`, so equal step times give the plans of a real worker.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from sapwood.core.plan import EngineLimits, StepPlan, StepResult
from sapwood.messages.types import StepInputs, TokenEvent, ToWorker
from sapwood.scheduler.options import SchedulerOptions
from sapwood.scheduler.scheduler import Scheduler
from sapwood.simulate.cost import StepTimes


@dataclass(frozen=True, slots=True)
class Running:
    """A launched step and when it ends."""

    plan: StepPlan
    ends_s: float
    result: StepResult


@dataclass(slots=True)
class ReplicaTotals:
    """Sums over a replica's life. `limited_s`: for how long each limit kept somebody waiting; `busy_s`: time in steps."""

    limited_s: dict[str, float] = field(default_factory=dict)
    busy_s: float = 0.0


class Replica:
    """Turned from outside. `completions` holds, by request number, the prompt's length and the ids that will be sampled (the last
    one again and again when they run out); the caller fills it, and gives requests their number as seed. `last_plan` is what the
    latest turn launched, `told_s` when its events went out. How much steps differ from the cost model is drawn from `chance`."""

    def __init__(
        self, limits: EngineLimits, options: SchedulerOptions, cost: StepTimes, overlap: bool, chance: Random | None = None
    ) -> None:
        self.scheduler = Scheduler(limits, options)
        self.now_s = 0.0
        self.told_s = 0.0
        self.num_open = 0
        self.last_plan: StepPlan | None = None
        self.totals = ReplicaTotals()
        self.completions: dict[int, tuple[int, list[int]]] = {}
        self._cost = cost
        self._spread = cost.spread
        self._chance = chance or Random(options.seed)
        self._overlap = overlap
        self.inbox: list[ToWorker] = []
        self._running: Running | None = None
        self._results: list[StepResult] = []
        self._free_s = 0.0
        self._by_slot: dict[int, tuple[int, list[int]]] = {}

    def send(self, message: ToWorker, now_s: float) -> None:
        """A message reaches the replica; an idle one wakes up."""
        if not self.has_work:
            self.now_s = max(self.now_s, now_s)
        self.inbox.append(message)

    @property
    def has_work(self) -> bool:
        """Whether a turn of the loop would do anything."""
        return bool(self.inbox or self._results or self._running is not None or self.scheduler.has_work)

    def turn(self) -> list[TokenEvent]:
        """One turn of the loop; the events are those of what had ended at `now_s` as it was when the turn began."""
        inputs = StepInputs(messages=self.inbox, results=self._results, now_s=self.now_s)
        self.inbox, self._results = [], []
        outcome = self.scheduler.step(inputs)
        self.last_plan = outcome.plan
        self.now_s += self._cost.turn_s if outcome.plan is not None else 0.0
        self.told_s = self.now_s
        launched = self._launch(outcome.plan) if outcome.plan is not None else None
        waited = self._running if self._overlap else launched
        self._running = launched if self._overlap else None
        if waited is not None:
            self.now_s = max(self.now_s, waited.ends_s)
            self._results = [waited.result]
        return outcome.events

    def _launch(self, plan: StepPlan) -> Running:
        for start in plan.starts:
            self._by_slot[start.slot] = self.completions[start.params.seed or 0]
        by_slot, ids = self._by_slot, list[int]()  # what follows runs for every row of every step
        num_tokens = num_attended = num_read = 0
        for row in plan.rows:
            first, count = row.first, row.count
            num_tokens += count
            num_attended += count * first + count * (count + 1) // 2
            num_read += first + count
            if row.samples:
                num_prompt, completion = by_slot[row.slot]
                position = first + count - num_prompt
                ids.append(completion[position] if position < len(completion) else completion[-1])
            else:
                ids.append(-1)
        duration_s = self._cost.seconds(num_tokens, num_attended, num_read) if num_tokens else 0.0
        if self._spread:
            duration_s *= self._spread[int(self._chance.random() * len(self._spread))]
        began_s = max(self.now_s, self._free_s)
        self._free_s = began_s + duration_s
        self.totals.busy_s += duration_s
        limit, limited_s = self.scheduler.limit.value, self.totals.limited_s
        limited_s[limit] = limited_s.get(limit, 0.0) + duration_s
        return Running(plan, self._free_s, StepResult(plan.step, ids, duration_s=duration_s))
