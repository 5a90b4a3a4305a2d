"""The automatic budget: what it learns, what it grants, and that it keeps its target on virtual time."""

from __future__ import annotations

import random

import pytest

from sapwood.core.plan import RowRun, StepPlan, no_copies
from sapwood.errors import ConfigError
from sapwood.scheduler.budget import AutoBudget, FixedBudget, TokenBudget
from sapwood.scheduler.options import SchedulerOptions
from sapwood.scheduler.step_cost import StepCost, attended

BASE_S, TOKEN_S, ATTENDED_S, READ_S = 4e-3, 5e-5, 2e-8, 3e-8


def true_cost(rows: list[RowRun]) -> float:
    rows_s = (
        TOKEN_S * row.count + ATTENDED_S * attended(row.first, row.count) + READ_S * (row.first + row.count) for row in rows
    )
    return BASE_S + sum(rows_s)


def taught(noise: float = 0.0) -> StepCost:
    chance, cost = random.Random(3), StepCost()
    for turn in range(200):
        rows = [RowRun(0, chance.randrange(2000), 1, True) for _ in range(chance.randrange(1, 9))]
        if turn % 3:
            rows.append(RowRun(1, chance.randrange(3000), chance.randrange(2, 400), False))
        cost.learn(rows, true_cost(rows) * (1.0 + noise * chance.random()))
    cost.fit()
    return cost


def test_the_cost_of_steps_is_learnt() -> None:
    cost = taught()
    rows = [RowRun(0, 100, 1, True), RowRun(1, 1000, 256, False)]
    assert cost.of_step(rows) == pytest.approx(true_cost(rows), rel=1e-3)
    assert cost.margin == pytest.approx(1.0, abs=1e-3) and 300 < cost.largest_prompt < 400
    assert taught(noise=0.5).margin < 1.1, "noise that leaves the tail within one and a half times the typical step costs little"


def test_a_long_tail_asks_for_distance_from_the_target() -> None:
    cost = StepCost()
    for turn in range(200):
        rows = [RowRun(0, 500, 1, True), RowRun(1, 10 * turn, 100, False)]
        cost.learn(rows, true_cost(rows) * (2.4 if turn % 20 == 0 else 1.0))
    cost.fit()
    assert cost.of_step(rows) * cost.margin * 1.5 == pytest.approx(2.4 * true_cost(rows), rel=0.15)


def test_a_result_that_was_taken_late_does_not_spoil_what_is_learnt() -> None:
    """Its step seems long, and the one behind it next to nothing."""
    cost = StepCost()
    for turn in range(64):
        rows = [RowRun(0, 500 + turn, 1, True), RowRun(1, 20 * turn, 30 + turn % 7, False)]
        late_s = {30: true_cost(rows) * 0.99, 31: true_cost(rows) * -0.99}.get(turn, 0.0)
        cost.learn(rows, true_cost(rows) + late_s)
        cost.fit()
    rows = [RowRun(0, 570, 1, True), RowRun(1, 900, 40, False)]
    assert cost.of_step(rows) == pytest.approx(true_cost(rows), rel=0.05)


def test_the_affordable_chunk_shrinks_with_the_context_before_it() -> None:
    cost = taught()
    counts = [cost.affordable(0.01, first) for first in (0, 1000, 4000)]
    assert counts == sorted(counts, reverse=True) and counts[0] > 150
    for first, count in zip((0, 1000, 4000), counts, strict=True):
        assert cost.of_row(first, count) <= 0.01 < cost.of_row(first, count + 2)
    assert cost.affordable(0.0, 5) == 0
    assert StepCost().affordable(1.0, 5) > 10**9, "nothing is known, nothing is forbidden; the budget's own limits hold"


def drive(budget: AutoBudget, num_steps: int, num_decodes: int, slow: float = 1.0) -> list[float]:
    """Durations of steps with a steady flow of 4000-token prompts beside decodes."""
    durations, position = [], 0
    for step in range(num_steps):
        rows = [RowRun(slot, 500 + step, 1, True) for slot in range(num_decodes)]
        allowance = budget.open(rows)
        while not allowance.is_spent:
            count = allowance.grant(position, 4000 - position)
            rows.append(RowRun(99, position, count, False))
            position = (position + count) % 4000
        durations.append(true_cost(rows) * slow)
        budget.observe(StepPlan(step, (), (), no_copies(), tuple(rows)), durations[-1])
    return durations


