"""Admission: the two budgets, slots, limits, order, groups, and prefixes shared inside the batch."""

from __future__ import annotations

from scheduler_hand import Hand, ask, limits, rows

from sapwood.messages.types import Abort


def test_slots_and_the_running_limit_bound_the_batch() -> None:
    for engine, options in ((limits(num_slots=2), {}), (limits(), {"max_running_requests": 2})):
        hand = Hand(engine, **options)
        hand.turn(*(ask(number, [number], max_new_tokens=4) for number in (1, 2, 3)))
        stats = hand.scheduler.stats()
        assert (stats.num_running, stats.num_waiting) == (2, 1)
        hand.finish()
        assert len(hand.finishes()) == 3


def test_memory_is_counted_in_whole_pages() -> None:
    """Five one-token prompts need five pages, though five tokens would fit two."""
    hand = Hand(limits(num_slots=8, num_pages=3))
    hand.turn(*(ask(number, [number], max_new_tokens=1) for number in range(1, 6)))
    assert hand.scheduler.stats().num_running == 3
    hand.finish()
    assert len(hand.finishes()) == 5


def test_a_large_request_holds_back_those_behind_it_but_not_higher_priority() -> None:
    hand = Hand(limits(num_pages=8), init_new_token_ratio=1.0)
    hand.turn(ask(1, [1] * 8, max_new_tokens=17))  # holds or is promised six of eight pages
    hand.turn(ask(2, [2] * 16, max_new_tokens=1), ask(3, [3], max_new_tokens=1), ask(4, [4], max_new_tokens=1, priority=1))
    running = {event.number for event in hand.events}
    hand.turn()
    assert {event.number for event in hand.events} - running <= {1, 4}
    hand.finish()
    ends = [event.number for event in hand.events if event.finish]
    assert ends.index(4) < ends.index(2) and ends.index(1) < ends.index(3)


def test_priority_goes_first_then_age() -> None:
    hand = Hand(limits(num_slots=1))
    hand.turn(ask(1, [1], max_new_tokens=1), ask(2, [2], max_new_tokens=1), ask(3, [3], max_new_tokens=1, priority=5))
    hand.finish()
    assert [event.number for event in hand.events] == [3, 1, 2]


def test_lpm_prefers_what_is_cached() -> None:
    hand = Hand(limits(num_slots=1), policy="lpm")
    hand.turn(ask(1, list(range(12)), max_new_tokens=1))
    hand.turn(ask(2, [50] * 9, max_new_tokens=1), ask(3, [*range(12), 60], max_new_tokens=1))
    hand.finish()
    assert [event.number for event in hand.events] == [1, 3, 2]


def test_a_full_prompt_hit_fits_even_when_the_copied_page_does_not() -> None:
    """All pages but the request's own are needed for the match; the partial match is dropped rather than the request."""
    hand = Hand(limits(num_pages=3))
    hand.turn(ask(1, list(range(11)), max_new_tokens=2))
    hand.finish()
    outcome = hand.turn(ask(2, list(range(10)) + [77], max_new_tokens=2))
    assert rows(outcome) == [(0, 8, 3, True)]
    assert outcome.plan is not None and len(outcome.plan.copies) == 0
    hand.finish()
    assert hand.finishes() == {1: "length", 2: "length"}


def test_samples_of_a_group_fork_after_one_prefill() -> None:
    hand = Hand()
    prompt = list(range(10))
    group = [ask(number, prompt, group=1, sample_index=number - 1, max_new_tokens=3) for number in (1, 2, 3)]
    assert rows(hand.turn(*group, ask(4, [70], max_new_tokens=1))) == [(0, 0, 10, True), (1, 0, 1, True)]
    outcome = hand.turn()
    assert rows(outcome) == [(0, 10, 1, True), (1, 9, 1, True), (2, 9, 1, True)]
    assert outcome.plan is not None and outcome.plan.copies.shape == (2, 2), "one row of the unfinished page per fork"
    hand.finish()
    cached = {event.number: event.num_cached for event in hand.events}
    assert (cached[1], cached[2], cached[3]) == (0, 9, 9)


def test_followers_wait_for_the_leaders_confirmation_in_the_overlapped_loop() -> None:
    hand = Hand()
    group = [ask(number, list(range(10)), group=1, max_new_tokens=4) for number in (1, 2)]
    hand.step(*group)
    assert rows(hand.step()) == [(0, 10, 1, True)], "the leader decodes; nothing of its prefill is confirmed yet"
    hand.confirm()
    assert rows(hand.step())[1:] == [(1, 9, 1, True)]
    hand.finish()
    assert hand.finishes() == {1: "length", 2: "length"}


def test_another_leads_when_the_leader_ends() -> None:
    hand = Hand(step_token_budget=4)
    hand.turn(*(ask(number, list(range(20)), group=1, max_new_tokens=1) for number in (1, 2, 3)))
    outcome = hand.turn(Abort([1]))
    assert rows(outcome) == [(0, 4, 4, False)] or rows(outcome) == [(1, 4, 4, False)], "goes on from the leader's page"
    hand.finish()
    assert hand.finishes() == {1: "abort", 2: "length", 3: "length"}


def test_strangers_that_share_enough_follow_too_without_blocking_others() -> None:
    hand = Hand(step_token_budget=8, follow_tokens=8)
    system = list(range(16))
    outcome = hand.turn(ask(1, [*system, 50], max_new_tokens=1))
    assert rows(outcome) == [(0, 0, 8, False)]
    hand.turn(ask(2, [*system, 60, 61], max_new_tokens=1), ask(3, [70], max_new_tokens=1))
    hand.turn()
    computed = {event.number for event in hand.events}
    hand.finish()
    assert 2 not in computed
    assert {event.number: event.num_cached for event in hand.events}[2] == 16


def test_without_reuse_nobody_waits_for_anybody() -> None:
    hand = Hand(cache="chunk")
    outcome = hand.turn(*(ask(number, list(range(10)), group=1, max_new_tokens=1) for number in (1, 2)))
    assert [row[1:3] for row in rows(outcome)] == [(0, 10), (0, 10)]


def test_namespaces_never_share() -> None:
    hand = Hand()
    hand.turn(ask(1, list(range(9)), namespace="a", max_new_tokens=1))
    hand.finish()
    assert rows(hand.turn(ask(2, list(range(9)), namespace="b", max_new_tokens=1)))[0][1] == 0
    hand.finish()
    assert rows(hand.turn(ask(3, list(range(9)), namespace="a", max_new_tokens=1)))[0][1] == 8
