"""The step log: every decision of a scheduler with the inputs that led to it, in a file from which it can be repeated.

Owns the file's format and the thread that writes it; does not decide. Invariant: the loop only hands over references (encoding
and writing happen in the thread), a log that cannot keep up or be written ends with a complete record, and `replay` of a log on
the same version gives the same plans.

The file is a sequence of frames, each a little-endian uint32 length and that many bytes of MessagePack: a `LogHeader`, then
`LoggedTurn`s. It holds the prompts' token ids.
"""

from __future__ import annotations

import itertools
import logging
import os
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO, Protocol

import msgspec

from sapwood.core.plan import EngineLimits, StepPlan
from sapwood.errors import ConfigError
from sapwood.messages.types import StepInputs
from sapwood.scheduler.options import SchedulerOptions
from sapwood.scheduler.scheduler import Scheduler, StepOutcome

FORMAT = 2
MAX_BACKLOG_TURNS = 10_000
MAX_SLOTS, MAX_PAGES, MAX_PAGE_SIZE = 1 << 16, 1 << 24, 1 << 16
"""What a log's header may claim."""
_LENGTH = struct.Struct("<I")
_Queue = SimpleQueue[tuple[StepInputs, StepPlan | None] | None]

logger = logging.getLogger(__name__)


class LogHeader(msgspec.Struct, frozen=True):
    """What the scheduler was made of."""

    format: int
    limits: EngineLimits
    options: SchedulerOptions


class LoggedTurn(msgspec.Struct, frozen=True, array_like=True):
    """One decision: its inputs, and the plan's number, digest and size (step 0: there was no plan)."""

    inputs: StepInputs
    step: int = 0
    digest: bytes = b""
    num_rows: int = 0
    num_tokens: int = 0


class StepLog(Protocol):
    """What a worker's loop tells of each turn."""

    def add(self, inputs: StepInputs, plan: StepPlan | None) -> None:
        """A decision was made. Never blocks, never raises."""
        ...

    def close(self) -> None:
        """Write what is left."""
        ...


class NullStepLog:
    """The twin that writes nothing."""

    def add(self, inputs: StepInputs, plan: StepPlan | None) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class FileStepLog:
    """Writes a step log; raises ConfigError when the file cannot be opened."""

    def __init__(self, path: str, limits: EngineLimits, options: SchedulerOptions) -> None:
        try:
            self._file: BinaryIO = Path(path).open("wb")  # noqa: SIM115  (`close` closes it)
        except OSError as error:
            raise ConfigError(f"cannot write the step log to {path} ({error.strerror}); choose another --step-log") from None
        self._queue: _Queue = SimpleQueue()
        self._is_broken = False
        self._encoder = msgspec.msgpack.Encoder()
        self._write(self._encoder.encode(LogHeader(FORMAT, limits, options)))
        self._thread = threading.Thread(target=self._work, name="step log", daemon=True)
        self._thread.start()

    def add(self, inputs: StepInputs, plan: StepPlan | None) -> None:
        """Hand the decision to the thread."""
        if self._is_broken:
            return
        if self._queue.qsize() > MAX_BACKLOG_TURNS:
            self._is_broken = True
            logger.error("the step log cannot keep up and ends here; write it to a faster disk")
            return
        self._queue.put((inputs, plan))

    def close(self) -> None:
        """Wait for the thread."""
        self._queue.put(None)
        self._thread.join()
        self._file.close()

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                self._write(self._encoder.encode(logged(*item)))
                if self._queue.empty():
                    self._file.flush()
            except OSError as error:
                self._is_broken = True
                logger.error("the step log ends here: %s", error.strerror)
                return

    def _write(self, frame: bytes) -> None:
        self._file.write(_LENGTH.pack(len(frame)) + frame)


def open_step_log(path: str | None, limits: EngineLimits, options: SchedulerOptions) -> StepLog:
    """The log at `path`, or its null twin."""
    return NullStepLog() if path is None else FileStepLog(path, limits, options)


def logged(inputs: StepInputs, plan: StepPlan | None) -> LoggedTurn:
    """The record of one decision."""
    if plan is None:
        return LoggedTurn(inputs)
    return LoggedTurn(inputs, plan.step, plan_digest(plan), len(plan.rows), plan.num_tokens)


def plan_digest(plan: StepPlan) -> bytes:
    """Eight bytes that differ, for all practical purposes, when two plans differ. Of a request's parameters only what
    scheduling decides counts: the rest comes from the inputs as it is, and 0 and 0.0 are written differently."""
    digest = blake2b(digest_size=8)
    facts = [plan.step, [(row.slot, row.first, row.count, row.samples) for row in plan.rows]]
    facts += [
        (start.slot, start.num_prompt, start.sample_index, start.params.seed, start.logprobs.prompt_start)
        for start in plan.starts
    ]
    facts += [(write.slot, write.position, write.is_window) for write in plan.writes]
    facts += [(write.slot, write.position) for write in plan.tokens]
    facts += plan.constrained
    digest.update(msgspec.msgpack.encode(facts))
    for array in (
        *(start.token_ids for start in plan.starts),
        *(write.locations for write in plan.writes),
        *(write.token_ids for write in plan.tokens),
        plan.copies,
        plan.saves,
        plan.loads,
        plan.window_copies,
    ):
        digest.update(_LENGTH.pack(array.size) + array.tobytes())
    return digest.digest()


