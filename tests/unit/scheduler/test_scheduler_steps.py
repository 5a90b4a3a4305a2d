"""What one step holds: chunks, decodes first, modes, endings, slots and pages in plans."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from scheduler_hand import EOS, Hand, ask, entry, limits, rows

from sapwood.core.plan import StepResult
from sapwood.core.sampling import LogprobOptions
from sapwood.errors import ConfigError
from sapwood.messages.types import StepInputs
from sapwood.scheduler import Scheduler, SchedulerOptions


def test_a_request_from_submit_to_length() -> None:
    hand = Hand()
    outcome = hand.turn(ask(1, [1, 2, 3, 4, 5], max_new_tokens=3))
    plan = outcome.plan
    assert plan is not None and plan.step == 1
    assert rows(outcome) == [(0, 0, 5, True)]
    start = plan.starts[0]
    assert (start.token_ids.tolist(), start.num_prompt, start.sample_index) == ([1, 2, 3, 4, 5], 5, 0)
    assert plan.writes[0].locations.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert rows(hand.turn()) == [(0, 5, 1, True)]
    assert rows(hand.turn()) == [(0, 6, 1, True)]
    assert hand.turn().plan is None
    assert hand.tokens(1) == [10, 10, 10]
    assert [event.index for event in hand.events] == [0, 1, 2]
    assert hand.finishes() == {1: "length"}
    assert hand.scheduler.idle


def test_a_prompt_is_cut_into_chunks_and_only_the_last_one_samples() -> None:
    hand = Hand(step_token_budget=4)
    assert rows(hand.turn(ask(1, list(range(10)), max_new_tokens=2))) == [(0, 0, 4, False)]
    assert rows(hand.turn()) == [(0, 4, 4, False)]
    assert rows(hand.turn()) == [(0, 8, 2, True)]
    assert hand.events == []


def test_decodes_come_first_and_prompts_get_the_rest() -> None:
    hand = Hand(step_token_budget=5)
    hand.turn(ask(1, [1, 2], max_new_tokens=9))
    assert rows(hand.turn(ask(2, list(range(20, 30)), max_new_tokens=2))) == [(0, 2, 1, True), (1, 0, 4, False)]
    assert rows(hand.turn()) == [(0, 3, 1, True), (1, 4, 4, False)]


def test_prompts_get_a_floor_when_decodes_fill_the_budget() -> None:
    hand = Hand(step_token_budget=4)
    hand.turn(*(ask(number, [number], max_new_tokens=20) for number in (1, 2, 3)))
    outcome = hand.turn(ask(4, list(range(20, 32)), max_new_tokens=2))
    assert [row[2] for row in rows(outcome)] == [1, 1, 1, 4], "one page of prompt beside three decodes"


def test_prefill_first_does_prompts_alone() -> None:
    hand = Hand(step_token_budget=4, mode="prefill-first")
    hand.turn(ask(1, [1, 2], max_new_tokens=9))
    assert rows(hand.turn(ask(2, list(range(20, 26)), max_new_tokens=2))) == [(1, 0, 4, False)]
    assert rows(hand.turn()) == [(1, 4, 2, True)]
    assert rows(hand.turn()) == [(0, 2, 1, True), (1, 6, 1, True)]


def test_table_writes_come_with_new_pages_only() -> None:
    hand = Hand()
    hand.turn(ask(1, [1, 2, 3], max_new_tokens=9))
    assert [len(hand.turn().plan.writes) for _ in range(6)] == [0, 1, 0, 0, 0, 1]  # type: ignore[union-attr]


def test_table_writes_end_with_the_table() -> None:
    hand = Hand(limits(max_len=6))
    plan = hand.turn(ask(1, [1, 2, 3, 4, 5], max_new_tokens=1)).plan
    assert plan is not None and plan.writes[0].locations.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("params", "ids", "kind", "matched", "num_tokens"),
    [
        ({}, [10, EOS], "stop", EOS, 2),
        ({"stop_token_ids": (11,)}, [10, 11], "stop", 11, 2),
        ({"ignore_eos": True, "stop_token_ids": (11,)}, [11, EOS, 11, 10], "length", None, 4),
        ({"min_new_tokens": 2}, [EOS, EOS, EOS], "stop", EOS, 3),
        ({}, [10, 11, 12, EOS], "stop", EOS, 4),
        ({}, [10, 11, 12, 13], "length", None, 4),
    ],
)
def test_endings(params: dict[str, object], ids: list[int], kind: str, matched: int | None, num_tokens: int) -> None:
    hand = Hand()
    hand.step(ask(1, [1, 2, 3], max_new_tokens=4, **params))
    for token in ids:
        hand.confirm(token)
        hand.step()
    finish = hand.events[-1].finish
    assert finish is not None and (finish.kind, finish.matched) == (kind, matched)
    assert hand.tokens(1) == ids[:num_tokens]
    assert hand.scheduler.idle


def test_no_new_tokens_means_prefill_only() -> None:
    hand = Hand()
    options = LogprobOptions(prompt_start=1)
    outcome = hand.step(ask(1, [1, 2, 3], max_new_tokens=0, logprobs=options))
    assert rows(outcome) == [(0, 0, 3, False)]
    hand.confirm(prompt_logprobs={0: (1, [entry(2), entry(3)])})
    hand.step()
    event = hand.events[0]
    assert (event.token_ids, event.prompt_logprobs) == ([], [entry(2), entry(3)])
    assert event.finish is not None and event.finish.kind == "length"


def test_output_logprobs_come_with_their_ids() -> None:
    hand = Hand()
    hand.step(ask(1, [1, 2], max_new_tokens=1, logprobs=LogprobOptions(output=True)), ask(2, [3], max_new_tokens=1))
    hand.confirm(10, 11, logprobs={0: entry(10)})
    hand.step()
    assert [event.logprobs for event in hand.events] == [[entry(10)], None]


def test_an_impossible_id_fails_its_request_only() -> None:
    hand = Hand()
    hand.step(ask(1, [1], max_new_tokens=5), ask(2, [2], max_new_tokens=5))
    hand.confirm(100, 10)
    hand.step()
    finish = hand.events[0].finish
    assert finish is not None and (finish.kind, finish.status) == ("error", 500)
    hand.finish()
    assert hand.finishes() == {1: "error", 2: "length"}


def test_a_cached_prompt_still_computes_one_token() -> None:
    hand = Hand()
    prompt = list(range(8))
    hand.turn(ask(1, prompt, max_new_tokens=1))
    hand.turn()
    outcome = hand.turn(ask(2, prompt, max_new_tokens=1))
    assert rows(outcome) == [(0, 7, 1, True)]
    assert outcome.plan is not None and outcome.plan.copies.shape == (3, 2)
    assert np.array_equal(outcome.plan.copies[:, 0] // 4, [1, 1, 1]), "three rows of the second page are copied"
    hand.turn()
    assert hand.events[-1].num_cached == 7
    stats = hand.scheduler.stats()
    assert (stats.prompt_tokens_total, stats.cached_tokens_total, stats.computed_tokens_total) == (16, 7, 9)


def test_running_requests_publish_before_they_end() -> None:
    hand = Hand(publish_tokens=4)
    hand.turn(ask(1, list(range(8)), max_new_tokens=30))
    assert rows(hand.turn(ask(2, [*range(8), 50], max_new_tokens=1)))[1] == (1, 8, 1, True)


def test_scoring_positions_are_computed_even_when_cached() -> None:
    hand = Hand()
    hand.turn(ask(1, list(range(12)), max_new_tokens=1))
    outcome = hand.turn(ask(2, list(range(12)), max_new_tokens=1, logprobs=LogprobOptions(prompt_start=5)))
    assert rows(outcome) == [(1, 4, 8, True)] or rows(outcome) == [(0, 4, 8, True)]


def test_results_out_of_order_are_refused() -> None:
    scheduler = Scheduler(limits(), SchedulerOptions())
    with pytest.raises(RuntimeError, match="out of order"):
        scheduler.step(StepInputs(results=[StepResult(7, [])]))


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "sjf"},
        {"cache": "hash-map"},
        {"mode": "decode-first"},
        {"eviction": "mru"},
        {"step_token_budget": 0},
        {"max_queue": -1},
        {"init_new_token_ratio": 0.0},
        {"max_reserved_tokens": 0},
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Hand(**options)


def test_scheduling_needs_no_torch_and_the_null_model_neither() -> None:
    code = "import sapwood.scheduler, sapwood.kvcache, sapwood.worker.null_main, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_law_broken_while_idle_is_mended() -> None:
    hand = Hand()
    hand.turn(ask(1, list(range(8)), max_new_tokens=1))
    hand.turn()
    assert hand.scheduler.idle
    hand.scheduler._custody.pool.take(1)
    assert "1 pages have no holder" in hand.scheduler.check()[0]
    assert hand.scheduler.check() == []
    stats = hand.scheduler.stats()
    assert (stats.law_violations_total, stats.num_free_pages) == (1, 64)
    assert rows(hand.turn(ask(2, list(range(8)), max_new_tokens=1))) == [(0, 0, 8, True)]
