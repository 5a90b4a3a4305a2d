"""Deadlines: of the queue and of the whole request, from options and from requests, on the clock of the inputs alone."""

from __future__ import annotations

import pytest
from scheduler_hand import Hand, ask, limits

from sapwood.messages.types import Finish


def ends(hand: Hand) -> dict[int, Finish]:
    return {event.number: event.finish for event in hand.events if event.finish is not None}


def test_a_request_that_finds_no_place_gets_a_503() -> None:
    hand = Hand(limits(num_slots=1), queue_timeout_s=5.0)
    hand.turn(ask(1, [1], max_new_tokens=30), ask(2, [2], max_new_tokens=1), ask(3, [3], max_new_tokens=1, queue_timeout_s=2.0))
    hand.now_s = 1.9
    hand.turn()
    assert ends(hand) == {}
    hand.now_s = 2.0
    hand.turn()
    assert {number: finish.status for number, finish in ends(hand).items()} == {3: 503}
    hand.now_s = 5.5
    hand.turn()
    assert ends(hand)[2].message.startswith("the request waited 5 s")
    hand.finish()
    assert ends(hand)[1].kind == "length", "who runs is not held to the queue's deadline"
    assert hand.scheduler.stats().timeouts_total == 2


@pytest.mark.parametrize("is_overlapped", [False, True])
def test_a_request_that_takes_too_long_gets_a_408_and_gives_everything_back(is_overlapped: bool) -> None:
    hand = Hand(limits(), request_timeout_s=60.0)
    hand.step(ask(1, [1] * 9, max_new_tokens=30, timeout_s=3.0), ask(2, [2] * 9, max_new_tokens=4))
    if not is_overlapped:
        hand.confirm()
    hand.step()
    hand.now_s = 3.0
    hand.step()
    assert (ends(hand)[1].status, ends(hand)[1].code) == (408, "timeout")
    hand.finish()
    assert ends(hand)[2].kind == "length" and len(ends(hand)) == 2
    stats = hand.scheduler.stats()
    assert stats.num_free_pages + stats.num_evictable_pages == stats.num_pages


def test_a_result_that_arrives_with_the_deadline_still_counts() -> None:
    hand = Hand()
    hand.turn(ask(1, [1], max_new_tokens=1, timeout_s=1.0))
    hand.now_s = 9.0
    hand.turn()
    assert ends(hand)[1].kind == "length"


def test_the_first_id_tells_how_long_the_request_waited() -> None:
    hand = Hand(limits(num_slots=1))
    hand.now_s = 10.0
    hand.turn(ask(1, [1], max_new_tokens=3), ask(2, [2], max_new_tokens=2), ask(3, [3], max_new_tokens=0))
    hand.now_s = 14.0
    hand.finish()
    assert [(event.number, event.queue_s) for event in hand.events] == [
        (1, 0.0), (1, None), (1, None), (2, 4.0), (2, None), (3, 4.0),
    ]  # fmt: skip


def test_many_finished_requests_leave_no_trail_of_deadlines() -> None:
    hand = Hand(limits(), request_timeout_s=1e6)
    for number in range(2500):
        hand.turn(ask(number, [1], max_new_tokens=1))
    hand.finish()
    hand.turn()
    assert len(hand.scheduler._deadlines._heap) < 1100
