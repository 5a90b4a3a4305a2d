"""Nobody starves: under every policy a request that everybody overtakes is admitted after a bounded number of others, while
better ones keep coming; and priorities mean what they say."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from null_driver import Driver, submit
from null_traces import trace_settings

from sapwood.core.plan import EngineLimits
from sapwood.engine.null_model import EOS_ID, VOCAB_SIZE
from sapwood.messages.types import Submit
from sapwood.scheduler import SchedulerOptions
from sapwood.scheduler.policy import policies

SYSTEM = [97 + n % 26 for n in range(48)]


def flood(number: int, chance: random.Random) -> Submit:
    """What every policy prefers to the victim below: cached, short to prefill, long to decode, important, with a hot key."""
    prompt = SYSTEM + [chance.randrange(97, 123)]
    return submit(number, prompt, max_new_tokens=6, ignore_eos=True, priority=5, routing_key="hot")


VICTIM = submit(1, [120] * 60, max_new_tokens=2, ignore_eos=True, priority=-5, routing_key="cold")


def num_admitted_before(policy: str, interval: int, threshold: int | None, overlap: bool, seed: int, patience: int) -> int | None:
    """How many others ended before the victim did; None if it has not after `patience` of them."""
    limits = EngineLimits(2, 128, 60, 4, VOCAB_SIZE, (EOS_ID,))
    options = SchedulerOptions(
        policy=policy,
        aging_interval=interval,
        preemption_threshold=threshold,
        priority_scheduling=True,
        follow_tokens=1000,  # followers step aside, which would let the victim in
    )
    driver, chance, number = Driver(limits, options, overlap=overlap), random.Random(seed), 2
    driver.tick(*(flood(n, chance) for n in (2, 3, 4, 5)))
    number = 6
    driver.tick(VICTIM)
    while True:
        waiting = driver.scheduler.stats().num_waiting
        fresh = [flood(n, chance) for n in range(number, number + max(6 - waiting, 0))]
        number += len(fresh)
        driver.tick(*fresh)
        num_ended = sum(bool(heard.finishes) for heard in driver.heard.values())
        if 1 in driver.heard and driver.heard[1].finishes:
            assert driver.heard[1].token_ids == driver.expected(VICTIM)
            return num_ended
        if num_ended > patience:
            return None


@trace_settings(40)
@given(
    st.sampled_from(list(policies)),
    st.sampled_from([1, 4, 16]),
    st.sampled_from([None, 0, 10]),
    st.booleans(),
    st.integers(0, 2**16),
)
def test_ageing_lets_everybody_through(policy: str, interval: int, threshold: int | None, overlap: bool, seed: int) -> None:
    """At most six older ones wait at any time; each takes at most `interval` admissions until it is its turn."""
    assert num_admitted_before(policy, interval, threshold, overlap, seed, patience=interval * 8 + 16) is not None


@pytest.mark.parametrize("policy", list(policies))
def test_without_ageing_the_victim_starves(policy: str) -> None:
    assert num_admitted_before(policy, 0, 0, True, 1, patience=200) is None


@trace_settings(60)
@given(st.integers(0, 2**32 - 1), st.sampled_from([None, 0, 3]), st.booleans())
def test_a_higher_priority_never_ends_later_for_it(seed: int, threshold: int | None, overlap: bool) -> None:
    """One slot, everybody there at the start, no ageing: requests end in order of priority, then arrival."""
    chance = random.Random(seed)
    limits = EngineLimits(1, 64, 40, 4, VOCAB_SIZE, (EOS_ID,))
    options = SchedulerOptions(policy="priority", aging_interval=0, preemption_threshold=threshold)
    driver = Driver(limits, options, overlap=overlap)
    requests = [
        submit(
            n, [chance.randrange(97, 123) for _ in range(chance.randrange(1, 30))], priority=chance.randrange(5), max_new_tokens=3
        )
        for n in range(1, 12)
    ]
    driver.run(*requests)
    by_rank: Callable[[Submit], tuple[int, int]] = lambda request: (-request.priority, request.number)  # noqa: E731
    assert list(driver.heard) == [request.number for request in sorted(requests, key=by_rank)]
    assert driver.scheduler.stats().preemptions_total == 0
