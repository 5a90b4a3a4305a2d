"""A paused scheduler plans nothing, loses nothing, and lets the engine be changed only when nothing touches it."""

from __future__ import annotations

from typing import Any

from scheduler_hand import Hand, ask

from sapwood.messages.types import Answer, Continue, Overhaul, Pause, Profile


def answers_of(outcome: Any, number: int) -> list[Answer]:
    return [answer for answer in outcome.answers if answer.ask == number]


def test_a_pause_is_answered_when_nothing_is_in_flight() -> None:
    hand = Hand()
    hand.step(ask(1, [1, 2, 3], max_new_tokens=8))
    outcome = hand.step(Pause(7))
    assert outcome.plan is None and answers_of(outcome, 7) == [] and not hand.scheduler.may_rest
    hand.confirm()
    outcome = hand.step()
    assert outcome.plan is None and answers_of(outcome, 7)[0].ok and hand.scheduler.may_rest and hand.scheduler.has_work
    assert hand.step(ask(2, [4], max_new_tokens=1)).plan is None
    outcome = hand.step(Continue(8))
    assert answers_of(outcome, 8)[0].ok and outcome.plan is not None and len(outcome.plan.rows) == 2


def test_frozen_requests_keep_their_pages_and_retracted_ones_give_them_back() -> None:
    for retract in (False, True):
        hand = Hand()
        hand.turn(ask(1, [1, 2, 3, 4, 5], max_new_tokens=8))
        hand.turn(Pause(7, retract))
        hand.step()
        stats = hand.scheduler.stats()
        assert (stats.num_running, stats.num_waiting) == ((0, 1) if retract else (1, 0))
        refused = hand.step(Overhaul(8, "load", "x"))
        assert bool(answers_of(refused, 8)) is not retract and bool(refused.orders) is retract


def test_orders_for_the_engine_leave_alone_and_empty_the_cache() -> None:
    hand = Hand()
    hand.turn(ask(1, list(range(12)), max_new_tokens=1))
    hand.step()
    assert hand.scheduler.stats().num_cached_pages > 0
    assert not answers_of(hand.step(Overhaul(2, "release")), 2)[0].ok, "not paused"
    hand.step(Pause(3, True))
    outcome = hand.step(Overhaul(4, "release"))
    assert outcome.orders == [Overhaul(4, "release")] and outcome.plan is None
    assert hand.scheduler.stats().num_cached_pages == 0
    assert not answers_of(hand.step(Continue(5)), 5)[0].ok, "there is no memory to run in"
    assert not answers_of(hand.step(Overhaul(6, "release")), 6)[0].ok
    assert not answers_of(hand.step(Overhaul(7, "load", "x")), 7)[0].ok
    assert hand.step(Overhaul(8, "restore")).orders and answers_of(hand.step(Continue(9)), 9)[0].ok
    assert hand.step(Profile(10, True)).orders, "needs no pause"
