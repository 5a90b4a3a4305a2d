"""Messages: refusals, aborts (early, late, twice), stops, flushes, questions, draining, epochs, replays."""

from __future__ import annotations

from typing import Any

import pytest
from scheduler_hand import EOS, Hand, ask, limits, rows

from sapwood.core.sampling import LogprobOptions
from sapwood.messages.types import Abort, Ask, Drain, Flush, Stop, Submit


@pytest.mark.parametrize(
    ("submit", "words"),
    [
        (ask(1, []), "empty"),
        (ask(1, [1, 2], num_emitted=2), "empty"),
        (ask(1, [1, 2], num_emitted=-1), "empty"),
        (ask(1, [1, 100]), "id 100 is outside"),
        (ask(1, [1, -1]), "id -1 is outside"),
        (ask(1, [1] * 60, max_new_tokens=5), "do not fit the 64 tokens"),
        (ask(1, [1] * 65, max_new_tokens=0), "do not fit the 64 tokens"),
        (ask(1, [1] * 64, max_new_tokens=None), "do not fit the 64 tokens"),
        (ask(1, [1], temperature=float("nan")), "temperature"),
        (ask(1, [1], stop_token_ids=(100,)), "stop_token_ids"),
        (ask(1, [1, 2, 3], num_emitted=2, max_new_tokens=1), "already emitted"),
        (Submit(1, 1, 0, b"abc", ask(1, [1]).params), "whole"),
    ],
)
def test_what_can_never_run_is_refused_at_once(submit: Submit, words: str) -> None:
    hand = Hand()
    outcome = hand.step(submit)
    assert outcome.plan is None
    finish = hand.events[0].finish
    assert finish is not None and words in finish.message
    assert (finish.kind, finish.status, finish.code) == ("error", 400, "invalid_request")
    assert hand.scheduler.idle


def test_what_is_larger_than_the_pool_is_refused() -> None:
    hand = Hand(limits(num_pages=4))
    hand.step(ask(1, [1] * 10, max_new_tokens=8), ask(2, [1] * 10, max_new_tokens=7))
    assert hand.finishes() == {1: "error"}
    hand.finish()
    assert hand.finishes() == {1: "error", 2: "length"}


def test_an_open_length_is_clamped_to_context_and_pool() -> None:
    for pages, expected in ((64, 62), (4, 15)):
        hand = Hand(limits(num_pages=pages))
        hand.turn(ask(1, [1, 2], max_new_tokens=None))
        hand.finish()
        assert (len(hand.tokens(1)), hand.finishes()) == (expected, {1: "length"})


def test_an_abort_ends_a_waiting_and_a_running_request() -> None:
    hand = Hand(limits(num_slots=1))
    hand.turn(ask(1, [1], max_new_tokens=9), ask(2, [2], max_new_tokens=9))
    hand.step(Abort([1, 2], "the operator said so"))
    assert hand.finishes() == {1: "abort", 2: "abort"}
    finish = hand.events[-1].finish
    assert finish is not None and (finish.message, finish.status) == ("the operator said so", 499)
    hand.finish()
    assert len(hand.events) == 3, "one token, two endings"


def test_an_abort_may_overtake_its_request() -> None:
    hand = Hand()
    hand.step(Abort([7, 8]))
    hand.step(ask(7, [1]), ask(9, [1], max_new_tokens=1))
    assert hand.finishes() == {7: "abort"}
    hand.finish()
    assert hand.finishes() == {7: "abort", 9: "length"}


def test_tombstones_are_bounded_and_the_oldest_go() -> None:
    hand = Hand(max_tombstones=2)
    hand.step(Abort([1, 2, 3]))
    hand.step(*(ask(number, [number], max_new_tokens=1) for number in (1, 2, 3)))
    assert hand.finishes() == {2: "abort", 3: "abort"}
    assert hand.scheduler.stats().stale_messages_total == 1


def test_a_stop_ends_without_an_event() -> None:
    hand = Hand()
    hand.turn(ask(1, [1, 2, 3], max_new_tokens=30))
    for _ in range(4):
        hand.turn()
    num_events = len(hand.events)
    hand.step(Stop(1, 2))
    hand.finish()
    assert len(hand.events) == num_events + 1, "the token that was confirmed with the stop's own step is the last"
    assert hand.finishes() == {}
    assert rows(hand.turn(ask(2, [1, 2, 3, 10, 10, 10, 10], max_new_tokens=1))) == [(0, 5, 2, True)]


def test_a_stop_after_the_end_is_stale() -> None:
    hand = Hand()
    hand.step(ask(1, [1], max_new_tokens=9))
    hand.confirm(EOS)
    hand.step(Stop(1, 1))
    assert hand.finishes() == {1: "stop"}
    assert hand.scheduler.stats().stale_messages_total == 1


