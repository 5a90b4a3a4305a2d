"""An order of a long queue serves several steps, unless somebody important came or half of the queue has gone."""

from __future__ import annotations

import pytest

from sapwood.core.request import Request
from sapwood.core.sampling import SamplingParams
from sapwood.messages.types import pack_ids
from sapwood.scheduler import ranking
from sapwood.scheduler.progress import Progress
from sapwood.scheduler.queue_view import QueueView
from sapwood.scheduler.ranking import Ranking
from sapwood.scheduler.waiting import WaitingQueue


def request(number: int, priority: int = 0) -> Request:
    return Request(number, number, number, bytearray(pack_ids([1])), 1, 9, SamplingParams(), priority=priority)


class Counted:
    """Youngest first; counts how often it was asked."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self, waiting: list[Request], view: QueueView) -> list[Request]:
        self.num_calls += 1
        return sorted(waiting, key=lambda item: (-item.priority, -item.arrival))


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> WaitingQueue:
    monkeypatch.setattr(ranking, "REQUESTS_PER_USE", 4)
    queue = WaitingQueue()
    for number in range(1, 13):
        queue.add(request(number))
    return queue


def ranked(policy: object, queue: WaitingQueue) -> Ranking:
    return Ranking(policy, queue, QueueView(lambda item: None, list, 4, Progress()))  # type: ignore[arg-type,return-value]


def numbers(found: Ranking) -> list[int]:
    return [item.number for item in found.order()]


def test_an_order_serves_a_step_per_so_many_requests(queue: WaitingQueue) -> None:
    policy = Counted()
    found = ranked(policy, queue)
    assert [numbers(found) for _ in range(4)] == [list(range(12, 0, -1))] * 4 and policy.num_calls == 1
    queue.add(request(13))
    assert numbers(found)[0] == 13 and policy.num_calls == 2


def test_it_ends_when_half_of_its_requests_may_have_gone(queue: WaitingQueue) -> None:
    policy = Counted()
    found = ranked(policy, queue)
    for item in found.order()[:6]:
        queue.remove(item)
    assert numbers(found) == [6, 5, 4, 3, 2, 1] and policy.num_calls == 2


def test_priorities_are_looked_at_in_every_step(queue: WaitingQueue) -> None:
    policy = Counted()
    found = ranked(policy, queue)
    found.order()
    queue.add(request(20, priority=3))
    assert numbers(found)[:2] == [20, 12] and numbers(found)[0] == 20 and policy.num_calls == 3


def test_an_elder_goes_first_without_a_new_order(queue: WaitingQueue) -> None:
    policy = Counted()
    found = ranked(policy, queue)
    found.order()
    queue.promote_oldest()
    assert numbers(found)[:2] == [1, 12] and policy.num_calls == 1


def test_arrival_order_is_never_kept(queue: WaitingQueue) -> None:
    found = ranked(lambda waiting, view: waiting, queue)
    found.order()
    queue.add(request(0))
    assert numbers(found)[0] == 0, "a retracted request returns to its place at once"
