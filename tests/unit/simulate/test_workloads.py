"""Generated workloads are what they say, and the bound on what a cache can find of one is a bound, and close."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.core.plan import EngineLimits
from sapwood.scheduler.options import SchedulerOptions
from sapwood.simulate import CostModel, Report, Simulation, simulate
from sapwood.simulate.bound import every_request, largest_hit_rate
from sapwood.simulate.workload import VOCAB_SIZE, SimRequest, WorkloadOptions, workloads

SMALL = WorkloadOptions(
    num_requests=120, rate=10.0, input_tokens=64, output_tokens=32, num_prefixes=6, prefix_tokens=256, num_turns=4, pause_s=0.5
)
SHARING = [name for name in workloads if name != "random"]


def generated(name: str, options: WorkloadOptions = SMALL) -> list[SimRequest]:
    return list(workloads.get(name)(options))


@pytest.mark.parametrize("name", list(workloads))
def test_a_workload_has_as_many_requests_as_were_asked_for_and_repeats(name: str) -> None:
    roots = generated(name)
    assert [root.arrival_s for root in roots] == sorted(root.arrival_s for root in roots)
    requests, again = every_request(roots), every_request(generated(name))
    assert len(requests) == SMALL.num_requests
    for one, two in zip(requests, again, strict=True):
        assert one.prompt.tobytes() == two.prompt.tobytes() and one.num_new == two.num_new > 0
    odd = WorkloadOptions(num_requests=7, num_turns=3, input_tokens=4, output_tokens=2, prefix_tokens=8)
    assert len(every_request(generated(name, odd))) == 7


@pytest.mark.parametrize("name", list(workloads))
def test_what_waits_for_an_answer_begins_with_it(name: str) -> None:
    waiting = 0
    for request in every_request(generated(name)):
        for following in request.then:
            assert request.completion is not None and request.num_new == len(request.completion)
            history = np.concatenate([request.prompt, request.completion])
            assert np.array_equal(following.prompt[: len(history)], history) and len(following.prompt) > len(history)
            waiting += 1
    assert bool(waiting) == (name in ("multi-turn", "agents", "tree-of-thought"))


def brute_force(requests: list[SimRequest]) -> float:
    """The same bound by walking sets of runs."""
    decoded, asked, ends, total = set[tuple[int, ...]](), set[tuple[int, ...]](), list[tuple[int, ...]](), 0
    for request in requests:
        prompt = tuple(request.prompt.tolist())
        known = prompt + tuple(request.completion.tolist() if request.completion is not None else ())[: request.num_new - 1]
        asked |= {prompt[:end] for end in range(1, len(prompt) + 1)}
        decoded |= {known[:end] for end in range(len(prompt) + 1, len(known) + 1)}
        ends.append(prompt)
        total += len(prompt)
    computed = asked - decoded
    pairs = {(run, None) for run in computed}
    again = sum(count - (run in computed) for run, count in ((run, ends.count(run)) for run in set(ends)))
    return (total - len(pairs) - again) / total


def bits(most: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, 1), min_size=1, max_size=most)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(bits(5), bits(3))))
def test_the_bound_by_brute_force(runs: list[tuple[list[int], list[int]]]) -> None:
    requests = [SimRequest(0.0, np.array(prompt, np.int32), len(answer), np.array(answer, np.int32)) for prompt, answer in runs]
    if requests:
        assert largest_hit_rate(requests) == pytest.approx(brute_force(requests))
        assert report(requests, page_size=1, num_tokens=4096).hit_rate <= largest_hit_rate(requests) + 1e-9


def test_the_bound_by_hand() -> None:
    ids = np.arange(10, dtype=np.int32)
    twice = [SimRequest(0.0, ids, 1), SimRequest(0.0, ids, 1)]
    assert largest_hit_rate(twice) == 9 / 20, "the last token is computed by both"
    other = [SimRequest(0.0, ids, 1), SimRequest(0.0, ids, 1, namespace="tenant")]
    assert largest_hit_rate(other) == 0.0
    turn = [SimRequest(0.0, ids[:4], 3, ids[4:7]), SimRequest(0.0, ids, 1)]
    assert largest_hit_rate(turn) == 6 / 14, "prompt and two of three answered ids; the third was never computed"


def report(requests: list[SimRequest], *, num_tokens: int, page_size: int = 16, **options: object) -> Report:
    chosen = SchedulerOptions(request_timelines=0, **options)  # type: ignore[arg-type]
    limits = EngineLimits(32, 8192, num_tokens // page_size, page_size, VOCAB_SIZE, ())
    return simulate(Simulation(limits=limits, options=chosen, cost=CostModel(base_s=0.01, token_s=2e-4)), requests)


@pytest.mark.parametrize("policy", ["fcfs", "lpm", "dfs-weight"])
@pytest.mark.parametrize("name", SHARING)
def test_nearly_all_that_can_be_found_is_found(name: str, policy: str) -> None:
    roots = generated(name)
    bound = largest_hit_rate(every_request(roots))
    found = report(roots, num_tokens=2**20, policy=policy).hit_rate
    assert 0.96 * bound <= found <= bound, (found, bound)
    crowded = report(roots, num_tokens=2**13, policy=policy)
    assert crowded.num_failed == 0 and crowded.hit_rate <= bound
