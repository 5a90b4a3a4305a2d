"""The parts on their own: budget, reservation, queue, policies."""

from __future__ import annotations

import pytest

from sapwood.core.request import Request
from sapwood.core.sampling import SamplingParams
from sapwood.errors import ConfigError
from sapwood.messages.types import pack_ids
from sapwood.scheduler.budget import FixedBudget
from sapwood.scheduler.memory import Reservation, kv_len
from sapwood.scheduler.options import SchedulerOptions
from sapwood.scheduler.policy import LPM_MAX_WAITING, policies
from sapwood.scheduler.resident import Resident
from sapwood.scheduler.waiting import WaitingQueue


def request(arrival: int, num_prompt: int = 4, max_new: int = 8, priority: int = 0) -> Request:
    ids = bytearray(pack_ids([1] * num_prompt))
    return Request(arrival, arrival, arrival, ids, num_prompt, num_prompt + max_new, SamplingParams(), priority=priority)


def test_a_fixed_budget_leaves_prompts_what_decodes_do_not_use() -> None:
    budget = FixedBudget(64, 16)
    assert [budget.prompt_tokens(n) for n in (0, 10, 60, 100)] == [64, 54, 16, 16]
    assert FixedBudget(4, 16).prompt_tokens(9) == 4
    assert FixedBudget(None, 16).prompt_tokens(1000) > 10**9


def test_the_last_sampled_id_needs_no_kv() -> None:
    assert kv_len(4, 12) == 11
    assert kv_len(4, 4) == 4


def test_the_reservation_decays_and_rises_again() -> None:
    reservation = Reservation(SchedulerOptions(new_token_ratio_steps=10), 16)
    assert reservation.ratio == 0.7
    for _ in range(30):
        reservation.on_decode()
    assert reservation.ratio == pytest.approx(0.7 * 0.14)
    runner = request(1, max_new=100)
    reservation.on_retraction([Resident(runner, 0, [], 0, None)])
    assert reservation.ratio == pytest.approx(0.2)
    reservation.on_idle()
    assert reservation.ratio == 0.7


def test_promises_are_made_in_pages_and_clipped() -> None:
    options = SchedulerOptions(init_new_token_ratio=0.5, max_reserved_tokens=10)
    reservation = Reservation(options, 4)
    waiting = request(1, num_prompt=5, max_new=100)
    assert reservation.wanted_pages(waiting) == 4, "5 known + 10 reserved tokens"
    running = Resident(request(2, num_prompt=5, max_new=100), 0, [0, 1], 0, None)
    assert reservation.promised_pages([running, running]) == 2, "5 known + 5 reserved, two pages held, each"
    nearly_done = Resident(request(3, num_prompt=4, max_new=1), 0, [0], 0, None)
    assert reservation.promised_pages([nearly_done]) == 0


def test_the_queue_is_sorted_by_priority_and_age() -> None:
    queue = WaitingQueue()
    old, young, urgent = request(1), request(5), request(9, priority=2)
    for item in (young, urgent, old):
        queue.add(item)
    assert list(queue) == queue.snapshot() == [urgent, old, young]
    assert queue.highest_priority == 2
    queue.remove(old)
    assert (list(queue), len(queue)) == ([urgent, young], 2)
    with pytest.raises(RuntimeError, match="not in the waiting queue"):
        queue.remove(old)


def test_policies_order_by_what_they_say() -> None:
    waiting = [request(1), request(2), request(3, priority=-1)]
    cached = {1: 0, 2: 8, 3: 99}
    fcfs, lpm = policies.get("fcfs"), policies.get("lpm")
    assert fcfs(waiting, lambda r: cached[r.number]) == waiting
    assert [r.number for r in lpm(waiting, lambda r: cached[r.number])] == [2, 1, 3]
    with pytest.raises(ConfigError, match="fcfs, lpm"):
        policies.get("shortest")


def test_a_long_queue_is_not_walked_for_its_matches() -> None:
    waiting = [request(number) for number in range(LPM_MAX_WAITING + 1)]

    def never(_: Request) -> int:
        raise AssertionError("a match was counted")

    assert policies.get("lpm")(waiting, never) == waiting
