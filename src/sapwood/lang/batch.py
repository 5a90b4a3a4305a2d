"""Many runs of one program, a bounded number at a time, in order.

Owns the threads that run bodies; does not know programs. Invariant: at most twice as many runs as threads are started or held
before their result is taken, and when the batch ends early, by an error, Ctrl-C or a caller who has enough, nothing goes on
running.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

from sapwood.errors import Aborted
from sapwood.lang.interpreter import RunContext
from sapwood.lang.state import ProgramState
from sapwood.observability.progress import reporting

Start = Callable[[Mapping[str, Any]], tuple[RunContext, Callable[[], ProgramState]]]
"""(arguments of one item) -> what can be cancelled, and what runs it."""

TASK = "running programs"


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """How many bodies run at once, and whether a bar is shown."""

    num_threads: int
    progress_bar: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """One run under way."""

    context: RunContext
    future: Future[ProgramState]


class Interrupts:
    """Ctrl-C raises KeyboardInterrupt; `check` raises it again where it was lost (Python drops what a weakref's callback
    raises)."""

    def __init__(self) -> None:
        self._restores = _is_main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        self._has_come = False

    def __enter__(self) -> Interrupts:
        if self._restores:
            signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        if self._restores and _is_main_thread():
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def check(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C was pressed."""
        if self._has_come:
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._has_come = True
        raise KeyboardInterrupt


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def run_many(
    start: Start, batch: Sequence[Mapping[str, Any]], options: BatchOptions, prepare: Callable[[], None]
) -> Iterator[ProgramState]:
    """The states of all items in order, after `prepare` was called; raises the first error that a body raised."""
    running: deque[Item] = deque()
    first_error: Future[ProgramState] = Future()
    num_threads = max(1, min(options.num_threads, len(batch)))
    with (
        Interrupts() as interrupts,
        reporting(options.progress_bar) as report,
        ThreadPoolExecutor(num_threads, "sapwood-program") as pool,
    ):
        try:
            prepare()
            waiting = iter(batch)
            for done in range(len(batch)):
                while len(running) < 2 * num_threads and (arguments := next(waiting, None)) is not None:
                    context, run = start(arguments)
                    running.append(Item(context, pool.submit(run)))
                    running[-1].future.add_done_callback(partial(_note_error, first_error))
                wait((running[0].future, first_error), return_when=FIRST_COMPLETED)
                interrupts.check()
                state = (first_error if first_error.done() else running[0].future).result()
                running.popleft()
                report(TASK, done + 1, len(batch))
                yield state
        finally:
            _end(running)


def _note_error(first: Future[ProgramState], future: Future[ProgramState]) -> None:
    """An error in any item is told at once, however many are before it."""
    error = None if future.cancelled() else future.exception()
    if error is not None:
        with contextlib.suppress(InvalidStateError):  # another one was first
            first.set_exception(error)


def _end(running: deque[Item]) -> None:
    """Nothing that has not begun begins, and what runs is cancelled; the pool then waits for it."""
    for item in running:
        item.future.cancel()
    for item in running:
        if not item.future.done():
            item.context.cancel(Aborted("the batch ended"))