def test_steps_beside_decodes_keep_the_target_and_use_it() -> None:
    durations = drive(AutoBudget(0.02, 2048, 16), 400, num_decodes=8)
    assert max(durations) <= 0.0202
    assert sorted(durations[20:])[len(durations) // 2] > 0.018, "what the target leaves is used"


def test_small_chunks_do_not_hide_that_larger_ones_cost_hardly_more() -> None:
    """A prompt's first token costs 20 ms beside decodes, every further one 0.4 ms; chunks of one look like 20 ms a token."""
    budget, durations = AutoBudget(0.071, 2048, 16), list[float]()
    decode = RowRun(0, 500, 1, True)
    for step in range(400):
        rows = [decode]
        if step >= 64:
            allowance = budget.open(rows)
            rows.append(RowRun(1, 0, allowance.grant(0, 4000) if step >= 128 else 1, False))
        durations.append(0.035 if len(rows) == 1 else 0.055 + 0.0004 * rows[1].count)
        budget.observe(StepPlan(step, (), (), no_copies(), tuple(rows)), durations[-1])
    late = sorted(durations[-100:])
    assert late[50] > 0.93 * 0.071 and late[-1] < 1.05 * 0.071


def drive_noisily(budget: TokenBudget, num_steps: int, chance: random.Random) -> tuple[list[float], list[int]]:
    """Durations and prompt tokens of steps that vary by a tenth, one in 200 by two and a half times; a prompt's token costs about
    as much as the decode beside it, deep in a context more."""
    durations, counts, position = [], [], 0
    for step in range(num_steps):
        decode = RowRun(0, 500 + step, 1, True)
        allowance = budget.open([decode])
        count = 0 if allowance.is_spent else allowance.grant(position, 4000 - position)
        prompts = [RowRun(9, position, count, False)] if count else []
        position = (position + count) % 4000
        seconds = 5.5e-3 + 1e-6 * (500 + step)
        seconds += 9e-4 * count + 5e-7 * attended(position, count) + 1e-6 * (position + count) if count else 0.0
        durations.append(seconds * chance.lognormvariate(0.0, 0.1) * (2.5 if chance.random() < 0.005 else 1.0))
        counts.append(count)
        budget.observe(StepPlan(step, (), (), no_copies(), (decode, *prompts)), durations[-1])
    return durations, counts


def test_decodes_that_were_not_seen_alone_are_not_taken_for_too_slow() -> None:
    """With chunks of one token all mixed steps look alike; a model that counted all of their time as the decodes' gave whole
    pages, and one step in a hundred took three times the target."""
    budget, target_s = AutoBudget(0.0134, 512, 16), 0.0134
    durations, counts = drive_noisily(budget, 2500, random.Random(1))
    assert max(counts[200:]) < 16
    late = sorted(durations[200:])
    assert late[len(late) // 2] < 1.05 * target_s and late[round(0.99 * len(late))] < 1.6 * target_s
    assert counts[200:].count(0) < 2300 / 60, "prompts hardly wait for it"
    fixed, _ = drive_noisily(FixedBudget(2, 1), 2500, random.Random(1))
    assert sum(counts) / sum(durations) > 1.1 * len(fixed) / sum(fixed), "more than one token a step"


def test_it_follows_a_machine_that_becomes_slower() -> None:
    budget = AutoBudget(0.02, 2048, 16)
    drive(budget, 100, num_decodes=8)
    durations = drive(budget, 300, num_decodes=8, slow=2.0)
    assert max(durations[80:]) <= 0.0205


def test_the_floor_is_one_page_even_when_decodes_alone_exceed_the_target() -> None:
    budget = AutoBudget(0.001, 2048, 16)
    drive(budget, 50, num_decodes=8)
    allowance = budget.open([RowRun(0, 500, 1, True)] * 8)
    assert (allowance.grant(0, 999), allowance.is_spent) == (16, True)


def test_a_page_that_would_break_the_target_is_cut() -> None:
    target_s = 1.15 * true_cost([RowRun(0, 500, 1, True)])  # room for about twelve tokens
    durations = drive(AutoBudget(target_s, 2048, 16), 200, num_decodes=1)
    assert max(durations[5:]) <= target_s * 1.02
    tight = AutoBudget(1.01 * true_cost([RowRun(0, 500, 1, True)]), 2048, 16)
    drive(tight, 50, num_decodes=1)
    assert tight.open([RowRun(0, 500, 1, True)]).grant(3000, 999) == 1, "one token, so that prompts do not starve"


def test_without_decodes_the_whole_budget_is_free_and_unmeasured_steps_teach_nothing() -> None:
    budget = AutoBudget(0.001, 2048, 16)
    assert budget.open([]).grant(0, 9999) == 2048
    budget.observe(StepPlan(1, (), (), no_copies(), (RowRun(0, 0, 64, True),)), 0.0)
    assert budget.open([RowRun(0, 5, 1, True)]).grant(0, 9999) == 16, "nothing was measured: no more than the floor"


def test_a_target_needs_mixed_steps() -> None:
    with pytest.raises(ConfigError, match="mixed"):
        SchedulerOptions(target_itl_s=0.01, mode="prefill-first")
    with pytest.raises(ConfigError, match="target_itl_s"):
        SchedulerOptions(target_itl_s=0.0)
