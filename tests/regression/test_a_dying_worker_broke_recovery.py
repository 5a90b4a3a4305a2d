"""A worker whose memory was damaged could leave counts in its flight record that made reading it raise, inside recovery."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from sapwood.core.plan import RowRun, StepPlan, no_copies
from sapwood.messages.flight import FlightRecorder, read_plan, read_steps

PLANS_AT, PLAN_BYTES = 16384, 64 + 8192 * 24


@pytest.mark.parametrize("counts", [(-1, 1), (1, -1), (1 << 30, 1), (1, 8193), (-(1 << 31), 1 << 30)])
def test_counts_that_cannot_be_are_no_plan(tmp_path: Path, counts: tuple[int, int]) -> None:
    path = tmp_path / "flight"
    FlightRecorder(str(path), lambda: 1.0).launched(StepPlan(1, (), (), no_copies(), (RowRun(0, 0, 3, True),)), [7])
    assert read_plan(str(path)) is not None
    with path.open("rb+") as file:
        for turn in (0, 1):
            file.seek(PLANS_AT + turn * PLAN_BYTES + 8)
            file.write(struct.pack("<ii", *counts))
    assert read_plan(str(path)) is None
    assert [record.step for record in read_steps(str(path))] == [1]
