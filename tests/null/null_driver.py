"""Drives a scheduler and a null engine the way a worker does, plain or overlapped, and checks the laws after every step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import numpy as np
from null_storage import SlowStorage

from sapwood.core.plan import EngineLimits, StepPlan
from sapwood.core.sampling import LogprobOptions, SamplingParams, TokenLogprobs
from sapwood.engine.null import NullEngine, NullOptions, NullPending
from sapwood.messages.types import Answer, Finish, StepInputs, Submit, TokenEvent, ToWorker, pack_ids
from sapwood.scheduler import Scheduler, SchedulerOptions


def submit(number: int, ids: list[int], *, group: int | None = None, **more: object) -> Submit:
    """A Submit of `ids`; keywords of SamplingParams and of Submit are told apart by name."""
    of_params = {key: more.pop(key) for key in list(more) if key in SamplingParams.__struct_fields__}
    params = SamplingParams(**{"temperature": 0.0, "seed": number, **of_params})  # type: ignore[arg-type]
    return Submit(number, number if group is None else group, 0, pack_ids(ids), params, **more)  # type: ignore[arg-type]


@dataclass
class Heard:
    """What came back for one request."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[list[TokenLogprobs]] = field(default_factory=list)
    finishes: list[Finish] = field(default_factory=list)
    num_cached: int = 0
    num_retractions: int = 0
    vector: bytes = b""


class Driver:
    """One replica on the null engine. `heard` maps request numbers to what came back, `heard_at` to when, on a virtual clock
    on which each step takes what `cost` says."""

    def __init__(
        self,
        limits: EngineLimits,
        options: SchedulerOptions,
        *,
        overlap: bool = False,
        engine: NullOptions | None = None,
        storage: SlowStorage | None = None,
    ) -> None:
        self.storage = storage or SlowStorage(0)
        self.turn_s = 0.0
        self.scheduler = Scheduler(limits, options)
        self.engine = NullEngine(limits, engine or NullOptions(is_racy=overlap))
        self.overlap = overlap
        self.heard: dict[int, Heard] = {}
        self.answers: list[Answer] = []
        self.plans: list[object] = []
        self.num_stalls = 0
        self._in_flight: deque[NullPending] = deque()
        self.now_s = 0.0
        self.cost: Callable[[StepPlan], float] = lambda plan: 0.001
        self.heard_at: dict[int, list[float]] = {}

    def tick(self, *messages: ToWorker) -> None:
        """One turn of the loop."""
        depth = 1 if self.overlap else 0
        results = []
        while len(self._in_flight) > depth or (self._in_flight and self._starved):
            pending = self._in_flight.popleft()
            duration_s = self.cost(pending.plan)
            self.now_s += duration_s
            results.append(msgspec.structs.replace(pending.wait(), duration_s=duration_s))
        was_busy = bool(self._in_flight)
        done = self.storage.turn(self.engine.host_pages)
        self.now_s += self.turn_s
        inputs = StepInputs(messages=list(messages), results=results, transfers=done, now_s=self.now_s)
        outcome = self.scheduler.step(inputs)
        self.storage.submit(outcome.transfers, self.engine.host_pages)
        for event in outcome.events:
            self._hear(event)
            self.heard_at.setdefault(event.number, []).extend([self.now_s] * len(event.token_ids))
        self.answers += outcome.answers
        self._starved = outcome.plan is None
        if outcome.plan is not None:
            self.plans.append(outcome.plan)
            self._in_flight.append(self.engine.launch(outcome.plan))
        elif not was_busy and not self.storage.is_busy and not done and self.scheduler.has_work:
            self.num_stalls += 1
        problems = self.scheduler.check()
        assert not problems, problems
        assert self.scheduler.num_unaccounted == 0

    _starved = False

    def run(self, *messages: ToWorker, max_steps: int = 20000) -> None:
        """Send messages and go on until idle."""
        self.tick(*messages)
        for _ in range(max_steps):
            if self.scheduler.idle and not self.storage.is_busy:
                return
            self.tick()
            assert self.num_stalls == 0, "nothing was launched although work is left and nothing is in flight"
        raise AssertionError(f"not idle after {max_steps} steps")

    def _hear(self, event: TokenEvent) -> None:
        heard = self.heard.setdefault(event.number, Heard())
        assert not heard.finishes, f"request {event.number} had an event after its terminal one"
        if heard.token_ids:
            assert event.index == self._first_index[event.number] + len(heard.token_ids)
        else:
            self._first_index[event.number] = event.index
        heard.token_ids += event.token_ids
        heard.logprobs += event.logprobs or []
        heard.num_cached, heard.num_retractions = event.num_cached, event.num_retractions
        if event.prompt_logprobs is not None:
            heard.prompt_logprobs.append(event.prompt_logprobs)
        if event.finish is not None:
            heard.finishes.append(event.finish)
            heard.vector = event.vector

    @property
    def _first_index(self) -> dict[int, int]:
        return self.__dict__.setdefault("first_index", {})

    def expected(self, request: Submit) -> list[int]:
        """What the request would get alone: the pure model's completion."""
        ids = np.frombuffer(request.token_ids, dtype="<i4").tolist()
        num_prompt = len(ids) - request.num_emitted
        return self.engine.model.complete(ids, request.params, request.sample_index, num_prompt)[request.num_emitted :]


__all__ = ["Driver", "Heard", "LogprobOptions", "submit"]
