"""Fuzz targets: what processes write for each other and for later: messages, cached pages, step logs, the flight record."""

from __future__ import annotations

import contextlib
import random
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import msgspec
from damage import bounded, damaged
from fuzzing import fuzzed

from sapwood.core.plan import RowRun, StepPlan, no_copies
from sapwood.core.sampling import SamplingParams
from sapwood.detokenizer.detokenizer import Detokenizer
from sapwood.engine.null import NullEngine
from sapwood.engine.null_model import null_limits
from sapwood.errors import ConfigError
from sapwood.kvcache.storage import StorageOptions
from sapwood.kvcache.storage_file import FileStorage
from sapwood.messages.flight import FlightRecorder, read_plan, read_steps
from sapwood.messages.types import (
    Abort,
    Finish,
    Forget,
    StepEvents,
    StepStats,
    Submit,
    ToDetokenizer,
    TokenEvent,
    ToServer,
    ToTokenizer,
    ToWorker,
    Watch,
    pack_ids,
)
from sapwood.scheduler import Scheduler, SchedulerOptions
from sapwood.scheduler.step_log import open_step_log, read_turns, replay
from sapwood.tokenizer.byte_vocabulary import byte_tokenizer
from sapwood.worker.core import WorkerCore

UNIONS: tuple[Any, ...] = (ToWorker, ToDetokenizer, ToTokenizer, ToServer)
IDS = pack_ids([104, 105, 32, 258])
PARAMS = SamplingParams(max_new_tokens=4, stop=("ab",), stop_regex=("a+b",))
EVENT = TokenEvent(7, 0, [104, 105], Finish("stop", 258))
SUBMIT = Submit(7, 7, 0, IDS, SamplingParams(max_new_tokens=4, seed=1))
MESSAGES = tuple(
    map(
        msgspec.msgpack.encode,
        [Watch(7, 0, PARAMS, IDS), StepEvents(0, [EVENT], StepStats()), Forget([7]), SUBMIT, Abort([7])],
    )
)
PAGE_BYTES, FINGERPRINT = 64, b"f" * 32
PLAN, OTHER_PLAN = 16_384, 213_056
"""Where the flight record has its two plans."""


@fuzzed(st.lists(damaged(MESSAGES), min_size=1, max_size=4))
def messages(contents: list[bytes]) -> None:
    """What decodes is of the union; nothing that decodes makes the detokenizer raise; all else is one error of msgspec's."""
    detokenizer = Detokenizer(byte_tokenizer())
    for content in contents:
        for union in UNIONS:
            with bounded(), contextlib.suppress(msgspec.MsgspecError):
                message = msgspec.msgpack.decode(content, type=union)
                assert isinstance(message, union)
                assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=union) is not None
                match message:
                    case Watch():
                        detokenizer.watch(message)
                    case StepEvents():
                        detokenizer.process(message)
                    case Forget():
                        detokenizer.forget(message)


def page_of(number: int) -> bytes:
    """A page's content."""
    return random.Random(number).randbytes(PAGE_BYTES)


def key_of(number: int) -> bytes:
    """A page's name."""
    return number.to_bytes(32, "little")


@cache
def segment() -> tuple[str, bytes]:
    """A cache file with three pages: its name and content."""
    with tempfile.TemporaryDirectory() as folder:
        storage = FileStorage(StorageOptions(folder, FINGERPRINT, PAGE_BYTES, 1 << 16))
        for number in range(3):
            storage.write(key_of(number), memoryview(page_of(number)))
        storage.close()
        (path,) = Path(folder).glob("*.kv")
        return path.name, path.read_bytes()


@fuzzed(st.lists(damaged([segment()[1]]), min_size=1, max_size=2), st.sampled_from(["", "9" * 30, "-1", "x"]))
def cache_files(contents: list[bytes], odd: str) -> None:
    """Damaged cache files are opened, and give the pages that were written, or none; new pages are kept beside them."""
    stem = segment()[0].partition("-")[0]
    with tempfile.TemporaryDirectory() as folder, bounded():
        for index, content in enumerate(contents):
            Path(folder, f"{stem}-{index:08d}{odd}.kv").write_bytes(content)
        storage = FileStorage(StorageOptions(folder, FINGERPRINT, PAGE_BYTES, 1 << 16))
        into = bytearray(PAGE_BYTES)
        for number in range(3):
            if storage.read(key_of(number), memoryview(into)):
                assert bytes(into) == page_of(number)
        storage.write(key_of(9), memoryview(page_of(9)))
        assert storage.read(key_of(9), memoryview(into)) and bytes(into) == page_of(9)
        storage.close()


@cache
def step_log() -> bytes:
    """The log of a small run."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "steps")
        limits, options = null_limits(num_slots=2, max_len=64, num_pages=8), SchedulerOptions()
        core = WorkerCore(Scheduler(limits, options), NullEngine(limits), True, log=open_step_log(str(path), limits, options))
        core.step([msgspec.structs.replace(SUBMIT, number=number) for number in range(1, 4)])
        while core.has_work:
            core.step([])
        core.close()
        return path.read_bytes()


def framed(*frames: bytes) -> bytes:
    """Frames of a step log."""
    return b"".join(len(frame).to_bytes(4, "little") + frame for frame in frames)


@st.composite
def lying_logs(draw: st.DrawFn) -> bytes:
    """A log whose header claims other limits."""
    length = int.from_bytes(step_log()[:4], "little")
    header = msgspec.msgpack.decode(step_log()[4 : 4 + length])
    limits = header["limits"]
    name = draw(st.sampled_from(sorted(limits)))
    limits[name] = draw(st.sampled_from([0, -1, 1, 3, 1 << 20, 1 << 31, 1 << 40, 1 << 62]))
    return framed(msgspec.msgpack.encode(header)) + step_log()[4 + length :]


@fuzzed(damaged([step_log()]) | lying_logs())
def step_logs(content: bytes) -> None:
    """A damaged step log is replayed as far as it goes, or refused."""
    with tempfile.NamedTemporaryFile() as file, bounded(), contextlib.suppress(ConfigError):
        file.write(content)
        file.flush()
        assert replay(file.name).num_turns >= 0
        assert sum(1 for _ in read_turns(file.name)) >= 0


@cache
def flight_record() -> bytes:
    """What a worker leaves behind."""
    with tempfile.NamedTemporaryFile() as file:
        recorder = FlightRecorder(file.name, lambda: 1.0)
        for step in (1, 2):
            recorder.launched(StepPlan(step, (), (), no_copies(), (RowRun(0, 0, 3, True), RowRun(1, 0, 3, False))), [7, 8])
        recorder.close()
        return Path(file.name).read_bytes()


@fuzzed(
    changes=st.lists(
        st.tuples(st.sampled_from([0, 8, 16, PLAN, PLAN + 8, OTHER_PLAN]) | st.integers(0, 17_000), st.binary(max_size=16)),
        max_size=4,
    ),
    num_bytes=st.just(1 << 20) | st.integers(0, 300_000),
)
def flights(changes: list[tuple[int, bytes]], num_bytes: int) -> None:
    """Whatever a dying worker left in its record, the server can read it."""
    content = bytearray(flight_record())
    for place, data in changes:
        content[place : place + len(data)] = data
    with tempfile.NamedTemporaryFile() as file, bounded():
        file.write(content[:num_bytes])
        file.flush()
        assert len(read_steps(file.name)) <= 200
        read_plan(file.name)