def test_a_number_in_use_and_an_older_epoch_are_stale() -> None:
    hand = Hand()
    hand.step(ask(1, [1], epoch=2, max_new_tokens=1))
    hand.step(ask(1, [1], epoch=2), ask(2, [1], epoch=1))
    assert hand.scheduler.stats().stale_messages_total == 2
    hand.finish()
    assert hand.finishes() == {1: "length"}


def test_a_full_queue_refuses() -> None:
    hand = Hand(limits(num_slots=1), max_queue=1)
    hand.turn(ask(1, [1], max_new_tokens=3))
    hand.step(ask(2, [2], max_new_tokens=1), ask(3, [3], max_new_tokens=1))
    finish = hand.events[-1].finish
    assert finish is not None and (hand.events[-1].number, finish.status, finish.code) == (3, 429, "rate_limit_exceeded")
    hand.finish()
    assert hand.finishes() == {1: "length", 2: "length", 3: "error"}


def test_an_empty_queue_takes_what_the_slots_can_take() -> None:
    hand = Hand(limits(num_slots=3), max_queue=0)
    hand.step(*(ask(number, [number], max_new_tokens=1) for number in (1, 2, 3, 4)))
    assert hand.finishes() == {4: "error"}


def test_flush_is_refused_while_requests_live_and_empties_the_cache_afterwards() -> None:
    hand = Hand()
    hand.turn(ask(1, list(range(9)), max_new_tokens=2))
    answer = hand.step(Flush(5)).answers[0]
    assert (answer.ask, answer.ok) == (5, False) and "idle" in answer.message
    hand.finish()
    assert hand.scheduler.stats().num_cached_pages > 0
    assert hand.step(Flush(6)).answers[0].ok
    stats = hand.scheduler.stats()
    assert (stats.num_cached_pages, stats.num_free_pages) == (0, 64)


def test_flush_with_a_launched_step_in_flight_frees_the_rest_later() -> None:
    hand = Hand()
    hand.step(ask(1, list(range(9)), max_new_tokens=9))
    hand.confirm()
    hand.step()  # a step of request 1 is now in flight
    assert hand.step(Abort([1]), Flush(1)).answers[0].ok
    assert hand.scheduler.stats().num_free_pages < 64
    hand.finish()
    assert hand.scheduler.stats().num_free_pages == 64


def test_ask_reports_the_state() -> None:
    hand = Hand()
    hand.turn(ask(1, [1, 2], max_new_tokens=5))
    answer = hand.step(Ask(3)).answers[0]
    assert (answer.ask, answer.ok, answer.data["num_running"], answer.data["steps_total"]) == (3, True, 1, 1)


def test_draining_finishes_what_is_there_and_refuses_the_rest() -> None:
    hand = Hand()
    hand.turn(ask(1, [1], max_new_tokens=3))
    hand.turn(Drain(), ask(2, [2], max_new_tokens=3))
    assert hand.scheduler.is_draining
    hand.finish()
    assert hand.finishes() == {1: "length", 2: "error"}
    finish = next(event.finish for event in hand.events if event.number == 2)
    assert finish is not None and finish.status == 503


def test_a_replay_goes_on_where_it_was() -> None:
    hand = Hand()
    outcome = hand.turn(ask(1, [1, 2, 3, 50, 51], num_emitted=2, max_new_tokens=4, logprobs=LogprobOptions(prompt_start=0)))
    assert outcome.plan is not None and outcome.plan.starts[0].num_prompt == 3
    assert outcome.plan.starts[0].logprobs.prompt_start is None
    hand.finish()
    assert [(event.index, event.token_ids) for event in hand.events] == [(2, [10]), (3, [10])]
    assert all(event.prompt_logprobs is None for event in hand.events)


def test_a_replay_that_has_everything_ends_at_once() -> None:
    hand = Hand()
    hand.step(ask(1, [1, 50, 51], num_emitted=2, max_new_tokens=2))
    assert (hand.finishes(), hand.events[0].index) == ({1: "length"}, 2)


def test_a_missing_seed_is_filled_in() -> None:
    hand = Hand()
    plan = hand.turn(ask(5, [1], seed=None, max_new_tokens=1)).plan
    assert plan is not None and plan.starts[0].params.seed is not None


@pytest.mark.parametrize("message", [Abort([5]), Stop(5, 3), Stop(5, -3), Abort([])])
def test_messages_about_nobody_do_no_harm(message: Any) -> None:
    hand = Hand()
    assert hand.step(message).events == []
    hand.turn(ask(1, [1], max_new_tokens=2))
    hand.step(Stop(1, -5))
    hand.finish()
    assert hand.finishes() == {}
