"""Progress bars on standard error, for whatever calls back with (task, done, total).

Knows nothing of the tasks. Invariant: without a terminal nothing moves: each task is one line when it starts and one when it
is done, so that logs stay readable.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

ProgressCallback = Callable[[str, int, int], None]
"""Told (task, done, total) as often as its caller likes; a total of 0 is not known."""

Progress = bool | ProgressCallback
"""How a caller asks for progress: bars (True), nothing (False), or a callback of its own."""

BYTES_FROM = 1 << 20
"""Totals from here on are taken for bytes and shown as such."""


class Bars:
    """A context manager and a callback: `bars(task, done, total)` moves the bar of `task`; a total of 0 is not known."""

    def __init__(self) -> None:
        console = Console(file=sys.stderr)
        self._live = console.is_terminal
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[amount]}"), TimeRemainingColumn())
        self._progress = RichProgress(*columns, console=console, disable=not self._live)
        self._tasks: dict[str, TaskID] = {}
        self._finished: set[str] = set()

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._progress.stop()

    def __call__(self, task: str, done: int, total: int) -> None:
        if task not in self._tasks:
            self._tasks[task] = self._progress.add_task(task, amount="")
            self._say(f"{task} ...")
        self._progress.update(self._tasks[task], completed=done, total=total or None, amount=_amount(done, total))
        if total and done >= total and task not in self._finished:
            self._finished.add(task)
            self._say(f"{task}: done")

    def _say(self, line: str) -> None:
        if not self._live:
            print(line, file=sys.stderr, flush=True)


def _amount(done: int, total: int) -> str:
    if total >= BYTES_FROM:
        return f"{done / 1e6:.0f}/{total / 1e6:.0f} MB"
    return f"{done}/{total}" if total else str(done)


@contextmanager
def reporting(progress: Progress) -> Iterator[ProgressCallback]:
    """The callback that `progress` asks for; bars are shown until the block is left."""
    if progress is True:
        with Bars() as bars:
            yield bars
    else:
        yield progress or no_progress


def no_progress(task: str, done: int, total: int) -> None:
    """Shows nothing."""