@dataclass(frozen=True, slots=True)
class Replay:
    """What came of a repetition. `first_difference` is the first step whose plan was another one; `is_torn`: the last record was
    cut off (the writer was killed)."""

    num_turns: int
    num_steps: int
    num_tokens: int
    first_difference: int | None
    is_torn: bool


def replay(path: str) -> Replay:
    """Make a log's decisions again with a scheduler of its own; raises ConfigError when the file is not a step log."""
    turns = StepLogReader(path)
    scheduler = turns.scheduler()
    num_turns = num_steps = num_tokens = 0
    for turn in turns:
        num_turns += 1
        again = logged(turn.inputs, _decide(scheduler, turn, path).plan)
        if (again.step, again.digest) != (turn.step, turn.digest):
            return Replay(num_turns, num_steps, num_tokens, turn.step or again.step, turns.is_torn)
        num_steps += bool(turn.step)
        num_tokens += turn.num_tokens
    return Replay(num_turns, num_steps, num_tokens, None, turns.is_torn)


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A step of a log and how long it took; `turn_s` is how long the host needed to decide on it and launch it, known only when
    no other step ran meanwhile."""

    plan: StepPlan
    duration_s: float
    turn_s: float | None


def measured_steps(path: str) -> Iterator[MeasuredStep]:
    """The steps of a log that were measured, with their plans made again."""
    frames = StepLogReader(path)
    scheduler = frames.scheduler()
    began: dict[int, tuple[StepPlan, float | None]] = {}
    for turn in frames:
        now_s = turn.inputs.now_s
        for result in turn.inputs.results:
            plan, turn_began_s = began.pop(result.step, (None, None))
            if plan is not None and result.duration_s > 0.0:
                turn_s = None if turn_began_s is None else max(now_s - result.duration_s - turn_began_s, 0.0)
                yield MeasuredStep(plan, result.duration_s, turn_s)
        plan_now = _decide(scheduler, turn, path).plan
        if plan_now is not None:
            began[plan_now.step] = plan_now, None if began else now_s


def _decide(scheduler: Scheduler, turn: LoggedTurn, path: str) -> StepOutcome:
    """A decision made again; inputs that no scheduler was ever given are the file's fault."""
    try:
        return scheduler.step(turn.inputs)
    except Exception as error:
        where = f"after step {scheduler.stats().steps_total}"
        raise _damaged(path, f"{where} it has inputs that cannot be ({type(error).__name__}: {error})") from None


def _damaged(path: str, what: str) -> ConfigError:
    return ConfigError(f"the step log {path} is damaged: {what}; replay another, or what comes before")


def read_turns(path: str) -> Iterator[LoggedTurn]:
    """A log's records, for analysis."""
    return iter(StepLogReader(path))


class StepLogReader:
    """A log's header, and its records, decoded as they are read (once). `is_torn`, at the end: the last one was cut off. Raises
    ConfigError for what is no step log of this version."""

    def __init__(self, path: str) -> None:
        try:
            self._file: BinaryIO = Path(path).open("rb")  # noqa: SIM115  (iterating to the end closes it)
        except OSError as error:
            raise ConfigError(f"cannot read {path} ({error.strerror}); name a file that --step-log wrote") from None
        self.is_torn = False
        frame = self._next()
        try:
            self.header = msgspec.msgpack.decode(frame or b"", type=LogHeader)
        except msgspec.MsgspecError:
            raise ConfigError(f"{path} is not a step log of this version; name a file that --step-log wrote") from None
        if self.header.format != FORMAT:
            raise ConfigError(f"{path} has format {self.header.format}, this version reads {FORMAT}")
        self._path = path
        self._check_limits()

    def scheduler(self) -> Scheduler:
        """A scheduler like the one whose decisions these are."""
        try:
            return Scheduler(self.header.limits, self.header.options)
        except Exception as error:
            raise _damaged(self._path, f"no scheduler has its options ({type(error).__name__}: {error})") from None

    def _check_limits(self) -> None:
        """What a header claims is allocated when a scheduler is made of it."""
        limits = self.header.limits
        pages = (limits.num_host_pages, limits.num_window_pages)
        is_sane = 0 < limits.num_slots <= MAX_SLOTS and 0 < limits.num_pages <= MAX_PAGES and limits.max_len > 0
        is_sane = is_sane and 0 < limits.page_size <= MAX_PAGE_SIZE and limits.window >= 0
        if not is_sane or any(not 0 <= count <= MAX_PAGES for count in pages):
            raise _damaged(self._path, f"no engine has its limits ({limits})")

    def __iter__(self) -> Iterator[LoggedTurn]:
        decode: Callable[[bytes], LoggedTurn] = msgspec.msgpack.Decoder(LoggedTurn).decode
        with self._file:
            for number in itertools.count(1):
                if (frame := self._next()) is None:
                    return
                try:
                    turn = decode(frame)
                except msgspec.MsgspecError as error:
                    raise _damaged(self._path, f"record {number} is none ({error})") from None
                yield turn

    def _next(self) -> bytes | None:
        prefix = self._file.read(_LENGTH.size)
        if len(prefix) < _LENGTH.size:
            self.is_torn = bool(prefix)
            return None
        (length,) = _LENGTH.unpack(prefix)
        rest = os.fstat(self._file.fileno()).st_size - self._file.tell()
        frame = self._file.read(min(length, max(rest, 0)))
        self.is_torn = len(frame) < length
        return None if self.is_torn else frame
