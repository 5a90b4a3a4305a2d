"""The same requests give the same tokens however they are scheduled: overlap, cache, chunks, page sizes, step order."""

from __future__ import annotations

import random
from itertools import product

import pytest
from null_driver import Driver, submit

from sapwood.core.plan import EngineLimits
from sapwood.core.sampling import LogprobOptions
from sapwood.engine.null_model import EOS_ID, VOCAB_SIZE
from sapwood.messages.types import StepInputs, Submit
from sapwood.scheduler import Scheduler, SchedulerOptions

CHUNKS = {"16": 16, "64": 64, "whole": None}


def requests() -> list[Submit]:
    """Greedy and sampled, scored, grouped, with long shared beginnings."""
    chance = random.Random(7)
    system = [chance.randrange(97, 123) for _ in range(90)]
    batch: list[Submit] = []
    for turn in range(12):
        prompt = system[: chance.choice([0, 30, 64, 90])] + [chance.randrange(97, 123) for _ in range(chance.randrange(1, 40))]
        for sample in range(3 if turn % 4 == 0 else 1):
            number = len(batch) + 1
            report = LogprobOptions(output=turn % 3 == 0, top_n=2, prompt_start=turn if turn % 3 == 0 else None)
            facts = {"max_new_tokens": chance.randrange(1, 60), "temperature": turn % 2 * 0.8, "seed": turn}
            batch.append(submit(number, prompt, group=turn, sample_index=sample, logprobs=report, **facts))
    return batch


def heard(overlap: bool, cache: str, chunk: int | None, page_size: int, mode: str, policy: str = "fcfs") -> Driver:
    """Everything that came back; the pool is so small that requests wait for, and retract, each other."""
    limits = EngineLimits(6, 256, 300 // page_size, page_size, VOCAB_SIZE, (EOS_ID,))
    options = SchedulerOptions(step_token_budget=chunk, cache=cache, mode=mode, policy=policy, max_reserved_tokens=1)
    driver = Driver(limits, options, overlap=overlap)
    driver.run(*requests())
    return driver


@pytest.fixture(scope="module")
def alone() -> list[object]:
    """Each request on a replica of its own."""
    results: list[object] = []
    for request in requests():
        driver = Driver(EngineLimits(1, 256, 256, 1, VOCAB_SIZE, (EOS_ID,)), SchedulerOptions(cache="chunk"))
        driver.run(request)
        results.append(comparable(driver, request.number))
    return results


def comparable(driver: Driver, number: int) -> object:
    """What must not depend on scheduling."""
    heard = driver.heard[number]
    return heard.token_ids, heard.logprobs, heard.prompt_logprobs, heard.finishes


@pytest.mark.parametrize(("page_size", "mode", "chunk"), list(product([1, 16], ["mixed", "prefill-first"], CHUNKS)))
def test_same_tokens_however_scheduled(alone: list[object], page_size: int, mode: str, chunk: str) -> None:
    for overlap, cache in product([False, True], ["radix", "chunk"]):
        driver = heard(overlap, cache, CHUNKS[chunk], page_size, mode)
        assert [comparable(driver, request.number) for request in requests()] == alone


def test_same_tokens_under_every_policy(alone: list[object]) -> None:
    driver = heard(True, "radix", 64, 16, "mixed", policy="lpm")
    assert [comparable(driver, request.number) for request in requests()] == alone


def test_the_matrix_exercises_reuse_and_retraction() -> None:
    stats = heard(True, "radix", 16, 16, "mixed").scheduler.stats()
    assert stats.cached_tokens_total > 0 and stats.retractions_total > 0 and stats.evicted_pages_total > 0


def test_a_log_of_inputs_replays_to_the_same_plans() -> None:
    """All ranks decide alike: a second scheduler that is fed the first one's inputs makes equal plans, array for array."""
    limits = EngineLimits(4, 256, 40, 16, VOCAB_SIZE, (EOS_ID,))
    options = SchedulerOptions(step_token_budget=32, max_reserved_tokens=4)
    driver = Driver(limits, options, overlap=True)
    log: list[StepInputs] = []
    decide = driver.scheduler.step
    driver.scheduler.step = lambda inputs: decide(log.append(inputs) or inputs)  # type: ignore[method-assign,func-returns-value]
    driver.run(*requests())
    twin = Scheduler(limits, options)
    plans = [plan for plan in (twin.step(inputs).plan for inputs in log) if plan is not None]
    assert len(plans) > 20
    assert [repr(plan) for plan in plans] == [repr(plan) for plan in driver.plans]
