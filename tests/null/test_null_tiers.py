"""Tiers below the KV store: the right content comes back, in whatever order storage answers, and after a restart."""

from __future__ import annotations

import pytest
from hypothesis import given
from null_driver import Driver, submit
from null_storage import SlowStorage
from null_traces import Trace, World, judge, make_trace, play, trace_settings, traces, worlds

from sapwood.core.plan import EngineLimits
from sapwood.engine.null_model import EOS_ID, VOCAB_SIZE
from sapwood.kvcache.tiers import TierOptions
from sapwood.messages.types import Drain, Flush, StepStats
from sapwood.scheduler import SchedulerOptions

PROMPTS = {number: [number] * 64 for number in range(97, 105)}


def replica(num_pages: int, num_host_pages: int, storage: SlowStorage | None = None, policy: str = "write_through") -> Driver:
    limits = EngineLimits(2, 128, num_pages, 8, VOCAB_SIZE, (EOS_ID,), num_host_pages)
    tiers = TierOptions(write_policy=policy, has_storage=storage is not None, prefetch="wait_complete")
    return Driver(limits, SchedulerOptions(tiers=tiers), storage=storage)


def ask(driver: Driver, number: int, name: int) -> int:
    """One request; how many of its tokens were cached."""
    driver.run(submit(number, PROMPTS[name], max_new_tokens=2, ignore_eos=True))
    return driver.heard[number].num_cached


def stats(driver: Driver) -> StepStats:
    return driver.scheduler.stats()


@pytest.mark.parametrize("policy", ["write_through", "write_back"])
def test_what_the_pool_gave_up_comes_back_from_the_host(policy: str) -> None:
    driver = replica(10, 80, policy=policy)
    assert [ask(driver, name, name) for name in PROMPTS] == [0] * 8
    assert [ask(driver, 100 + name, name) for name in PROMPTS] == [56] * 8  # 63 may come from the cache, in whole pages
    assert stats(driver).cached_host_tokens_total == 8 * 56
    assert driver.heard[100 + 97].token_ids == driver.heard[97].token_ids
    alone = replica(10, 0)
    assert [ask(alone, name, name) for name in PROMPTS] + [ask(alone, 100 + name, name) for name in PROMPTS] == [0] * 16


def test_selective_write_through_saves_what_was_used_twice() -> None:
    driver = replica(64, 80, policy="write_through_selective")
    ask(driver, 1, 97)
    ask(driver, 2, 98)
    assert stats(driver).saved_pages_total == 0
    ask(driver, 3, 97)
    assert stats(driver).saved_pages_total == 8  # the last one was computed again, and found to be known


def test_a_restart_finds_what_the_storage_holds() -> None:
    storage = SlowStorage(1)
    first = replica(64, 16, storage)
    before = [ask(first, name, name) for name in PROMPTS]
    second = replica(64, 16, storage)
    after = [ask(second, name, name) for name in PROMPTS]
    assert (before, after) == ([0] * 8, [56] * 8)
    assert stats(second).cached_storage_tokens_total == 8 * 56
    assert [second.heard[name].token_ids for name in PROMPTS] == [first.heard[name].token_ids for name in PROMPTS]


@pytest.mark.parametrize("num_host_pages", [2, 16, 80])
@pytest.mark.parametrize("policy", ["write_through", "write_back"])
def test_what_only_memory_holds_is_stored_when_the_engine_ends(policy: str, num_host_pages: int) -> None:
    storage = SlowStorage(1)
    first = replica(80, num_host_pages, storage, policy)
    for name in PROMPTS:
        ask(first, name, name)
    first.run(Drain(save_s=60.0))
    assert len(storage.pages) == 64
    second = replica(80, 16, storage, policy)
    assert [ask(second, name, name) for name in PROMPTS] == [56] * 8
    assert [second.heard[name].token_ids for name in PROMPTS] == [first.heard[name].token_ids for name in PROMPTS]


def test_running_requests_end_before_the_cache_is_stored() -> None:
    storage = SlowStorage(1)
    driver = replica(64, 16, storage, "write_back")
    driver.tick(submit(1, PROMPTS[97], max_new_tokens=8, ignore_eos=True))
    driver.run(Drain(save_s=60.0), submit(2, PROMPTS[98], max_new_tokens=2))
    assert driver.heard[1].finishes[0].kind == "length" and driver.heard[2].finishes[0].kind == "error"
    assert len(storage.pages) == 8


