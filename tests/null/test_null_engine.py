"""The null engine by itself: late execution, damage it notices, text it makes, log-probabilities that add up."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from null_driver import submit

from sapwood.core.plan import RowRun, SlotStart, StepPlan, TableWrite, as_ids, no_copies
from sapwood.core.sampling import LogprobOptions, SamplingParams
from sapwood.engine.null import NullEngine, NullOptions
from sapwood.engine.null_model import EOS_ID, NullModel, null_limits
from sapwood.errors import EngineFailed

IDS = [104, 101, 108, 108, 111]


def prompt_plan(step: int = 1, first_page: int = 0) -> StepPlan:
    start = SlotStart(0, as_ids(IDS), len(IDS), SamplingParams(temperature=0.0, seed=0), LogprobOptions(), 0)
    write = TableWrite(0, 0, np.arange(first_page * 16, first_page * 16 + 16, dtype=np.int32))
    return StepPlan(step, (start,), (write,), no_copies(), (RowRun(0, 0, len(IDS), True),))


def decode_plan(step: int, first: int, *writes: TableWrite) -> StepPlan:
    return StepPlan(step, (), writes, no_copies(), (RowRun(0, first, 1, True),))


def test_steps_compute_when_waited_for_and_in_order() -> None:
    engine = NullEngine(null_limits(), NullOptions(eos_probability=0.0))
    first, second = engine.launch(prompt_plan()), engine.launch(decode_plan(2, 5))
    assert first.result is None
    ids = [*second.wait().token_ids, *first.wait().token_ids]
    expected = engine.model.complete(IDS, SamplingParams(max_new_tokens=2, temperature=0.0))
    assert ids[::-1] == expected
    engine.close()


def test_a_page_that_changed_hands_is_noticed() -> None:
    engine = NullEngine(null_limits(), NullOptions(is_strict=False))
    honest = engine.launch(prompt_plan()).wait().token_ids
    engine.launch(decode_plan(2, 5, TableWrite(0, 0, np.arange(64, 80, dtype=np.int32)))).wait()
    assert "whose KV is not that of its prefix" in engine.violations[0]
    strict = NullEngine(null_limits())
    assert strict.launch(prompt_plan()).wait().token_ids == honest
    with pytest.raises(EngineFailed, match="attends to position 0"):
        strict.launch(decode_plan(2, 5, TableWrite(0, 0, np.arange(64, 80, dtype=np.int32)))).wait()


def test_positions_without_pages_and_repeated_steps_are_noticed() -> None:
    engine = NullEngine(null_limits(), NullOptions(is_strict=False))
    engine.launch(prompt_plan()).wait()
    engine.launch(decode_plan(1, 16)).wait()
    assert any("without pages" in violation for violation in engine.violations)
    assert any("launched after" in violation for violation in engine.violations)


def test_a_step_takes_its_time() -> None:
    engine = NullEngine(null_limits(), NullOptions(step_time_s=0.03))
    pending = engine.launch(prompt_plan())
    assert not pending.done()
    began = time.monotonic()
    pending.wait()
    assert pending.done() and time.monotonic() > began


def test_text_is_printable_and_ends_as_often_as_asked() -> None:
    model = NullModel(4096, eos_probability=0.05)
    lengths = []
    for number in range(60):
        ids = model.complete([number, 7], SamplingParams(max_new_tokens=400, temperature=1.0, seed=number))
        lengths.append(len(ids))
        text = bytes(ids[:-1]).decode()
        assert text.isprintable() and text.isascii()
        assert ids[-1] == EOS_ID or len(ids) == 400
    assert 10 < sum(lengths) / len(lengths) < 90


def test_ends_are_kept_back_until_the_minimum() -> None:
    model = NullModel(4096, eos_probability=1.0)
    assert len(model.complete(IDS, SamplingParams(max_new_tokens=9, min_new_tokens=4, temperature=0.0))) == 5


def test_logprobs_are_a_distribution_and_do_not_depend_on_sampling() -> None:
    model = NullModel(64)
    entry = model.logprobs(12345, 97, LogprobOptions(output=True, top_n=20, token_ids=(97, 0)))
    assert entry.top_logprobs == sorted(entry.top_logprobs, reverse=True)
    assert len(set(entry.top_ids)) == 20
    assert 0.99 < sum(math.exp(value) for value in entry.top_logprobs) <= 1.0
    assert entry.asked_logprobs == [entry.logprob, -80.0]


def test_seeds_and_sample_indices_make_different_samples() -> None:
    model = NullModel(4096, eos_probability=0.0)
    params = [SamplingParams(max_new_tokens=20, temperature=1.0, seed=seed) for seed in (1, 2)]
    samples = {tuple(model.complete(IDS, one, index)) for one in params for index in (0, 1)}
    assert len(samples) == 4
    assert submit(1, IDS).params.is_greedy
