"""Runs the parts of a stream one after another, without a thread of its own: whoever finishes a job goes on with the next part.

Owns a stream's queue, variables and errors; does not know how text is continued. Invariant: at most one thread works on a stream
at a time, waiting is done under its signal alone, and a stream that failed or was cancelled starts nothing more.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_futures
from functools import partial
from typing import Any

from sapwood.errors import Aborted, InvalidRequest
from sapwood.lang.backends.base import Backend, Generation, Job
from sapwood.lang.ir import Assign, Branch, Expr, Gen, Media, Part, RoleBegin, RoleEnd, ScopeBegin, ScopeEnd, Select, Text
from sapwood.lang.journal import Journal
from sapwood.lang.pieces import Pieces
from sapwood.lang.reasoning import split_reasoning
from sapwood.lang.settings import GenSettings
from sapwood.lang.signals import Signal
from sapwood.lang.speculation import Ahead
from sapwood.lang.transcript import Prompt, Transcript

REASONING_SUFFIX = "_reasoning_content"


class RunContext:
    """What all streams of one run share: the backend, the settings of the run, and that it is over one day."""

    def __init__(self, backend: Backend, defaults: GenSettings, *, is_streamed: bool, num_spec_tokens: int | None) -> None:
        self.backend = backend
        self.defaults = defaults
        self.is_streamed = is_streamed
        self.num_spec_tokens = num_spec_tokens
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

    def __init__(self, context: RunContext, transcript: Transcript | None = None) -> None:
        """Without a transcript the stream waits until it is forked off (`begin_from`)."""
        self._context = context
        self._signal = context.signal
        self._pending: deque[Part] = deque()
        self._due: Counter[str | None] = Counter()
        self._is_busy = transcript is None
        self._transcript = transcript or Transcript(context.backend.marks)
        self._journal = Journal()
        self._own_from = 0
        self._job: Job[Any] | None = None
        self._worker: int | None = None
        self.failure: BaseException | None = None
        self._ahead = Ahead(context.backend.takes_messages)
        self._contents: dict[str, str] = {}
        context.streams.append(self)

    # ---------------------------------------------------------------------------------------------------- the program's side
    def append(self, expr: Expr) -> None:
        self._accept(expr.parts)

    def set(self, name: str, value: Any) -> None:
        self._accept((Assign(name, value),))

    def get(self, name: str) -> Any:
        self._await_name(name)
        return self._journal.values[name]

    def meta(self, name: str) -> Any:
        self._await_name(name)
        return self._journal.meta.get(name, {})

    def has(self, name: str) -> bool:
        with self._signal:
            self._signal.wait_for(lambda: self._is_set(name) or self._is_still)
            return name in self._journal.values

    def names(self) -> list[str]:
        self.sync()
        return [name for name in self._journal.values if name not in self._journal.inherited]

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
        return self._transcript.text[self._own_from if own else 0 :]

    def messages(self) -> list[dict[str, str]]:
        self.sync()
        return self._transcript.all_messages()

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
        return name in self._journal.values and not self._due[name]

    def _news(self, name: str | None, position: int) -> tuple[list[str], bool]:
        """What was told since, and whether that is all; raises what failed after the last of it."""
        is_over = self.is_idle and (self._context.is_over or self.failure is not None)
        if name is not None and self._is_set(name):
            is_over = True
        news = self._journal.read(name, position)
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
            self._transcript = parent._transcript.copy()
            self._journal = parent._journal.copy()
            self._contents = dict(parent._contents)
            self._own_from = len(self._transcript.text)
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
                job = self._execute(part)
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
            if isinstance(part, Gen):
                self._take_samples(part, future.result())
            elif isinstance(part, Select):
                self._take_choice(part, future.result())
        except Exception as error:  # reported by s.error() and to whoever reads what is missing
            self.fail(error)
            return
        self._rest(part)
        self._advance()

    def _execute(self, part: Part) -> Job[Any] | None:
        match part:
            case Text(text):
                self._ahead.pass_over(text)
                self._say(text)
            case RoleBegin(role):
                self._ahead.drop()
                self._tell(self._transcript.begin(role))
            case RoleEnd(role):
                self._ahead.drop()
                self._tell(self._transcript.end(role, self._content_of_message()))
            case ScopeBegin(name):
                self._journal.begin_scope(name, len(self._transcript.text))
            case ScopeEnd(name):
                self._assign(name, self._transcript.text[self._journal.end_scope(name) :])
            case Assign(name, value):
                self._assign(name, value)
            case Branch(streams):
                for stream in streams:
                    stream.begin_from(self)
            case Media(kind):
                raise InvalidRequest(f"no model that is served here can look at a {kind}; leave {kind}(...) out", param=kind)
            case Gen():
                return self._generate(part)
            case Select(_, choices, method):
                return self._context.backend.score(self._transcript.prompt(), choices, method.needs_unconditional)
        return None

    def _generate(self, part: Gen) -> Job[list[Generation]] | None:
        settings = part.settings.over(self._context.defaults)
        if self._context.num_spec_tokens is None:
            on_text = self._listener(part) if self._context.is_streamed else None
            return self._context.backend.generate(self._transcript.prompt(), settings, on_text)
        taken = self._ahead.take(settings.stops)
        if taken is not None:
            self._take_samples(part, [Generation(taken, meta={"speculated": True})])
            return None
        return self._speculate(settings, self._context.num_spec_tokens)

    def _speculate(self, settings: GenSettings, num_tokens: int) -> Job[list[Generation]]:
        """Ask for more than this generation; `_take_samples` cuts it."""
        prompt = self._transcript.prompt()
        if self._context.backend.takes_messages:
            prompt = Prompt(prompt.runs, prompt.messages, prompt.role, "")
        more = GenSettings(max_new_tokens=num_tokens).over(settings)
        more = GenSettings(**{name: value for name, value in more.given().items() if name not in ("stop", "n")})
        return self._context.backend.generate(prompt, more, None)

    def _listener(self, part: Gen) -> Callable[[str], None]:
        def on_text(text: str) -> None:
            self._tell(text, part.name)

        return on_text

    def _take_samples(self, part: Gen, samples: list[Generation]) -> None:
        if self._context.num_spec_tokens is not None and "speculated" not in samples[0].meta:
            samples = [self._cut_ahead(part, samples[0])]
        texts, meta = [sample.text for sample in samples], [sample.meta for sample in samples]
        answers = [split_reasoning(text, part.reasoning) for text in texts] if part.reasoning else [("", text) for text in texts]
        if part.reasoning:
            self._contents[texts[0]] = answers[0][1]
        self._transcript.say(texts[0], samples[0].ids)
        with self._signal:
            if not self._context.is_streamed or self._context.num_spec_tokens is not None:
                self._journal.tell(texts[0], part.name)
            if part.name is not None:
                if part.reasoning:
                    self._journal.set(part.name + REASONING_SUFFIX, _one_or_all([reasoning for reasoning, _ in answers]))
                self._journal.set(part.name, _one_or_all([answer for _, answer in answers]), _one_or_all(meta))
            self._signal.changed()

    def _cut_ahead(self, part: Gen, sample: Generation) -> Generation:
        reason = sample.meta.get("finish_reason") or {}
        self._ahead.fill(sample.text, reason.get("type") != "length")
        if self._context.backend.takes_messages and self._transcript.prompt().partial:
            self._ahead.pass_over(self._transcript.prompt().partial)
        stops = part.settings.over(self._context.defaults).stops
        taken = self._ahead.take(stops)
        if taken is None:  # the end was not reached: what there is counts, and the next generation asks anew
            self._ahead.drop()
        return Generation(sample.text if taken is None else taken, meta=sample.meta)

    def _take_choice(self, part: Select, scores: Any) -> None:
        choice, meta = part.method.decide(part.choices, scores)
        self._ahead.drop()
        self._say(choice, part.name)
        with self._signal:
            if part.name is not None:
                self._journal.set(part.name, choice, meta)
            self._signal.changed()

    def _say(self, text: str, name: str | None = None) -> None:
        self._transcript.say(text)
        self._tell(text, name)

    def _tell(self, text: str, name: str | None = None) -> None:
        if text:
            with self._signal:
                self._journal.tell(text, name)
                self._signal.changed()

    def _assign(self, name: str, value: Any) -> None:
        with self._signal:
            self._journal.set(name, value)

    def _content_of_message(self) -> str | None:
        """The open message without what the model only thought."""
        text = self._transcript.prompt().partial
        return self._contents.get(text)


def _one_or_all(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else values


def _name_of(part: Part) -> str | None:
    """The variable that the part sets."""
    return part.name if isinstance(part, Gen | Select | ScopeEnd | Assign) else None
