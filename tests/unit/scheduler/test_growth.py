"""How the work of a decision and of the prefix indexes grows, counted in executed bytecodes: the same on every machine.

What runs inside one C call (a sort, a comparison of bytes) counts as one; those are the cheap part, and none is worse than
n log n.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import log2
from types import FrameType
from typing import Any

import numpy as np
import pytest

from sapwood.core.plan import EngineLimits, StepPlan, StepResult
from sapwood.core.sampling import SamplingParams
from sapwood.kvcache import PagePool, prefix_indexes
from sapwood.messages.types import StepInputs, Submit
from sapwood.scheduler import Scheduler, SchedulerOptions
from sapwood.scheduler.policy import policies

PAGE = 16


def num_operations(work: Callable[[], Any]) -> int:
    """Bytecodes executed by `work` and by what it calls."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def ids(seed: int, count: int) -> bytes:
    return np.random.default_rng(seed).integers(0, 50_000, count, dtype=np.int32).tobytes()


def put(pool: PagePool, index: Any, run: bytes) -> None:
    match = index.match("", run)
    handle = index.lock(match).handle
    fresh = pool.take(len(run) // 4 // PAGE - len(match.pages))
    index.unlock(index.insert(handle, run[len(match.pages) * PAGE * 4 :], fresh).handle)


@pytest.mark.parametrize("kind", ["radix", "hash"])
def test_match_and_insert_are_linear_in_the_prompt(kind: str) -> None:
    counts = []
    for length in (2048, 4096, 32768):
        pool = PagePool(length // PAGE, PAGE)
        index: Any = prefix_indexes.get(kind)(pool, "lru")
        run = ids(1, length)
        counts.append((num_operations(lambda: put(pool, index, run)), num_operations(lambda: index.match("", run))))  # noqa: B023
    for small, middle, large in zip(*counts, strict=True):
        per_token = max((middle - small) / 2048, 0.01)
        assert large <= middle + 1.1 * per_token * (32768 - 4096) + 50, counts


@pytest.mark.parametrize("eviction", ["lru", "slru", "tlru"])
@pytest.mark.parametrize("kind", ["radix", "hash"])
def test_evicting_a_page_takes_no_more_from_a_large_tree(kind: str, eviction: str) -> None:
    per_page = []
    for num_tokens in (8_000, 64_000, 256_000):
        pool = PagePool(num_tokens // PAGE + 64, PAGE)
        index: Any = prefix_indexes.get(kind)(pool, eviction)
        shared = ids(0, 256)
        for seed in range(1, num_tokens // 512):
            put(pool, index, shared[: 64 * (seed % 16)] + ids(seed, 512))
        index.evict(8)
        per_page.append(num_operations(lambda: [index.evict(1) for _ in range(50)]) / 50)  # noqa: B023
    assert per_page[2] <= 1.5 * per_page[0] + 20, per_page


class Busy:
    """A scheduler with a full queue whose steps all admit somebody."""

    def __init__(self, policy: str, num_running: int, num_waiting: int) -> None:
        limits = EngineLimits(num_running, 512, num_running * 24, PAGE, 2**31 - 1, ())
        options = SchedulerOptions(policy=policy, step_token_budget=512 + num_running, request_timelines=0)
        self.scheduler = Scheduler(limits, options)
        self._num_waiting, self._number = num_waiting, 0
        self._plans: list[StepPlan | None] = []

    def inputs(self) -> StepInputs:
        messages = []
        for _ in range(self._num_waiting - self.scheduler.stats().num_waiting):
            self._number += 1
            params = SamplingParams(max_new_tokens=8 + self._number % 17, temperature=0.0, seed=1, ignore_eos=True)
            prompt = ids(self._number % 32, 64) + ids(1000 + self._number, 64)
            messages.append(Submit(self._number, self._number, 0, prompt, params))
        done = [self._plans.pop(0)] if len(self._plans) > 1 else []
        results = [StepResult(plan.step, [7 if row.samples else -1 for row in plan.rows]) for plan in done if plan is not None]
        return StepInputs(messages=messages, results=results, now_s=float(self._number))

    def step(self) -> None:
        self._plans.append(self.scheduler.step(self.inputs()).plan)

    def operations_per_step(self) -> float:
        """The mean over enough steps to see every kind; whoever is refilled is submitted outside of them."""
        for _ in range(40):
            self.step()
        total = 0
        for _ in range(12):
            given = self.inputs()
            arrivals = StepInputs(messages=given.messages, now_s=given.now_s)
            self._plans.append(self.scheduler.step(arrivals).plan) if given.messages else None
            rest = StepInputs(results=given.results, now_s=given.now_s)
            total += num_operations(lambda: self._plans.append(self.scheduler.step(rest).plan))  # noqa: B023
        return total / 12


@pytest.mark.parametrize("policy", list(policies))
def test_a_step_grows_no_faster_than_n_log_n(policy: str) -> None:
    small = Busy(policy, 8, 64).operations_per_step()
    long_queue = Busy(policy, 8, 1024).operations_per_step()
    wide = Busy(policy, 64, 64).operations_per_step()
    assert long_queue <= small * 16 * log2(1024) / log2(64), (small, long_queue)
    assert wide <= small * 8 * log2(64) / log2(8), (small, wide)
