"""Requests for vectors, whole or in chunks, beside requests for text: each gets the vector of its own prompt."""

from __future__ import annotations

import random

import numpy as np
import pytest
from null_driver import Driver, submit

from sapwood.core.plan import StepPlan
from sapwood.core.pooling import Pooling
from sapwood.engine.null_model import null_limits
from sapwood.messages.types import Abort, Submit, unpack_ids
from sapwood.scheduler import SchedulerOptions


def expected(driver: Driver, request: Submit) -> bytes:
    ids = np.array(unpack_ids(request.token_ids))
    context = driver.engine.model.contexts(driver.engine.model.content(ids), len(ids) - 1)[0]
    assert request.pooling is not None
    return driver.engine.model.vector(context, request.pooling)


def crowd(rng: random.Random, count: int) -> list[Submit]:
    """Half of them want vectors; many begin alike."""
    requests = []
    for number in range(1, count + 1):
        ids = [*range(rng.choice((0, 20))), *rng.choices(range(200), k=rng.randint(1, 60))]
        if rng.random() < 0.5:
            second = rng.choice((None, 1))
            requests.append(submit(number, ids, pooling=Pooling(second), max_new_tokens=rng.choice((0, 5))))
        else:
            requests.append(submit(number, ids, max_new_tokens=rng.randint(1, 20)))
    return requests


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("cache", ["radix", "chunk"])
@pytest.mark.parametrize("seed", range(5))
def test_vectors_are_a_function_of_the_prompt(overlap: bool, cache: str, seed: int) -> None:
    """Small pool and budget: prompts are cut, requests are retracted."""
    limits = null_limits(num_slots=6, max_len=100, num_pages=14, page_size=8)
    driver = Driver(limits, SchedulerOptions(step_token_budget=17, cache=cache), overlap=overlap)
    requests = crowd(random.Random(seed), 40)
    driver.run(*requests)
    for request in requests:
        heard = driver.heard[request.number]
        assert len(heard.finishes) == 1 and heard.finishes[0].kind in ("length", "stop")
        if request.pooling is None:
            assert heard.token_ids == driver.expected(request) and heard.vector == b""
        else:
            assert heard.token_ids == [] and heard.vector == expected(driver, request)


def test_an_aborted_request_has_no_vector() -> None:
    driver = Driver(null_limits(), SchedulerOptions(step_token_budget=4))
    driver.tick(submit(1, list(range(50)), pooling=Pooling()))
    driver.run(Abort([1]))
    assert driver.heard[1].finishes[0].kind == "abort" and driver.heard[1].vector == b""


@pytest.mark.parametrize("budget", [1, 40, None])
def test_whole_prompts_are_never_cut(budget: int | None) -> None:
    driver = Driver(null_limits(), SchedulerOptions(step_token_budget=budget, whole_prompts=True, cache="chunk"))
    rng = random.Random(3)
    requests = [submit(n, rng.choices(range(200), k=rng.randint(1, 30)), pooling=Pooling()) for n in range(1, 60)]
    driver.run(*requests)
    plans = [plan for plan in driver.plans if isinstance(plan, StepPlan)]
    lengths = {request.number: len(unpack_ids(request.token_ids)) for request in requests}
    assert sorted(row.count for plan in plans for row in plan.rows) == sorted(lengths.values())
    assert all(driver.heard[request.number].vector == expected(driver, request) for request in requests)
    if budget is not None:
        assert all(plan.num_tokens - plan.rows[-1].count < budget for plan in plans if plan.rows)
