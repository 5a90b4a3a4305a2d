"""A step log that is damaged, or lies about what it was made with, ended `sapwood replay` with whatever it met (msgspec's errors,
ZeroDivisionError, MemoryError after gigabytes); it is a ConfigError that names the file."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sapwood.core.plan import StepResult
from sapwood.engine.null_model import null_limits
from sapwood.errors import ConfigError
from sapwood.messages.types import StepInputs
from sapwood.scheduler import SchedulerOptions
from sapwood.scheduler.step_log import FORMAT, LoggedTurn, LogHeader, measured_steps, read_turns, replay

HEADER = LogHeader(FORMAT, null_limits(num_slots=2, max_len=64, num_pages=8), SchedulerOptions())


def written(path: Path, *frames: Any) -> str:
    data = [frame if isinstance(frame, bytes) else msgspec.msgpack.encode(frame) for frame in frames]
    path.write_bytes(b"".join(struct.pack("<I", len(frame)) + frame for frame in data))
    return str(path)


@pytest.mark.parametrize(
    "limits",
    [
        {"page_size": 0},
        {"page_size": 1 << 31},
        {"num_slots": 1 << 31},
        {"num_pages": 1 << 62},
        {"num_host_pages": 1 << 31},
        {"max_len": -1},
        {"num_window_pages": -1},
    ],
)
def test_a_header_that_lies(tmp_path: Path, limits: dict[str, int]) -> None:
    header = msgspec.to_builtins(HEADER)
    path = written(tmp_path / "log", {**header, "limits": {**header["limits"], **limits}})
    with pytest.raises(ConfigError, match=r"log is damaged: no engine has its limits"):
        replay(path)


def test_a_record_that_is_none(tmp_path: Path) -> None:
    path = written(tmp_path / "log", HEADER, b"\xc1")
    for read in (replay, lambda path: list(read_turns(path)), lambda path: list(measured_steps(path))):
        with pytest.raises(ConfigError, match="record 1 is none"):
            read(path)


def test_inputs_that_no_scheduler_was_given(tmp_path: Path) -> None:
    odd = StepResult(99, [1])  # of a step that was never launched
    path = written(tmp_path / "log", HEADER, LoggedTurn(StepInputs(messages=[], results=[odd])))
    with pytest.raises(ConfigError, match="inputs that cannot be"):
        replay(path)


def test_a_length_of_gigabytes_is_a_torn_record(tmp_path: Path) -> None:
    path = Path(written(tmp_path / "log", HEADER))
    path.write_bytes(path.read_bytes() + struct.pack("<I", 0xFFFFFFF0) + b"rest")
    outcome = replay(str(path))
    assert outcome.is_torn and outcome.num_turns == 0
