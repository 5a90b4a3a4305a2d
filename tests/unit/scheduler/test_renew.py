"""After another process died: the scheduler forgets without a word; what is submitted again keeps its place and deadlines."""

from __future__ import annotations

import pytest
from scheduler_hand import Hand, ask, limits

from sapwood.core.sampling import LogprobOptions
from sapwood.messages.types import Answer, Finish, Renew

RENEW = Renew(-1, 5, "there")


def ends(hand: Hand) -> dict[int, Finish]:
    return {event.number: event.finish for event in hand.events if event.finish is not None}


@pytest.mark.parametrize("is_overlapped", [False, True])
def test_everything_is_forgotten_and_given_back(is_overlapped: bool) -> None:
    hand = Hand(limits(num_slots=1), queue_timeout_s=5.0, request_timeout_s=9.0)
    hand.step(ask(1, [1] * 9, max_new_tokens=30), ask(2, [2] * 9, max_new_tokens=4))
    if not is_overlapped:
        hand.confirm()
    hand.step()
    num_events = len(hand.events)
    assert hand.step(RENEW).answers == [Answer(-1, True)]
    hand.now_s = 100.0  # deadlines are forgotten, too
    hand.finish()
    assert len(hand.events) == num_events and ends(hand) == {}
    stats = hand.scheduler.stats()
    assert stats.num_free_pages + stats.num_evictable_pages == stats.num_pages
    assert hand.scheduler.check() == []


def test_what_is_of_an_older_epoch_is_dropped_from_then_on() -> None:
    hand = Hand(limits())
    hand.turn(RENEW, ask(1, [1], max_new_tokens=2, epoch=4), ask(2, [2], max_new_tokens=2, epoch=5))
    hand.finish()
    assert set(ends(hand)) == {2} and hand.scheduler.stats().stale_messages_total == 1


def test_what_was_said_before_in_the_same_step_is_unsaid() -> None:
    hand = Hand(limits())
    hand.turn(ask(1, [1], max_new_tokens=10_000), RENEW)  # refused, then forgotten
    hand.finish()
    assert hand.events == []


def test_a_replay_keeps_its_deadline() -> None:
    hand = Hand(limits(), request_timeout_s=60.0)
    hand.now_s = 100.0
    hand.turn(ask(1, [1] * 9, max_new_tokens=40, timeout_s=10.0, waited_s=9.0), ask(2, [1] * 9, max_new_tokens=40, waited_s=59.0))
    hand.now_s = 100.9
    hand.turn()
    assert ends(hand) == {}
    hand.now_s = 101.0
    hand.turn()
    assert {number: finish.status for number, finish in ends(hand).items()} == {1: 408, 2: 408}


def test_a_replay_that_had_been_admitted_is_not_held_to_the_queues_deadline() -> None:
    hand = Hand(limits(num_slots=1), queue_timeout_s=5.0)
    hand.now_s = 100.0
    hand.turn(ask(9, [3], max_new_tokens=2))
    hand.turn(
        ask(1, [1, 2, 3], max_new_tokens=4, num_emitted=2, waited_s=50.0), ask(2, [1, 2, 3], max_new_tokens=4, waited_s=50.0)
    )
    hand.finish()
    assert ends(hand)[1].kind == "length" and ends(hand)[2].status == 503


def test_a_replay_finds_its_place_in_a_full_queue_and_does_not_report_the_prompt_again() -> None:
    hand = Hand(limits(num_slots=1), max_queue=1)
    wanted = LogprobOptions(prompt_start=0)
    replays = [ask(number, [1, 2, 3], max_new_tokens=4, num_emitted=1, waited_s=1.0, logprobs=wanted) for number in range(1, 6)]
    hand.turn(*replays)
    hand.finish()
    assert all(finish.kind == "length" for finish in ends(hand).values()) and len(ends(hand)) == 5
    assert all(event.prompt_logprobs is None and event.index >= 1 for event in hand.events)
