"""`Program`: a decorated Python function that says something to a state, and the ways to run it.

Owns arguments, settings and the ends of runs; what is said is the interpreter's business. Invariant: when `run` returns or
raises, nothing of the program runs any more (a streamed run: when its text has ended or it was cancelled).
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sapwood.errors import Aborted
from sapwood.lang.backends.base import Backend
from sapwood.lang.batch import BatchOptions, run_many
from sapwood.lang.defaults import the_backend
from sapwood.lang.interpreter import Interpreter, RunContext
from sapwood.lang.performer import RunSettings
from sapwood.lang.settings import RUN_NAMES, GenSettings
from sapwood.lang.state import ProgramState
from sapwood.lang.tracer import Recorder, common_prefix, stand_in, trace

DEFAULTS = GenSettings(max_new_tokens=128)
MIN_CACHED_CHARS = 64
"""A shorter prefix is not worth a request of its own."""

Arguments = Mapping[str, Any]


class Program:
    """What `function` returns. Calling it runs it."""

    def __init__(
        self, body: Callable[..., Any], num_api_spec_tokens: int | None = None, bound: Mapping[str, Any] | None = None
    ) -> None:
        self.func = body
        self.num_api_spec_tokens = num_api_spec_tokens
        self._bound = dict(bound or {})
        first, *rest = inspect.signature(body).parameters or [""]
        if first != "s":
            raise TypeError(f"the first parameter of {body.__name__} must be called s, the state that it talks to")
        self._names = tuple(rest)
        self.__doc__ = body.__doc__
        self.__name__ = body.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> ProgramState:
        return self.run(*args, **kwargs)

    def bind(self, **kwargs: Any) -> Program:
        """The program with these arguments given."""
        return Program(self.func, self.num_api_spec_tokens, {**self._bound, **kwargs})

    def run(self, *args: Any, stream: bool = False, backend: Any = None, use_thread: bool = True, **kwargs: Any) -> ProgramState:
        """Run once; keywords are arguments of the program, or settings for all its generations under the names of `gen`.

        Returns when everything is done; with `stream` at once, and the text can be read as it comes. What the body raises is
        raised here; a generation that failed shows in `error()` and is raised by whoever reads it. `use_thread=False` runs even a
        streamed body here, so that nothing is read before all of it was said.
        """
        settings, arguments = self._split(kwargs)
        context = self._context(the_backend(backend), settings, is_streamed=stream)
        state = ProgramState(Interpreter(context, is_root=True))
        arguments = {**self._bound, **self._by_name(args), **arguments}
        if stream and use_thread:
            context.body_thread = 0  # nobody, until the thread has begun
            threading.Thread(target=self._run_aside, args=(context, state, arguments), daemon=True).start()
        else:
            self._run_here(context, state, arguments)
        return state

    def run_batch(
        self,
        batch_kwargs: Sequence[Arguments | Sequence[Any]],
        *,
        backend: Any = None,
        num_threads: int | str = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        **kwargs: Any,
    ) -> list[ProgramState] | Iterator[ProgramState]:
        """Run once for each item: its keywords, or its values in the order of the parameters. Results in the order of the items.

        What all items begin with is computed first, once. `generator_style` yields results instead, so that none need be kept.
        The first error of a body ends the batch.
        """
        chosen = the_backend(backend)
        settings, shared = self._split(kwargs)
        batch = [{**shared, **(item if isinstance(item, Mapping) else self._by_name(item))} for item in batch_kwargs]
        options = BatchOptions(chosen.num_programs if num_threads == "auto" else int(num_threads), progress_bar)

        def start(arguments: Arguments) -> tuple[RunContext, Callable[[], ProgramState]]:
            context = self._context(chosen, settings, is_streamed=False)
            return context, lambda: self._run_item(context, arguments)

        results = run_many(start, batch, options, lambda: self._cache_prefix(chosen, batch))
        return results if generator_style else list(results)

    def trace(self, *, backend: Any = None, **kwargs: Any) -> Recorder:
        """What the program would say, with stand-ins for the arguments that are not given."""
        marks = the_backend(backend).marks
        arguments = {**{name: stand_in(name) for name in self._names}, **self._bound, **kwargs}
        return trace(self.func, arguments, marks)[1]

    def cache(self, backend: Any = None) -> Recorder:
        """Compute what every run begins with, so that later runs find it."""
        chosen = the_backend(backend)
        recorder = self.trace(backend=chosen)
        if recorder.prefix.text:
            chosen.cache_prefix(recorder.prefix.prompt())
        return recorder

    def _split(self, kwargs: Mapping[str, Any]) -> tuple[GenSettings, dict[str, Any]]:
        """Settings of the run, and arguments; a name that the body has as a parameter is an argument."""
        said = {name: value for name, value in kwargs.items() if name in RUN_NAMES and name not in self._names}
        return GenSettings(**said).over(DEFAULTS), {name: value for name, value in kwargs.items() if name not in said}

    def _by_name(self, values: Sequence[Any]) -> dict[str, Any]:
        free = [name for name in self._names if name not in self._bound]
        if len(values) > len(free):
            raise TypeError(f"{self.__name__} takes {len(free)} arguments ({', '.join(free)}), {len(values)} were given")
        return dict(zip(free, values, strict=False))

    def _context(self, backend: Backend, settings: GenSettings, *, is_streamed: bool) -> RunContext:
        return RunContext(RunSettings(backend, settings, is_streamed, self.num_api_spec_tokens))

    def _run_item(self, context: RunContext, arguments: Arguments) -> ProgramState:
        context.body_thread = threading.get_ident()
        state = ProgramState(Interpreter(context, is_root=True))
        self._run_here(context, state, {**self._bound, **arguments})
        return state

    def _run_here(self, context: RunContext, state: ProgramState, arguments: Arguments) -> None:
        try:
            state.ret_value = self.func(state, **arguments)
            context.finish()
        except BaseException as error:
            context.cancel(error if isinstance(error, Exception) else Aborted("the program was interrupted"))
            context.finish(error)
            raise

    def _run_aside(self, context: RunContext, state: ProgramState, arguments: Arguments) -> None:
        """The body of a streamed run; what it raises is raised to whoever reads the text."""
        context.body_thread = threading.get_ident()
        try:
            self._run_here(context, state, arguments)
        except Exception:  # it is the context's error now
            return

    def _cache_prefix(self, backend: Backend, batch: Sequence[Arguments]) -> None:
        if len(batch) < 2:
            return
        full = [{**self._bound, **arguments} for arguments in batch]
        prefix = common_prefix(self.func, self._names, full, backend.marks)
        if len(prefix.text) >= MIN_CACHED_CHARS:
            backend.cache_prefix(prefix)
