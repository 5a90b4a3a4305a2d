"""The torch engine obeys plans: starts, writes, copies, rows, sampled ids and log-probabilities, in order."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from random_model import VOCAB_SIZE, make_engine

from sapwood.core.plan import RowRun, SlotStart, StepPlan, TableWrite, as_ids, no_copies
from sapwood.core.sampling import LogprobOptions, SamplingParams, TokenLogprobs
from sapwood.engine import runner as runner_module
from sapwood.engine.runner import TorchEngine
from sapwood.errors import EngineFailed

GREEDY = SamplingParams(temperature=0.0, seed=0, ignore_eos=True)
PROMPT = [int(i) for i in np.random.default_rng(0).integers(0, VOCAB_SIZE, 14)]


@pytest.fixture
def engine() -> Iterator[TorchEngine]:
    engine = make_engine()
    yield engine
    engine.close()


def start(slot: int, ids: Sequence[int], num_prompt: int | None = None, **logprobs: object) -> SlotStart:
    options = LogprobOptions(**logprobs)  # type: ignore[arg-type]
    return SlotStart(slot, as_ids(ids), num_prompt or len(ids), GREEDY, options, 0)


def write(slot: int, position: int, first: int, count: int) -> TableWrite:
    """Locations first, first + 1, ..."""
    return TableWrite(slot, position, np.arange(first, first + count, dtype=np.int32))


def plan(
    rows: Sequence[RowRun] = (),
    starts: Sequence[SlotStart] = (),
    writes: Sequence[TableWrite] = (),
    copies: Sequence[tuple[int, int]] = (),
) -> StepPlan:
    table = np.array(copies, dtype=np.int32) if copies else no_copies()
    return StepPlan(7, tuple(starts), tuple(writes), table, tuple(rows))


def continuation(engine: TorchEngine, ids: Sequence[int], count: int, slot: int = 0, base: int = 0) -> list[int]:
    """Greedy ids after `ids`, computed alone in `slot` at locations from `base` on."""
    first = plan([RowRun(slot, 0, len(ids), True)], [start(slot, ids)], [write(slot, 0, base, len(ids) + count)])
    output = [engine.launch(first).wait().token_ids[0]]
    for done in range(count - 1):
        output += engine.launch(plan([RowRun(slot, len(ids) + done, 1, True)])).wait().token_ids
    return output


def test_limits_are_those_of_the_options(engine: TorchEngine) -> None:
    limits = engine.limits
    assert (limits.num_slots, limits.max_len, limits.num_pages, limits.page_size) == (4, 64, 40, 4)
    assert (limits.vocab_size, limits.eos_token_ids) == (VOCAB_SIZE, (2,))


def test_a_plan_without_rows_only_moves_state(engine: TorchEngine) -> None:
    result = engine.launch(plan(starts=[start(0, PROMPT)], writes=[write(0, 0, 0, 14)])).wait()
    assert (result.step, result.token_ids, result.logprobs, result.prompt_logprobs) == (7, [], {}, {})
    assert len(engine.launch(plan([RowRun(0, 0, 14, True)])).wait().token_ids) == 1


def test_rows_that_do_not_sample_report_minus_one(engine: TorchEngine) -> None:
    expected = continuation(engine, PROMPT, 1)
    begun = plan(
        [RowRun(2, 0, 5, False), RowRun(1, 0, 14, True), RowRun(3, 0, 3, False)],
        [start(slot, PROMPT) for slot in (1, 2, 3)],
        [write(slot, 0, 40 * slot, 16) for slot in (1, 2, 3)],
    )
    assert engine.launch(begun).wait().token_ids == [-1, expected[0], -1]


def test_steps_launched_ahead_use_the_ids_sampled_before_them(engine: TorchEngine) -> None:
    expected = continuation(engine, PROMPT, 6)
    first = plan([RowRun(1, 0, 14, True)], [start(1, PROMPT)], [write(1, 0, 60, 20)])
    pending = [engine.launch(first), *(engine.launch(plan([RowRun(1, 14 + done, 1, True)])) for done in range(5))]
    assert [step.wait().token_ids[0] for step in pending] == expected
    assert all(step.done() for step in pending)


def test_batch_mates_and_chunks_do_not_change_the_output(engine: TorchEngine) -> None:
    prompts = [PROMPT, PROMPT[:3], PROMPT[5:], PROMPT[::-1]]
    expected = [continuation(engine, ids, 5) for ids in prompts]
    starts = [start(slot, ids) for slot, ids in enumerate(prompts)]
    writes = [write(slot, 0, 40 * slot, len(ids) + 5) for slot, ids in enumerate(prompts)]
    engine.launch(plan([RowRun(0, 0, 6, False), RowRun(3, 0, 1, False)], starts, writes)).wait()
    rows = [RowRun(0, 6, 8, True), RowRun(1, 0, 3, True), RowRun(2, 0, 9, True), RowRun(3, 1, 13, True)]
    found = [engine.launch(plan(rows)).wait().token_ids]
    for done in range(4):
        rows = [RowRun(slot, len(ids) + done, 1, True) for slot, ids in enumerate(prompts)]
        found.append(engine.launch(plan(rows)).wait().token_ids)
    assert [list(output) for output in zip(*found, strict=True)] == expected


def test_a_prefix_is_shared_by_pointing_at_its_rows_and_copied_by_a_copy(engine: TorchEngine) -> None:
    expected = continuation(engine, PROMPT, 4)  # leaves the prompt's rows at locations 0..13
    shared = plan(
        [RowRun(1, 12, 2, True)],
        [start(1, PROMPT)],
        [write(1, 0, 0, 8), write(1, 8, 100, 10)],
        [(8 + i, 100 + i) for i in range(4)],
    )
    output = engine.launch(shared).wait().token_ids
    for done in range(3):
        output += engine.launch(plan([RowRun(1, 14 + done, 1, True)])).wait().token_ids
    assert output == expected


def test_plans_may_hold_read_only_arrays(engine: TorchEngine) -> None:
    expected = continuation(engine, PROMPT, 1)
    begun, written = start(1, PROMPT), write(1, 0, 40, 14)
    begun.token_ids.flags.writeable = written.locations.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert engine.launch(plan([RowRun(1, 0, 14, True)], [begun], [written])).wait().token_ids == expected


def test_the_later_of_two_writes_to_one_entry_holds(engine: TorchEngine) -> None:
    expected = continuation(engine, PROMPT, 1)
    wrong_then_right = [write(1, 0, 40, 14), write(1, 0, 60, 8), write(1, 0, 80, 14)]
    engine.launch(plan([RowRun(1, 0, 13, False)], [start(1, PROMPT)], wrong_then_right)).wait()
    moved = plan([RowRun(2, 13, 1, True)], [start(2, PROMPT)], [write(2, 0, 80, 14)])
    assert engine.launch(moved).wait().token_ids == expected


def test_a_slot_forgets_its_last_request(engine: TorchEngine) -> None:
    expected = continuation(engine, PROMPT[:5], 3)
    scored = plan([RowRun(1, 0, 14, True)], [start(1, PROMPT, prompt_start=1)], [write(1, 0, 40, 20)])
    assert engine.launch(scored).wait().prompt_logprobs.keys() == {0}
    assert continuation(engine, PROMPT[:5], 3, slot=1, base=90) == expected
    again = plan([RowRun(1, 0, 5, False)], [start(1, PROMPT[:5])], [write(1, 0, 90, 6)])
    assert engine.launch(again).wait().prompt_logprobs == {}


def prompt_entries(engine: TorchEngine, chunks: Sequence[int], prompt_start: int) -> list[tuple[int, TokenLogprobs]]:
    """All reported (position, entry) of PROMPT + two completion ids, computed in chunks."""
    begun = start(0, [*PROMPT, 4, 5], num_prompt=14, prompt_start=prompt_start, top_n=2, token_ids=(9,))
    engine.launch(plan(starts=[begun], writes=[write(0, 0, 0, 16)])).wait()
    entries, first = [], 0
    for count in chunks:
        reports = engine.launch(plan([RowRun(0, first, count, False)])).wait().prompt_logprobs
        if reports:
            position, values = reports[0]
            entries += list(enumerate(values, position))
        first += count
    return entries


@pytest.mark.parametrize("prompt_start", [0, 1, 6, 13])
def test_prompt_logprobs_cover_the_prompt_once_however_it_is_chunked(engine: TorchEngine, prompt_start: int) -> None:
    whole = prompt_entries(engine, [16], prompt_start)
    assert [position for position, _ in whole] == list(range(max(1, prompt_start), 14))
    assert [entry.token_id for _, entry in whole] == PROMPT[max(1, prompt_start) :]
    for chunks in ([5, 11], [1] * 16, [6, 1, 7, 2]):
        found = prompt_entries(engine, chunks, prompt_start)
        assert [position for position, _ in found] == [position for position, _ in whole]
        for (_, entry), (_, other) in zip(found, whole, strict=True):
            assert entry.logprob == pytest.approx(other.logprob, abs=1e-5)
            assert entry.asked_logprobs == pytest.approx(other.asked_logprobs, abs=1e-5)


def test_prompt_logprobs_are_reduced_in_blocks(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = prompt_entries(engine, [16], 0)
    monkeypatch.setattr(runner_module, "SCORED_ROWS_AT_ONCE", 3)
    blocks = prompt_entries(engine, [16], 0)
    assert [(position, entry.token_id, entry.top_ids) for position, entry in blocks] == [
        (position, entry.token_id, entry.top_ids) for position, entry in whole
    ]


def test_sampled_logprobs_are_keyed_by_row(engine: TorchEngine) -> None:
    starts = [start(0, PROMPT), start(1, PROMPT[:6], output=True, top_n=1)]
    rows = [RowRun(0, 0, 3, False), RowRun(1, 0, 6, True)]
    result = engine.launch(plan(rows, starts, [write(0, 0, 0, 14), write(1, 0, 40, 8)])).wait()
    assert result.logprobs.keys() == {1}
    assert result.logprobs[1].token_id == result.token_ids[1] == result.logprobs[1].top_ids[0]


@pytest.mark.parametrize(
    ("error", "advice"),
    [(torch.OutOfMemoryError("no room for 9 GiB"), "mem-fraction"), (RuntimeError("a shape is wrong"), "see the server's log")],
)
def test_a_failed_step_surfaces_when_waited_for(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch, error: Exception, advice: str
) -> None:
    def fail(*_: object) -> torch.Tensor:
        raise error

    monkeypatch.setattr(engine._model, "forward", fail)
    pending = engine.launch(plan([RowRun(0, 0, 14, True)], [start(0, PROMPT)], [write(0, 0, 0, 14)]))
    with pytest.raises(EngineFailed, match=f"step 7.*{advice}") as failure:
        pending.wait()
    assert pending.done()
    assert failure.value.__cause__ is error and str(error) not in failure.value.message


def test_launching_does_not_wait_for_the_device(engine: TorchEngine) -> None:
    gate = threading.Event()
    engine.stream.submit(lambda: gate.wait(60))
    pending = engine.launch(plan([RowRun(0, 0, 14, True)], [start(0, PROMPT)], [write(0, 0, 0, 14)]))
    assert not pending.done()
    gate.set()
    assert len(pending.wait().token_ids) == 1


def test_closing_waits_for_what_was_launched() -> None:
    engine = make_engine()
    pending = engine.launch(plan([RowRun(0, 0, 14, True)], [start(0, PROMPT)], [write(0, 0, 0, 14)]))
    engine.close()
    assert pending.done()
    with pytest.raises(EngineFailed):
        engine.launch(plan())
