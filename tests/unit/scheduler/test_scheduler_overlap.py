"""With a step in flight: ghosts, draining slots and pages, retraction, re-pointing."""

from __future__ import annotations

from scheduler_hand import EOS, Hand, ask, limits, rows

from sapwood.messages.types import Abort


def test_a_ghost_result_is_discarded() -> None:
    hand = Hand()
    hand.step(ask(1, [1, 2], max_new_tokens=9))
    hand.step()
    hand.confirm(EOS)
    assert hand.step().plan is None
    hand.confirm(42)
    hand.step()
    assert hand.tokens(1) == [EOS]
    assert hand.scheduler.idle


def test_the_last_position_is_not_launched_twice() -> None:
    hand = Hand()
    hand.step(ask(1, [1, 2], max_new_tokens=2))
    hand.step()
    assert hand.step().plan is None, "both ids are sampled by launched steps"


def test_slot_and_pages_of_an_ended_request_drain_until_its_last_step_is_confirmed() -> None:
    hand = Hand(limits(num_slots=1, num_pages=4))
    hand.step(ask(1, [1, 2], max_new_tokens=9))
    hand.step(ask(2, [3], max_new_tokens=1))
    hand.confirm(EOS)
    assert hand.step().plan is None, "step 2 may still touch the only slot"
    assert hand.scheduler.has_work and not hand.scheduler.idle
    hand.confirm()
    assert rows(hand.step()) == [(0, 0, 1, True)]


def test_an_abort_in_flight_drains_too() -> None:
    hand = Hand(limits(num_slots=1))
    hand.step(ask(1, [1, 2], max_new_tokens=9), ask(2, [3], max_new_tokens=1))
    assert hand.step(Abort([1])).plan is None
    hand.confirm()
    assert rows(hand.step()) == [(0, 0, 1, True)]
    hand.finish()
    assert hand.finishes() == {1: "abort", 2: "length"}


def tight() -> Hand:
    """Two requests of up to five pages in a pool of seven, with hardly any output reserved."""
    hand = Hand(limits(num_pages=7), max_reserved_tokens=1, cache="chunk")
    hand.step(ask(1, [1] * 7, max_new_tokens=12), ask(2, [2] * 7, max_new_tokens=12))
    return hand


def test_the_youngest_is_retracted_and_resumes_with_the_same_tokens() -> None:
    hand = tight()
    hand.confirm(20, 30)
    for turn in range(1, 60):
        if hand.step().plan is None:
            break
        plan = hand.in_flight[-1]
        for start in plan.starts:
            resumed = start.token_ids.tolist()
            assert resumed == [2] * 7 + hand.tokens(2)
        hand.confirm(*(20 + turn for _ in plan.rows))
    stats = hand.scheduler.stats()
    assert stats.retractions_total == 1
    assert hand.finishes() == {1: "length", 2: "length"}
    assert [event.num_retractions for event in hand.events if event.finish] == [0, 1]
    assert len(hand.tokens(1)) == len(hand.tokens(2)) == 12
    ends = [event.number for event in hand.events if event.finish]
    assert ends == [1, 2], "the oldest is never retracted"


def test_priority_decides_who_is_retracted() -> None:
    hand = Hand(limits(num_pages=7), max_reserved_tokens=1, cache="chunk")
    hand.turn(ask(1, [1] * 7, max_new_tokens=12, priority=-1), ask(2, [2] * 7, max_new_tokens=12))
    hand.finish()
    retractions = {event.number: event.num_retractions for event in hand.events}
    assert retractions == {1: 1, 2: 0}


def test_in_flight_a_retracted_request_gives_its_pages_after_its_step_and_may_end_by_it() -> None:
    hand = tight()
    seen_waiting = False
    for _ in range(80):
        outcome = hand.step()
        stats = hand.scheduler.stats()
        seen_waiting |= stats.retractions_total > 0 and stats.num_running == 1
        if len(hand.in_flight) > 1 or outcome.plan is None and hand.in_flight:
            hand.confirm()
        if hand.scheduler.idle:
            break
    assert seen_waiting
    assert hand.finishes() == {1: "length", 2: "length"}
    assert len(hand.tokens(1)) == len(hand.tokens(2)) == 12


def test_duplicates_are_repointed_and_then_freed() -> None:
    """Two strangers compute the same prompt side by side; the second one's pages give way to the first one's."""
    hand = Hand(follow_tokens=32)
    hand.step(ask(1, list(range(9)), max_new_tokens=20), ask(2, list(range(9)), max_new_tokens=20))
    hand.step()
    hand.confirm()
    free = hand.scheduler.stats().num_free_pages
    plan = hand.step().plan
    assert plan is not None
    repointed = [write for write in plan.writes if write.slot == 1 and write.position == 0]
    assert len(repointed) == 1 and repointed[0].locations.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert hand.scheduler.stats().num_free_pages == free, "step 2 may still read the duplicates"
    hand.confirm()
    hand.step()
    assert hand.scheduler.stats().num_free_pages == free + 2
    hand.finish()
    assert hand.finishes() == {1: "length", 2: "length"}


def test_suspects_are_those_in_launched_plans() -> None:
    hand = Hand()
    hand.step(ask(1, [1], max_new_tokens=3), ask(2, [2], max_new_tokens=3))
    assert hand.scheduler.suspects == [1, 2]
    hand.finish()
    assert hand.scheduler.suspects == []