@pytest.mark.parametrize(("save_s", "again_s"), [(0.0, None), (2.0, None), (60.0, 0.0)])
def test_storing_the_cache_takes_no_longer_than_it_may(save_s: float, again_s: float | None) -> None:
    class Slow(SlowStorage):
        def turn(self, host_pages: object) -> list[object]:  # type: ignore[override]
            return []

    driver = replica(64, 16, Slow(0), "write_back")
    driver.scheduler._custody.tiers.storage._policy = "best_effort"
    driver.turn_s = 0.1
    for name in PROMPTS:
        driver.tick(submit(name, PROMPTS[name], max_new_tokens=2))
    while driver.scheduler.has_work:
        driver.tick()
    driver.tick(Drain(save_s))
    began_s = driver.now_s
    assert driver.scheduler.has_work == (save_s > 0)
    if again_s is not None:
        driver.tick(Drain(again_s))
    for _ in range(int(10 * (save_s if again_s is None else again_s)) + 2):
        driver.tick()
    assert not driver.scheduler.has_work and driver.now_s - began_s < 4.0


def test_selective_write_through_stores_nothing_more_at_the_end() -> None:
    storage = SlowStorage(1)
    driver = replica(64, 16, storage, "write_through_selective")
    ask(driver, 1, 97)
    driver.run(Drain(save_s=60.0))
    assert not storage.pages


def test_namespaces_do_not_share_in_any_tier() -> None:
    storage = SlowStorage(1)
    for replicas in range(2):
        driver = replica(64, 16, storage)
        driver.run(submit(1, PROMPTS[97], max_new_tokens=2, namespace=f"tenant {replicas}"))
        assert driver.heard[1].num_cached == 0


def test_a_request_waits_no_longer_than_its_patience() -> None:
    class Deaf(SlowStorage):
        def turn(self, host_pages: object) -> list[object]:  # type: ignore[override]
            return []

    driver = replica(64, 16, Deaf(0))
    driver.scheduler._custody.tiers.storage._policy = "timeout"
    driver.turn_s = 0.1
    driver.tick(submit(1, PROMPTS[97], max_new_tokens=2))
    for _ in range(40):
        driver.tick()
    assert driver.heard[1].finishes and driver.now_s < 5.0


def test_flushing_empties_the_host_tier() -> None:
    driver = replica(10, 80)
    ask(driver, 1, 97)
    driver.run(Flush(1))
    assert driver.answers[0].ok and stats(driver).num_host_cached_pages == 0
    assert ask(driver, 2, 97) == 0


def test_locking_a_match_may_save_pages_but_not_over_those_to_be_loaded() -> None:
    """Found by many random traces: the match's host pages were held only after its pages on the device had been locked, which
    under selective write-through saves them."""
    limits = EngineLimits(2, 72, 32, 2, VOCAB_SIZE, (EOS_ID,), num_host_pages=3)
    options = SchedulerOptions(
        step_token_budget=8, mode="prefill-first", eviction="fifo", tiers=TierOptions(write_policy="write_through_selective"),
        init_new_token_ratio=0.01, max_reserved_tokens=1, follow_tokens=1, publish_tokens=1,
    )  # fmt: skip
    world, trace = World(limits, options, overlap=True), make_trace(116, 12)
    judge(world, trace, play(world, trace))


@trace_settings(150)
@given(worlds(host_pages=(2, 5, 40)), worlds(host_pages=(2, 5, 40)), traces(10), traces(10))
def test_whatever_arrives_on_two_replicas_one_after_the_other(world: World, other: World, trace: Trace, later: Trace) -> None:
    """The second begins with the first one's storage. (Traces share their prompts' alphabet, and a trace may come again.)"""
    storage = SlowStorage(trace.seed, loss=0.05)
    first = play(world, trace, storage=storage)
    judge(world, trace, first)
    first.run(Drain(save_s=60.0))
    if world.limits.page_size == other.limits.page_size:
        judge(other, trace, play(other, trace, storage=storage))
        judge(other, later, play(other, later, storage=storage))
