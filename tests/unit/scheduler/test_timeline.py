"""Timelines: what a request went through, bounded in number and length, and asked for by message."""

from __future__ import annotations

from scheduler_hand import Hand, ask, limits

from sapwood.messages.types import Abort, AskTimeline


def moments(hand: Hand, number: int) -> list[tuple[str, int]]:
    answer = hand.step(AskTimeline(1, number)).answers[0]
    assert answer.ok
    return [(moment["what"], moment["num_tokens"]) for moment in answer.data["moments"]]


def test_a_request_is_followed_from_queue_to_end() -> None:
    hand = Hand(limits(num_slots=1), step_token_budget=8)
    hand.now_s = 2.0
    hand.turn(ask(1, [7] * 20, max_new_tokens=3))
    hand.turn(ask(2, [7] * 20, max_new_tokens=1))
    hand.now_s = 5.0
    hand.finish()
    assert moments(hand, 1) == [("queued", 0), ("admitted", 0), ("chunk", 8), ("chunk", 8), ("chunk", 4), ("finished", 22)]
    assert moments(hand, 2) == [("queued", 0), ("admitted", 19), ("chunk", 1), ("finished", 20)]
    report = hand.step(AskTimeline(9, 2)).answers[0].data
    assert (report["queue_s"], report["num_cached_tokens"], report["state"]) == (3.0, 19, "finished")
    assert report["moments"][1]["at_s"] == 3.0 and report["moments"][1]["num_pages"] == 5
    assert [moment["step"] for moment in report["moments"]] == sorted(moment["step"] for moment in report["moments"])


def test_retractions_and_aborts_show() -> None:
    hand = Hand(limits(num_pages=7), max_reserved_tokens=1, cache="chunk")
    hand.turn(ask(1, [1] * 7, max_new_tokens=12), ask(2, [2] * 7, max_new_tokens=12))
    hand.finish()
    assert [what for what, _ in moments(hand, 2) if what != "chunk"] == [
        "queued", "admitted", "retracted", "admitted", "finished",
    ]  # fmt: skip
    hand.turn(ask(3, [1], max_new_tokens=9))
    hand.turn(Abort([3]))
    assert moments(hand, 3)[-1][0] == "aborted"


def test_only_the_latest_are_kept() -> None:
    hand = Hand(request_timelines=2)
    for number in (1, 2, 3):
        hand.turn(ask(number, [number], max_new_tokens=1))
    hand.finish()
    assert not hand.step(AskTimeline(1, 1)).answers[0].ok
    assert moments(hand, 3)[-1][0] == "finished"
    silent = Hand(request_timelines=0)
    silent.turn(ask(1, [1], max_new_tokens=1))
    assert not silent.step(AskTimeline(1, 1)).answers[0].ok
