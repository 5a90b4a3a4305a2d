"""Runs the parts of a stream one after another, without a thread of its own: whoever finishes a job goes on with the next part.

Owns a stream's queue, waiting and errors; what a part does is its performer's business. Invariant: at most one thread works on a
stream at a time, waiting is done under its signal alone, and a stream that failed or was cancelled starts nothing more.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_futures
from functools import partial
from typing import Any

from sapwood.errors import Aborted
from sapwood.lang.backends.base import Job
from sapwood.lang.ir import Assign, Branch, Expr, Gen, Part, ScopeEnd, Select
from sapwood.lang.performer import Performer, RunSettings
from sapwood.lang.pieces import Pieces
from sapwood.lang.signals import Signal


class RunContext:
    """What all streams of one run share: its settings, one signal, and that it is over one day."""

    def __init__(self, settings: RunSettings) -> None:
        self.settings = settings
        self.signal = Signal()
        self.is_over = False
        self.error: BaseException | None = None
        self.body_thread = threading.get_ident()
        self.streams: list[Interpreter] = []

    @property
    def root(self) -> Interpreter:
        """The stream that the program began with."""
        return self.streams[0]

    @property
    def first_error(self) -> BaseException | None:
        """What failed in any stream, or else in the program's body."""
        errors = (stream.failure for stream in self.streams)
        return next((error for error in errors if error is not None), self.error)

    def finish(self, error: BaseException | None = None) -> None:
        """The program's body has ended, with an error or without: nothing more will be appended. Waits for what runs."""
        with self.signal:
            self.error = error
            self.signal.wait_for(lambda: all(stream.is_idle for stream in self.streams))
            self.error, self.is_over = self.first_error, True
            del self.streams[1:]  # a branch lives on only where the program has kept it
            self.signal.changed()

    def cancel(self, reason: BaseException) -> None:
        """Fail what has not ended, and wait until the backend has let go of it."""
        jobs = [job for stream in list(self.streams) if (job := stream.fail(reason)) is not None]
        for job in jobs:
            job.cancel()
        wait_for_futures([job.future for job in jobs])


