"""A request that shares a prefix with a running prompt waited for that prompt, although what they share lay behind it and had
lost its window, so that nothing was gained."""

from __future__ import annotations

import pytest

from sapwood.core.plan import EngineLimits
from sapwood.core.sampling import SamplingParams
from sapwood.engine.null import NullEngine, NullOptions
from sapwood.engine.null_model import EOS_ID, VOCAB_SIZE
from sapwood.messages.types import StepInputs, Submit, ToWorker, pack_ids
from sapwood.scheduler import Scheduler, SchedulerOptions

LIMITS = EngineLimits(4, 600, 300, 4, VOCAB_SIZE, (EOS_ID,), window=8, num_window_pages=12)
PROMPT = [97 + index % 26 for index in range(400)]


def submit(number: int, ids: list[int]) -> Submit:
    return Submit(number, number, 0, pack_ids(ids), SamplingParams(temperature=0.0, seed=number, max_new_tokens=4))


@pytest.mark.parametrize(("num_shared", "waits"), [(60, False), (390, True)])
def test_who_shares_what_lies_behind_does_not_wait(num_shared: int, waits: bool) -> None:
    scheduler, engine = Scheduler(LIMITS, SchedulerOptions(step_token_budget=32)), NullEngine(LIMITS, NullOptions())
    results = list[object]()

    def tick(*messages: ToWorker) -> None:
        plan = scheduler.step(StepInputs(messages=list(messages), results=results)).plan  # type: ignore[arg-type]
        results[:] = [engine.launch(plan).wait()] if plan is not None else []

    tick(submit(1, PROMPT))
    while scheduler.stats().computed_tokens_total < 200:  # the leader is halfway
        tick()
    tick(submit(2, [*PROMPT[:num_shared], *[65] * 20]))
    assert scheduler.stats().num_waiting == (1 if waits else 0)
    while scheduler.has_work:
        tick()
    assert scheduler.check() == []
    num_cached = scheduler.stats().cached_tokens_total
    assert num_cached > 300 if waits else num_cached == 0
