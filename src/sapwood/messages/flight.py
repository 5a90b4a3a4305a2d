"""The flight record: which step rank 0 launched last, for whom, and how long the latest steps took, in a mapped file.

Owns the file's layout; does not know why a worker died. Written by the worker (a few microseconds per step), read by the server,
also after the worker was killed. Invariant: a record that was being written when its writer died is not seen; the one before is.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from sapwood.core.plan import StepPlan
from sapwood.errors import ConfigError

NUM_STEPS = 200
MAX_ROWS = 8192
"""Rows and suspects of a plan beyond it are left out."""
_HEADER = struct.Struct("<8sqq")  # magic, last step launched, which of the two plans is whole
_STEP = struct.Struct("<qddiiii")
_PLAN = struct.Struct("<qii")  # step, suspects, rows; behind it the suspects (int64), then the rows (four int32 each)
_MOMENT = struct.Struct("<d")
_MAGIC = b"SAPFLT02"
_STEPS_AT = 64
_PLANS_AT = 16384
_PLAN_BYTES = 64 + MAX_ROWS * 8 + MAX_ROWS * 16
_NUM_BYTES = _PLANS_AT + 2 * _PLAN_BYTES


class StepRecord(NamedTuple):
    """One step. Moments are the machine's monotonic clock in seconds; `ended_s` 0.0: it has not finished."""

    step: int
    launched_s: float
    ended_s: float
    num_rows: int
    num_tokens: int
    num_starts: int
    num_copies: int


class PlanRecord(msgspec.Struct, frozen=True):
    """The last launched plan: the requests in unfinished steps, and its rows as (slot, first position, count, samples)."""

    step: int
    suspects: list[int]
    rows: list[list[int]]


class FlightRecorder:
    """The writing end."""

    def __init__(self, path: str, clock: Callable[[], float]) -> None:
        """Raises ConfigError when the disk is full: a mapped file without room would end the process when it is written."""
        try:
            with Path(path).open("wb+") as file:
                os.posix_fallocate(file.fileno(), 0, _NUM_BYTES)
                self._map = mmap.mmap(file.fileno(), _NUM_BYTES)
        except OSError as error:
            reason = f"{error.strerror}; it needs {_NUM_BYTES >> 10} KiB"
            raise ConfigError(
                f"the record of steps cannot be kept at {path} ({reason}); make room there, or set TMPDIR"
            ) from None
        self._clock = clock
        self._turn = 0
        _HEADER.pack_into(self._map, 0, _MAGIC, 0, -1)

    def launched(self, plan: StepPlan, suspects: Sequence[int]) -> None:
        """The plan is about to be launched; `suspects` are the requests in it and in earlier unfinished ones."""
        self._turn ^= 1
        at, rows, ids = _PLANS_AT + self._turn * _PLAN_BYTES, plan.rows[:MAX_ROWS], suspects[:MAX_ROWS]
        numbers = [number for row in rows for number in (row.slot, row.first, row.count, row.samples)]
        form = f"{_PLAN.format}{len(ids)}q{len(numbers)}i"
        struct.pack_into(form, self._map, at, plan.step, len(ids), len(rows), *ids, *numbers)
        facts = (len(plan.rows), plan.num_tokens, len(plan.starts), len(plan.copies))
        _STEP.pack_into(self._map, _place(plan.step), plan.step, self._clock(), 0.0, *facts)
        _HEADER.pack_into(self._map, 0, _MAGIC, plan.step, self._turn)

    def ended(self, step: int) -> None:
        """A step has finished."""
        _MOMENT.pack_into(self._map, _place(step) + 16, self._clock())

    def close(self) -> None:
        """Unmap the file."""
        self._map.close()


def read_steps(path: str) -> list[StepRecord]:
    """The latest steps, oldest first; none when there is no record (yet)."""
    data = _read(path, _PLANS_AT)
    _, last, _ = _HEADER.unpack_from(data) if data else (b"", 0, 0)
    found = [StepRecord._make(_STEP.unpack_from(data, _place(step))) for step in range(max(1, last - NUM_STEPS + 1), last + 1)]
    return [record for record in found if last - NUM_STEPS < record.step <= last]


def read_plan(path: str) -> PlanRecord | None:
    """The last launched plan, if there is one."""
    data = _read(path, _NUM_BYTES)
    turn = _HEADER.unpack_from(data)[2] if data else -1
    if turn not in (0, 1):
        return None
    at = _PLANS_AT + turn * _PLAN_BYTES
    step, num_suspects, num_rows = _PLAN.unpack_from(data, at)
    if not (0 <= num_suspects <= MAX_ROWS and 0 <= num_rows <= MAX_ROWS):  # its writer had lost its mind
        return None
    suspects: NDArray[np.int64] = np.frombuffer(data, "<i8", num_suspects, at + _PLAN.size)
    rows: NDArray[np.int32] = np.frombuffer(data, "<i4", num_rows * 4, at + _PLAN.size + num_suspects * 8)
    return PlanRecord(step, list(dict.fromkeys(suspects.tolist())), rows.reshape(-1, 4).tolist())


def _read(path: str, num_bytes: int) -> bytes:
    """The record's beginning; nothing unless it is all there."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(num_bytes)
    except OSError:
        return b""
    return data if len(data) == num_bytes and data.startswith(_MAGIC) else b""


def _place(step: int) -> int:
    return _STEPS_AT + step % NUM_STEPS * _STEP.size
