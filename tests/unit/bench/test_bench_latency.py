"""One batch in process: plans that the strict null engine accepts, whole prompts, and a complete report."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sapwood.bench.batch import NumberedEngine, Shape, make_plans, run_plans
from sapwood.bench.latency import LOOP, SEAM, SHARED, measure_latency
from sapwood.cli.main import main
from sapwood.core.plan import EngineLimits
from sapwood.engine.null import NullEngine
from sapwood.engine.null_model import null_limits
from sapwood.errors import ConfigError
from sapwood.llm import configure

SHAPES = [Shape(1, 5, 3), Shape(4, 40, 6), Shape(3, 50, 4, 32), Shape(1, 33, 2, 32), Shape(7, 16, 1)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("chunk", [1, 7, 64, 4096])
def test_plans_are_sound(shape: Shape, chunk: int) -> None:
    """The null engine raises if a row attends to KV that is not its own prefix's; each prompt position is computed once."""
    null = NullEngine(null_limits())
    engine = NumberedEngine(null)
    plans = make_plans(engine.limits, shape, chunk, seed=3)
    for _ in range(2):  # plans can be run again
        run_plans(engine, plans.prefill)
        run_plans(engine, plans.decode)
    assert null.violations == []
    rows = [row for plan in plans.prefill for row in plan.rows]
    assert sum(row.count for row in rows) == shape.batch * (shape.input_tokens - shape.shared_tokens) + shape.shared_tokens
    assert sum(row.samples for row in rows) == shape.batch
    assert max(plan.num_tokens for plan in plans.prefill) <= chunk
    assert [plan.num_tokens for plan in plans.decode] == [shape.batch] * shape.output_tokens


def test_a_shared_prefix_lies_in_the_same_pages_and_nothing_else_does() -> None:
    plans = make_plans(null_limits(), Shape(3, 50, 4, 32), 4096, seed=0)
    tables = [write.locations for plan in plans.prefill for write in plan.writes]
    assert len(tables) == 3 and all((table[:32] == tables[0][:32]).all() for table in tables)
    own = np.concatenate([table[32:] for table in tables])
    assert len(set(own.tolist())) == len(own) and not set(own.tolist()) & set(tables[0][:32].tolist())


@pytest.mark.parametrize(
    ("shape", "word"),
    [
        (Shape(65, 8, 1), "--max-running-requests"),
        (Shape(1, 5000, 1), "--context-length"),
        (Shape(60, 4000, 1), "--max-total-tokens"),
        (Shape(2, 20, 1, 20), "shared prefix"),
        (Shape(2, 40, 1, 17), "whole pages"),
    ],
)
def test_what_does_not_fit_is_refused(shape: Shape, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        make_plans(null_limits(), shape, 64, seed=0)


def test_report() -> None:
    report = measure_latency(configure("null", {}), "null", Shape(3, 40, 8, 16), 2, lambda task, done, total: None)
    assert set(report.decode_step_s) == set(report.prefill_s) == {SEAM, SHARED, LOOP}
    assert all(found.count == 2 and found.median > 0 for found in report.decode_step_s.values())
    assert report.private_over_shared is not None and report.loop_over_bare is None


def test_several_ranks_are_refused() -> None:
    with pytest.raises(ConfigError, match="--tp-size"):
        measure_latency(configure("null", {"tp_size": 2}), "null", Shape(1, 8, 2), 1, lambda task, done, total: None)


def test_command_prints_nothing_but_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "latency", "null", "--input-tokens", "20", "--output-tokens", "4", "--repeats", "1", "--json", "-"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["batch"] == 1


def test_limits_are_those_of_the_engine() -> None:
    limits = EngineLimits(2, 64, 8, 16, 300, ())
    assert len(make_plans(limits, Shape(2, 40, 4), 64, seed=0).prefill) == 2
