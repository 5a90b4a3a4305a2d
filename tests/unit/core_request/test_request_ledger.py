"""The ledger's arithmetic and the table of legal moves."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from sapwood.core.request import LEGAL_MOVES, PromptReport, Request, RequestState
from sapwood.core.sampling import LogprobOptions, SamplingParams, TokenLogprobs
from sapwood.messages.types import pack_ids


def make(num_prompt: int = 4, max_new: int = 3, *, num_emitted: int = 0, prompt_start: int | None = None) -> Request:
    ids = bytearray(pack_ids(range(10, 10 + num_prompt + num_emitted)))
    options = LogprobOptions(prompt_start=prompt_start)
    return Request(1, 1, 0, ids, num_prompt, num_prompt + max_new, SamplingParams(seed=0), options)


def test_a_prompt_in_chunks_then_decodes_until_the_length() -> None:
    request = make(num_prompt=4, max_new=3)
    request.admit(1)
    assert (request.num_computed, request.num_confirmed, request.num_known, request.num_pending) == (1, 1, 4, 3)
    assert request.launch(2) is False
    assert request.state is RequestState.PREFILLING
    assert request.launch(1) is True
    assert request.state is RequestState.DECODING
    assert (request.num_computed, request.num_known, request.num_pending) == (4, 5, 1)
    assert request.launch(1) is True  # the id of position 4 is still on the device only
    assert (request.num_known, request.num_ids) == (6, 4)
    assert request.launch(1) is True
    assert request.num_known == request.max_len == 7
    assert request.num_pending == 0


def test_copied_rows_are_confirmed_with_their_step() -> None:
    request = make(num_prompt=6)
    request.admit(2, 3)
    assert (request.num_computed, request.num_confirmed, request.num_cached, request.num_pending) == (5, 2, 5, 1)


def test_confirming_trails_launching() -> None:
    request = make()
    request.admit(0)
    request.launch(4)
    request.launch(1)
    request.confirm(4)
    request.append(99)
    assert (request.num_confirmed, request.num_computed, request.num_ids, request.num_known) == (4, 5, 5, 6)
    assert request.ids().tolist() == [10, 11, 12, 13, 99]
    assert request.num_completion == 1


def test_an_ending_discards_what_is_reserved() -> None:
    request = make()
    request.admit(0)
    request.launch(4)
    request.launch(1)
    request.confirm(4)
    request.append(99)
    request.end(RequestState.FINISHED)
    assert (request.num_known, request.num_confirmed) == (5, 4)


def test_a_stop_cuts_back_to_the_tokens_that_count() -> None:
    request = make(num_prompt=2, max_new=9)
    request.admit(0)
    for end in range(2, 7):
        request.launch(end - request.num_computed)
        request.confirm(end)
        request.append(end)
    request.end(RequestState.FINISHED, 2 + 1)
    assert (request.num_known, request.num_confirmed) == (3, 3)


def test_a_prompt_only_request_samples_nothing() -> None:
    request = make(num_prompt=4, max_new=0)
    request.admit(0)
    assert request.num_pending == 4
    assert request.launch(4) is False
    assert request.num_computed == request.num_known == request.max_len
    assert request.state is RequestState.PREFILLING


def test_retraction_keeps_ids_and_forgets_kv() -> None:
    request = make()
    request.admit(2)
    request.launch(2)
    request.confirm(4)
    request.append(77)
    request.retract()
    request.requeue()
    assert request.state is RequestState.WAITING
    assert (request.num_computed, request.num_confirmed, request.num_known) == (0, 0, 5)
    assert (request.num_retractions, request.num_cached) == (1, 2)
    request.admit(4)
    assert request.num_cached == 2, "cached tokens are those of the first admission"


@pytest.mark.parametrize(("origin", "target"), list(product(RequestState, RequestState)))
def test_only_legal_moves_are_possible(origin: RequestState, target: RequestState) -> None:
    request = make()
    request.state = origin
    if target in LEGAL_MOVES[origin]:
        request._move(target)
        assert request.state is target
    else:
        with pytest.raises(RuntimeError, match="illegal move"):
            request._move(target)


def test_terminal_states_lead_nowhere() -> None:
    assert all(not LEGAL_MOVES[state] for state in RequestState if state.is_terminal)
    assert {state for state in RequestState if state.is_terminal} == {
        RequestState.FINISHED,
        RequestState.ABORTED,
        RequestState.FAILED,
    }


@pytest.mark.parametrize(
    ("prompt_start", "limit"), [(None, 3), (0, 0), (1, 0), (2, 1), (3, 2), (4, 3), (9, 3)], ids=lambda value: f"{value}"
)
def test_reuse_leaves_the_positions_that_are_to_be_scored(prompt_start: int | None, limit: int) -> None:
    assert make(num_prompt=4, prompt_start=prompt_start).match_limit == limit


def test_position_zero_is_reported_without_a_logprob() -> None:
    request = make(num_prompt=2, prompt_start=0)
    request.report.add(1, [TokenLogprobs(11, -1.0)])
    assert request.report.take() == [TokenLogprobs(10, None), TokenLogprobs(11, -1.0)]
    assert request.report.take() is None


def test_a_report_survives_chunks_that_come_twice() -> None:
    report = PromptReport(2, 6, is_sent=False)
    one, two, three, four = (TokenLogprobs(i, -float(i)) for i in range(4))
    report.add(2, [one, two])
    assert report.take() is None
    report.add(2, [one, two, three])
    report.add(5, [four, four])
    assert report.is_complete
    assert report.take() == [one, two, three, four]
    report.add(2, [one])
    assert report.take() is None


def test_a_replay_does_not_report_its_prompt_again() -> None:
    request = make(num_prompt=3, num_emitted=1, prompt_start=0)
    assert request.report.take() is None
    assert request.engine_logprobs().prompt_start is None
    assert request.match_limit == 3


def test_the_engine_is_asked_only_for_what_is_missing() -> None:
    request = make(num_prompt=4, prompt_start=1)
    assert request.engine_logprobs().prompt_start == 1
    request.report.add(1, [TokenLogprobs(0, -1.0), TokenLogprobs(0, -1.0)])
    assert request.engine_logprobs().prompt_start == 3
    assert request.match_limit == 2


def test_ids_are_a_writable_copy() -> None:
    request = make()
    ids = request.ids()
    ids[0] = 5
    request.admit(0)
    request.launch(4)
    request.append(3)
    assert request.ids()[0] == 10
    assert ids.dtype == np.int32


def test_beginnings_are_compared_by_id() -> None:
    one, other = make(num_prompt=4), make(num_prompt=6)
    assert one.begins_like(other, 4)
    assert not one.begins_like(other, 5)
    assert one.run(1, 3) == pack_ids([11, 12])