class Interpreter:
    """A `Stream` that is run. All streams of a run share one signal, so that a wait may look at any of them."""

    def __init__(self, context: RunContext, *, is_root: bool = False) -> None:
        """A stream that is not the root waits until it is forked off (`begin_from`)."""
        self._context = context
        self._signal = context.signal
        self._performer = Performer(context.settings, context.signal)
        self._pending: deque[Part] = deque()
        self._due: Counter[str | None] = Counter()
        self._is_busy = not is_root
        self._own_from = 0
        self._job: Job[Any] | None = None
        self._worker: int | None = None
        self.failure: BaseException | None = None
        context.streams.append(self)

    # ---------------------------------------------------------------------------------------------------- the program's side
    def append(self, expr: Expr) -> None:
        self._accept(expr.parts)

    def set(self, name: str, value: Any) -> None:
        self._accept((Assign(name, value),))

    def get(self, name: str) -> Any:
        self._await_name(name)
        return self._performer.journal.values[name]

    def meta(self, name: str) -> Any:
        self._await_name(name)
        return self._performer.journal.meta.get(name, {})

    def has(self, name: str) -> bool:
        with self._signal:
            self._signal.wait_for(lambda: self._is_set(name) or self._is_still)
            return name in self._performer.journal.values

    def names(self) -> list[str]:
        self.sync()
        return [name for name in self._performer.journal.values if name not in self._performer.journal.inherited]

    def fork(self, count: int) -> Sequence[Interpreter]:
        streams = tuple(Interpreter(self._context) for _ in range(count))
        if not self._accept((Branch(streams),)):
            for stream in streams:
                stream.fail(self.failure or Aborted("the program was cancelled"))
        return streams

    def sync(self) -> None:
        with self._signal:
            self._signal.wait_for(lambda: self._is_still)
            self._raise()

    def text(self, *, own: bool = False) -> str:
        self.sync()
        return self._performer.transcript.text[self._own_from if own else 0 :]

    def messages(self) -> list[dict[str, str]]:
        self.sync()
        return self._performer.transcript.all_messages()

    def error(self) -> BaseException | None:
        with self._signal:
            self._signal.wait_for(lambda: self._is_still)
            return self.failure or (self._context.first_error if self is self._context.root else None)

    def cancel(self) -> None:
        self._context.cancel(Aborted("the program was cancelled"))

    def pieces(self, name: str | None) -> Pieces:
        return Pieces(self._signal, lambda position: self._news(name, position), self.cancel)

    # -------------------------------------------------------------------------------------------------------------- waiting
    @property
    def is_idle(self) -> bool:
        """Nothing runs, and nothing waits to run."""
        return not self._is_busy and not self._pending

    @property
    def _is_still(self) -> bool:
        """Nothing more will happen unless this thread, or the program, appends something."""
        is_mine = self._context.body_thread == threading.get_ident()
        return self.is_idle and (is_mine or self._context.is_over or self.failure is not None)

    def _is_set(self, name: str) -> bool:
        return name in self._performer.journal.values and not self._due[name]

    def _news(self, name: str | None, position: int) -> tuple[list[str], bool]:
        """What was told since, and whether that is all; raises what failed after the last of it."""
        is_over = self.is_idle and (self._context.is_over or self.failure is not None)
        if name is not None and self._is_set(name):
            is_over = True
        news = self._performer.journal.read(name, position)
        if is_over and not news:
            self._raise()
        return news, is_over

    def _await_name(self, name: str) -> None:
        with self._signal:
            self._signal.wait_for(lambda: self._is_set(name) or self._is_still)
            if not self._is_set(name):
                self._raise()
                raise KeyError(name)

    def _raise(self) -> None:
        error = self.failure or (self._context.error if self._context.body_thread != threading.get_ident() else None)
        if error is not None:
            raise error

    # -------------------------------------------------------------------------------------------------------------- running
    def begin_from(self, parent: Interpreter) -> None:
        """Go on from where `parent` is; it must not be changing."""
        with self._signal:
            if self.failure is not None:
                return
            self._performer = parent._performer.copy()
            self._own_from = len(self._performer.transcript.text)
            self._is_busy = False
            self._signal.changed()
        self._advance()

    def fail(self, error: BaseException) -> Job[Any] | None:
        """Start nothing more; returns the job that still runs."""
        with self._signal:
            if self.is_idle and self.failure is None and self._context.is_over:
                return None
            waiting = [stream for part in self._pending if isinstance(part, Branch) for stream in part.streams]
            self._pending.clear()
            self.failure = self.failure or error
            self._is_busy = False
            self._signal.changed()
            self._signal.wait_for(lambda: self._worker in (None, threading.get_ident()))
            job, self._job = self._job, None
        for stream in waiting:
            stream.fail(error)
        return job

    def _accept(self, parts: Sequence[Part]) -> bool:
        """Queue parts and get going; False when the stream has failed."""
        with self._signal:
            if self.failure is not None:
                return False
            self._pending.extend(parts)
            self._due.update(map(_name_of, parts))
        self._advance()
        return True

    def _advance(self) -> None:
        """Do what is pending, up to the first job; the end of that job goes on from there."""
        while True:
            with self._signal:
                if self._is_busy or not self._pending:
                    return
                self._is_busy, self._worker = True, threading.get_ident()
                part = self._pending.popleft()
            try:
                job = None if isinstance(part, Branch) else self._performer.perform(part)
                if isinstance(part, Branch):
                    for stream in part.streams:
                        stream.begin_from(self)
            except Exception as error:  # reported by s.error() and to whoever reads what is missing
                self._worker = None
                self.fail(error)
                return
            with self._signal:
                self._job, self._worker = job, None
                self._signal.changed()
            if job is not None:
                job.future.add_done_callback(partial(self._finish, part))
                return
            self._rest(part)

    def _rest(self, part: Part) -> None:
        with self._signal:
            self._is_busy = False
            self._due[_name_of(part)] -= 1
            self._signal.changed()

    def _finish(self, part: Part, future: Future[Any]) -> None:
        """The job has ended: take its result, and go on."""
        with self._signal:
            self._job = None
            if self.failure is not None:
                return
        try:
            self._performer.take(part, future.result())
        except Exception as error:  # reported by s.error() and to whoever reads what is missing
            self.fail(error)
            return
        self._rest(part)
        self._advance()


def _name_of(part: Part) -> str | None:
    """The variable that the part sets."""
    return part.name if isinstance(part, Gen | Select | ScopeEnd | Assign) else None
