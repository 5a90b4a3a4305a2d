"""Each policy orders by what it says, within a priority; looks at a bounded number of requests; and cannot starve anybody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from scheduler_hand import Hand, ask, limits

from sapwood.core.request import Request
from sapwood.core.sampling import SamplingParams
from sapwood.errors import ConfigError
from sapwood.kvcache.prefix import Match
from sapwood.messages.types import pack_ids
from sapwood.scheduler.policy import policies
from sapwood.scheduler.progress import Progress
from sapwood.scheduler.queue_view import MAX_LOOKS, MAX_REFRESHED, QueueView

PAGE = 4


@dataclass(eq=False)
class Node:
    parent: Node | None = None


def request(number: int, num_prompt: int = 40, max_new: int = 8, **more: Any) -> Request:
    ids = bytearray(pack_ids([1] * num_prompt))
    return Request(number, number, number, ids, num_prompt, num_prompt + max_new, SamplingParams(), **more)


def view(
    cached: dict[int, tuple[int, Any]] | None = None, running: list[Request] | None = None, seed: int = 0, num_computed: int = 0
) -> QueueView:
    """A view in which request `number` has (pages, node) cached."""

    def match(wanted: Request) -> Match[Any]:
        num_pages, node = (cached or {}).get(wanted.number, (0, None))
        return Match("", 0, [0] * num_pages, node)

    return QueueView(match, lambda: running or [], PAGE, Progress(num_computed_tokens=num_computed), seed)


def order(policy: str, waiting: list[Request], seen: QueueView) -> list[int]:
    return [item.number for item in policies.get(policy)(waiting, seen)]


def test_unknown_names_are_an_error_that_lists_the_known() -> None:
    with pytest.raises(ConfigError, match="dfs-weight, fcfs, hrrn, lof, lpm, priority, random, routing-key"):
        policies.get("shortest")


def test_priority_comes_before_every_policys_own_key() -> None:
    waiting = [request(3, priority=5, num_prompt=60, max_new=1), request(1), request(2, num_prompt=30)]
    cached = {1: (3, Node()), 2: (1, Node())}
    for policy in policies:
        running = [request(9, routing_key="x")]
        assert order(policy, waiting, view(cached, running))[0] == 3, policy


def test_lpm_prefers_the_longest_match_then_age() -> None:
    waiting = [request(number) for number in (1, 2, 3, 4)]
    assert order("lpm", waiting, view({2: (1, None), 4: (2, None)})) == [4, 2, 1, 3]


def test_shortest_prefill_counts_what_is_not_cached() -> None:
    waiting = [request(1, 40), request(2, 44), request(3, 20)]
    assert order("shortest-prefill-first", waiting, view({2: (8, None)})) == [2, 3, 1]


def test_lof_prefers_long_completions() -> None:
    assert order("lof", [request(1, max_new=5), request(2, max_new=50), request(3, max_new=5)], view()) == [2, 1, 3]


def test_hrrn_prefers_short_requests_until_long_ones_have_waited() -> None:
    old, young = request(1, 400), request(2, 40)
    young.tokens_at_arrival = 1000
    assert order("hrrn", [old, young], view(num_computed=1000)) == [1, 2]
    young.tokens_at_arrival = 0
    assert order("hrrn", [old, young], view(num_computed=1000)) == [2, 1]


def test_dfs_weight_walks_the_heaviest_branch_first() -> None:
    root = Node()
    left, right = Node(root), Node(root)
    deep = Node(right)
    cached = {1: (1, left), 2: (1, right), 3: (2, deep), 4: (2, deep), 5: (0, root)}
    waiting = [request(number) for number in (1, 2, 3, 4, 5, 6)]
    assert order("dfs-weight", waiting, view(cached)) == [3, 4, 2, 1, 5, 6]


def test_routing_keys_follow_those_that_run() -> None:
    waiting = [request(1, routing_key="cold"), request(2, routing_key="warm"), request(3), request(4, routing_key="hot")]
    running = [request(7, routing_key="hot"), request(8, routing_key="hot"), request(9, routing_key="warm")]
    assert order("routing-key", waiting, view(running=running)) == [4, 2, 3, 1]
    assert order("routing-key", waiting, view()) == [1, 2, 3, 4]


def test_random_orders_are_the_same_for_the_same_seed() -> None:
    waiting = [request(number) for number in range(30)]
    twins = [view(seed=7), view(seed=7), view(seed=8)]
    orders = [[order("random", waiting, twin) for _ in range(3)] for twin in twins]
    assert orders[0] == orders[1] != orders[2]
    assert orders[0][0] != orders[0][1] and sorted(orders[0][0]) == list(range(30))


def test_a_long_queue_is_looked_at_in_portions_and_a_short_one_whole() -> None:
    looked: list[int] = []

    def match(wanted: Request) -> Match[Any]:
        looked.append(wanted.number)
        return Match("", 0, [0], None)

    seen = QueueView(match, list, PAGE, Progress())
    waiting = [request(number) for number in range(MAX_LOOKS * 2 + 10)]
    assert len(seen.looks(waiting)) == len(looked) == MAX_LOOKS
    seen.looks(waiting)
    assert len(seen.looks(waiting)) == len(waiting), "everybody was looked at once"
    assert looked[-1] == MAX_REFRESHED - 1, "then some of those whose look is oldest, in turn"
    looked.clear()
    fresh = QueueView(match, list, PAGE, Progress())
    for _ in range(2):
        fresh.looks(waiting[:5])
    assert looked == [0, 1, 2, 3, 4] * 2


@pytest.mark.parametrize("policy", ["lof", "shortest-prefill-first", "priority"])
def test_nobody_starves_when_better_ones_keep_coming(policy: str) -> None:
    def better(number: int) -> Any:
        more = {"priority": 1} if policy == "priority" else {}
        return ask(number, [number % 90], max_new_tokens=3, **more)

    for interval, starves in ((4, False), (0, True)):
        hand = Hand(limits(num_slots=1), policy=policy, aging_interval=interval)
        worst = ask(1, [1] * 9, max_new_tokens=2)
        hand.turn(better(2), better(3), worst)
        for number in range(4, 60):
            hand.turn(better(2 * number), better(2 * number + 1))
        assert (1 not in hand.finishes()) == starves, interval
        hand.finish()
        assert 1 in hand.finishes()


def test_an_elder_is_not_preempted_and_preempts_nobody() -> None:
    hand = Hand(limits(num_slots=1), policy="priority", aging_interval=1, preemption_threshold=0)
    hand.turn(ask(1, [1], max_new_tokens=9, priority=5))
    hand.turn(ask(2, [2], max_new_tokens=3))
    for number in range(3, 30):
        hand.turn(ask(number, [number], max_new_tokens=1, priority=100))
    assert hand.finishes().keys() >= {1, 2}
    assert {event.number: event.num_retractions for event in hand.events if event.finish}[2] == 0
    hand.finish()
