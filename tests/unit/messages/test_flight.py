"""The flight record: what is written is read, the latest only, and half of a record is never seen."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sapwood.core.plan import RowRun, StepPlan, no_copies
from sapwood.messages.flight import MAX_ROWS, NUM_STEPS, FlightRecorder, read_plan, read_steps


class Clock:
    now = 100.0

    def __call__(self) -> float:
        self.now += 0.5
        return self.now


def plan(step: int, num_rows: int = 2) -> StepPlan:
    return StepPlan(step, (), (), no_copies(), tuple(RowRun(slot, 10 * slot, 3, slot % 2 == 0) for slot in range(num_rows)))


def test_the_last_plan_and_its_suspects(tmp_path: Path) -> None:
    path = str(tmp_path / "flight")
    assert read_steps(path) == [] and read_plan(path) is None
    recorder = FlightRecorder(path, Clock())
    assert read_steps(path) == [] and read_plan(path) is None
    recorder.launched(plan(1), [7, 8])
    recorder.launched(plan(2, 1), [7, 8, 8])
    recorder.ended(1)
    found = read_plan(path)
    assert found is not None and found.step == 2
    assert found.suspects == [7, 8] and found.rows == [[0, 0, 3, 1]]
    first, second = read_steps(path)
    assert (first.step, first.num_rows, first.num_tokens) == (1, 2, 6)
    assert first.ended_s > second.launched_s > first.launched_s and second.ended_s == 0.0


def test_only_the_latest_steps_are_kept(tmp_path: Path) -> None:
    path = str(tmp_path / "flight")
    recorder = FlightRecorder(path, Clock())
    for step in range(1, 2 * NUM_STEPS + 30):
        recorder.launched(plan(step), [step])
        recorder.ended(step)
    steps = read_steps(path)
    assert [record.step for record in steps] == list(range(NUM_STEPS + 30, 2 * NUM_STEPS + 30))
    assert all(record.ended_s > record.launched_s for record in steps)


def test_a_writer_that_dies_in_the_middle_leaves_the_record_before(tmp_path: Path) -> None:
    path = tmp_path / "flight"
    recorder = FlightRecorder(str(path), Clock())
    recorder.launched(plan(1), [5])
    whole = path.read_bytes()
    recorder.launched(plan(2), [6])
    after = path.read_bytes()
    changed = np.flatnonzero(np.frombuffer(whole, np.uint8) != np.frombuffer(after, np.uint8))
    header = after[:64]
    torn = bytearray(after)
    torn[:64] = whole[:64]  # the header is written last
    path.write_bytes(torn)
    found = read_plan(str(path))
    assert found is not None and (found.step, found.suspects) == (1, [5])
    assert changed[0] < 64 and header != whole[:64]


def test_more_rows_than_fit_are_left_out(tmp_path: Path) -> None:
    path = str(tmp_path / "flight")
    recorder = FlightRecorder(path, Clock())
    recorder.launched(plan(1, MAX_ROWS + 5), list(range(MAX_ROWS + 5)))
    found = read_plan(path)
    assert found is not None and len(found.rows) == len(found.suspects) == MAX_ROWS
    (record,) = read_steps(path)
    assert record.num_rows == MAX_ROWS + 5


def test_a_foreign_file_is_no_record(tmp_path: Path) -> None:
    path = tmp_path / "flight"
    path.write_bytes(b"x" * 1_000_000)
    assert read_steps(str(path)) == [] and read_plan(str(path)) is None
