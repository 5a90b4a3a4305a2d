"""Who is blamed for crashes: only who crashes alone, never who makes progress; and when trying again is hopeless."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sapwood.server.blame import BACK_OFF_S, MAX_STRIKES, Blame


def test_a_poisonous_request_is_found_and_the_others_are_let_be() -> None:
    blame = Blame()
    counts = {1: 0, 2: 5, 3: 0}
    assert blame.crashed([1, 2, 3], counts, has_served=True) is None
    assert blame.next_alone(counts) is None  # once may be chance
    counts[2] = 6  # went on a token further
    assert blame.crashed([1, 2, 3], counts, has_served=True) is None
    assert blame.next_alone(counts) == 1
    blame.passed()
    assert blame.next_alone(counts) == 3  # 2 made progress: it is no suspect
    assert blame.crashed([3], counts, has_served=False) == 3
    assert blame.num_strikes == 0
    del counts[3]
    assert blame.next_alone(counts) is None


def test_a_death_before_the_lone_request_ran_proves_nothing() -> None:
    blame, counts = Blame(), {1: 0}
    for _ in range(2):
        blame.crashed([1], counts, has_served=True)
    assert blame.next_alone(counts) == 1
    assert blame.crashed([], counts, has_served=False) is None
    assert blame.next_alone(counts) == 1


def test_who_got_a_token_alone_is_cleared_even_by_a_later_kill() -> None:
    blame, counts = Blame(), {1: 3}
    for _ in range(2):
        blame.crashed([1], counts, has_served=True)
    assert blame.next_alone(counts) == 1
    counts[1] = 4
    assert blame.crashed([1], counts, has_served=True) is None
    assert blame.next_alone(counts) is None


def test_requests_that_ended_are_no_suspects() -> None:
    blame, counts = Blame(), {1: 0, 2: 0}
    for _ in range(2):
        blame.crashed([1, 2], counts, has_served=True)
    del counts[1]
    assert blame.next_alone(counts) == 2


def test_hope_ends_after_so_many_crashes_in_a_row() -> None:
    blame = Blame()
    delays = []
    for _ in range(MAX_STRIKES):
        assert not blame.is_hopeless
        blame.crashed([], {}, has_served=False)
        delays.append(blame.back_off_s)
    assert blame.is_hopeless and tuple(delays) == BACK_OFF_S
    blame.crashed([], {}, has_served=True)
    assert not blame.is_hopeless and blame.back_off_s == 0.0


@given(st.sets(st.integers(0, 9)), st.lists(st.integers(0, 1 << 30), min_size=10, max_size=10))
def test_exactly_the_poisonous_are_failed(poison: set[int], seeds: list[int]) -> None:
    """Requests of three tokens each; a poisonous one takes the worker down when it would make its second."""
    blame, counts, failed, done = Blame(), dict.fromkeys(range(10), 0), set(), set()
    for _ in range(200):
        alone = blame.next_alone(counts)
        batch = [alone] if alone is not None else sorted(counts, key=lambda number: seeds[number])
        before = dict(counts)
        while batch:
            if any(number in poison and counts[number] == 1 for number in batch):
                culprit = blame.crashed(batch, dict(counts), has_served=counts != before)
                if culprit is not None:
                    failed.add(culprit)
                    del counts[culprit]
                break
            for number in batch:
                counts[number] += 1
            if alone is not None:
                blame.passed()
                break
            for number in [number for number in batch if counts[number] == 3]:
                done.add(number)
                del counts[number]
            batch = [number for number in batch if number in counts]
        if not counts:
            break
        assert not blame.is_hopeless
    assert failed == poison and done == set(range(10)) - poison
