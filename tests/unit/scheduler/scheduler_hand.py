"""A scheduler driven by hand: the test says which ids the model produced, and looks at every plan."""

from __future__ import annotations

from collections import deque
from typing import Any

from sapwood.core.plan import EngineLimits, StepPlan, StepResult
from sapwood.core.sampling import SamplingParams, TokenLogprobs
from sapwood.messages.types import StepInputs, Submit, TokenEvent, ToWorker, pack_ids
from sapwood.scheduler import Scheduler, SchedulerOptions, StepOutcome

EOS = 99


def limits(num_slots: int = 4, max_len: int = 64, num_pages: int = 64, page_size: int = 4) -> EngineLimits:
    return EngineLimits(num_slots, max_len, num_pages, page_size, 100, (EOS,))


def ask(number: int, ids: list[int], **more: Any) -> Submit:
    """A Submit; keywords of SamplingParams and of Submit are told apart by name."""
    params = {key: more.pop(key) for key in list(more) if key in SamplingParams.__struct_fields__}
    group = more.pop("group", number)
    epoch = more.pop("epoch", 0)
    return Submit(number, group, epoch, pack_ids(ids), SamplingParams(**{"seed": 0, **params}), **more)


class Hand:
    """Plans are confirmed one by one with `confirm`; every step's events are kept. The law is checked after each step."""

    def __init__(self, engine: EngineLimits | None = None, **options: Any) -> None:
        self.scheduler = Scheduler(engine or limits(), SchedulerOptions(**options))
        self.in_flight: deque[StepPlan] = deque()
        self.results: list[StepResult] = []
        self.events: list[TokenEvent] = []
        self.next_id = 10
        self.now_s = 0.0

    def step(self, *messages: ToWorker) -> StepOutcome:
        """One decision, with the results confirmed since the last one."""
        outcome = self.scheduler.step(StepInputs(messages=list(messages), results=self.results, now_s=self.now_s))
        self.results = []
        self.events += outcome.events
        if outcome.plan is not None:
            self.in_flight.append(outcome.plan)
        assert self.scheduler.check() == [] and self.scheduler.num_unaccounted == 0
        return outcome

    def confirm(self, *token_ids: int, **logprobs: Any) -> None:
        """Finish the oldest launched step; `token_ids` for its sampling rows in order, `next_id` for those not named."""
        plan, named = self.in_flight.popleft(), deque(token_ids)
        ids = [-1 if not row.samples else named.popleft() if named else self.next_id for row in plan.rows]
        self.results.append(StepResult(plan.step, ids, **logprobs))

    def turn(self, *messages: ToWorker) -> StepOutcome:
        """A step of the plain loop: decide, run at once."""
        outcome = self.step(*messages)
        if outcome.plan is not None:
            self.confirm()
        return outcome

    def finish(self, max_steps: int = 500) -> None:
        """Turn until idle."""
        while self.in_flight:
            self.confirm()
        for _ in range(max_steps):
            self.turn()
            if self.scheduler.idle:
                return
        raise AssertionError("not idle")

    def finishes(self) -> dict[int, str]:
        return {event.number: event.finish.kind for event in self.events if event.finish is not None}

    def tokens(self, number: int) -> list[int]:
        return [token for event in self.events if event.number == number for token in event.token_ids]


def rows(outcome: StepOutcome) -> list[tuple[int, int, int, bool]]:
    """(slot, first, count, samples) of each row."""
    assert outcome.plan is not None
    return [(row.slot, row.first, row.count, row.samples) for row in outcome.plan.rows]


def entry(token_id: int) -> TokenLogprobs:
    return TokenLogprobs(token_id, -1.0)
