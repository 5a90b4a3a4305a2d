"""The native engine behind the scheduler: what the torch engine says, its borders, and its end."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("sapwood.kernels.native._native", reason="the native module is not built; see csrc/README.md")

from native_model import CONFIG, EOS, LIMITS, MAX_LEN, VOCAB_SIZE, Hand, LoudCheckpoint, ask, make_native

from sapwood.core.plan import EngineLimits, RowRun, SlotStart, StepPlan, TableWrite, as_ids, no_copies
from sapwood.core.sampling import LogprobOptions, SamplingParams
from sapwood.distributed.group import SoloGroup
from sapwood.engine.lifecycle import EngineOptions, create_engine
from sapwood.engine.native_lifecycle import NativeTypes
from sapwood.engine.native_runner import NativeEngine
from sapwood.errors import ConfigError, EngineFailed

ALL_LOGPROBS = LogprobOptions(output=True, top_n=5, token_ids=(0, 1999), prompt_start=1)


@pytest.fixture(scope="module")
def engine() -> Iterator[NativeEngine]:
    engine = make_native(types=NativeTypes("f32"))
    yield engine
    engine.close()


def prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(3, VOCAB_SIZE, length).tolist()


def start(slot: int, ids: list[int], params: SamplingParams | None = None) -> tuple[SlotStart, TableWrite]:
    params = params or SamplingParams(temperature=0.0, seed=0)
    places = np.arange(slot * MAX_LEN, (slot + 1) * MAX_LEN, dtype=np.int32)
    return SlotStart(slot, as_ids(ids), len(ids), params, LogprobOptions(), 0), TableWrite(slot, 0, places)


@pytest.mark.parametrize("before", [ALL_LOGPROBS, LogprobOptions()])
@pytest.mark.parametrize("wanted", [LogprobOptions(), LogprobOptions(output=True), LogprobOptions(prompt_start=1)])
def test_a_slot_reports_what_its_request_asks(engine: NativeEngine, before: LogprobOptions, wanted: LogprobOptions) -> None:
    for options in (before, wanted):
        begun, write = start(0, prompt(9))
        begun = dataclasses.replace(begun, logprobs=options)
        first = engine.launch(StepPlan(1, (begun,), (write,), no_copies(), (RowRun(0, 0, 9, True),))).wait()
        second = engine.launch(StepPlan(2, (), (), no_copies(), (RowRun(0, 9, 1, True),))).wait()
    assert (0 in first.logprobs, 0 in second.logprobs) == (wanted.output, wanted.output)
    assert (0 in first.prompt_logprobs) == (wanted.prompt_start is not None)


def test_the_native_engine_says_what_the_torch_engine_says(engine: NativeEngine) -> None:
    options = EngineOptions(LIMITS.num_slots, MAX_LEN, LIMITS.num_pages, 16, device="cpu")
    torch_engine = create_engine(options, LoudCheckpoint(CONFIG), SoloGroup())
    greedy = SamplingParams(temperature=0.0, seed=0, max_new_tokens=24, ignore_eos=True)
    drawn = SamplingParams(temperature=0.9, top_p=0.9, seed=5, max_new_tokens=24, ignore_eos=True, repetition_penalty=1.2)
    requests = [ask(n, prompt(5 + 9 * n, n), greedy if n % 2 else drawn, ALL_LOGPROBS) for n in range(8)]
    want = Hand(torch_engine).run(requests)
    found = Hand(engine).run(requests)
    torch_engine.close()
    assert {n: heard.token_ids for n, heard in found.items()} == {n: heard.token_ids for n, heard in want.items()}
    for n, heard in found.items():
        pairs = [*zip(heard.logprobs, want[n].logprobs, strict=True)]
        pairs += zip(heard.prompt_logprobs, want[n].prompt_logprobs, strict=True)
        for mine, theirs in pairs:
            assert (mine.token_id, mine.top_ids) == (theirs.token_id, theirs.top_ids)
            assert [mine.logprob, *mine.top_logprobs, *mine.asked_logprobs] == pytest.approx(
                [theirs.logprob, *theirs.top_logprobs, *theirs.asked_logprobs], abs=2e-4
            )


def test_min_new_tokens_holds_the_end_back(engine: NativeEngine) -> None:
    wish = {EOS: 100.0}
    held = SamplingParams(temperature=0.0, seed=0, max_new_tokens=9, min_new_tokens=4, logit_bias=wish)
    free = SamplingParams(temperature=0.0, seed=0, max_new_tokens=9, logit_bias=wish)
    heard = Hand(engine).run([ask(1, prompt(9), held, LogprobOptions()), ask(2, prompt(9), free, LogprobOptions())])
    assert len(heard[1].token_ids) == 5 and len(heard[2].token_ids) == 1


def test_a_plan_may_have_no_rows(engine: NativeEngine) -> None:
    begun, write = start(0, prompt(4))
    pending = engine.launch(StepPlan(7, (begun,), (write,), no_copies(), ()))
    result = pending.wait()
    assert pending.done() and result is pending.wait()
    assert (result.step, result.token_ids, result.logprobs, result.prompt_logprobs) == (7, [], {}, {})
    result = engine.launch(StepPlan(8, (), (), no_copies(), (RowRun(0, 0, 4, True),))).wait()
    assert 0 <= result.token_ids[0] < VOCAB_SIZE


def test_rows_that_do_not_sample_are_minus_one(engine: NativeEngine) -> None:
    begun = [start(slot, prompt(6, slot)) for slot in range(3)]
    rows = (RowRun(0, 0, 6, True), RowRun(1, 0, 3, False), RowRun(2, 0, 6, True))
    ids = engine.launch(StepPlan(1, tuple(s for s, _ in begun), tuple(w for _, w in begun), no_copies(), rows)).wait().token_ids
    assert [token_id >= 0 for token_id in ids] == [True, False, True]


def test_plans_beyond_the_limits_fail_and_change_nothing(engine: NativeEngine) -> None:
    for row in (RowRun(LIMITS.num_slots, 0, 1, False), RowRun(0, MAX_LEN, 1, False), RowRun(0, 0, 0, False)):
        with pytest.raises(EngineFailed, match="step 3 cannot run"):
            engine.launch(StepPlan(3, (), (), no_copies(), (row,)))
    assert engine.launch(StepPlan(4, (), (), no_copies(), ())).wait().token_ids == []


def test_closing_waits_for_launched_steps_and_ends_the_engine() -> None:
    engine = make_native(threads=1)
    begun, write = start(0, prompt(100))
    pending = engine.launch(StepPlan(1, (begun,), (write,), no_copies(), (RowRun(0, 0, 100, True),)))
    engine.close()
    engine.close()
    assert pending.done() and pending.wait().token_ids[0] >= 0
    with pytest.raises(EngineFailed, match="closed"):
        engine.launch(StepPlan(2, (), (), no_copies(), ()))


def test_pages_are_made_of_whole_native_pages(engine: NativeEngine) -> None:
    with pytest.raises(ConfigError, match="not made of the native engine's pages of 16"):
        make_native(limits=EngineLimits(4, 64, 40, 24, VOCAB_SIZE, (EOS,)))
    wide = make_native(limits=EngineLimits(4, 128, 8, 64, VOCAB_SIZE, (EOS,)), types=NativeTypes("f32"))
    greedy = SamplingParams(temperature=0.0, seed=0, max_new_tokens=20, ignore_eos=True)
    requests = [ask(n, prompt(30 + 17 * n, n), greedy, ALL_LOGPROBS) for n in range(4)]
    found, want = Hand(wide).run(requests), Hand(engine).run(requests)
    wide.close()
    assert {n: heard.content for n, heard in found.items()} == {n: heard.content for n, heard in want.items()}
