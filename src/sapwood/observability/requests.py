"""What is told of each request that has ended, and the log of them: one line of JSON each, without texts unless asked.

Knows no HTTP and no engine; `RequestFacts` is all that it sees. Invariant: telling costs the caller a queue's append; a log that
cannot be written says so now and then and goes on trying, and nothing waits for it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from logging.handlers import WatchedFileHandler
from queue import Full, Queue
from typing import Protocol

import msgspec

from sapwood.errors import ConfigError

MAX_WAITING = 10_000
"""Lines that the log's thread has not written yet; beyond it lines are lost."""
COMPLAINT_INTERVAL_S = 60.0
"""However often it fails, one complaint in so much time."""

logger = logging.getLogger(__name__)


class Call(msgspec.Struct, frozen=True):
    """The HTTP request that is being answered: its id, and the client's W3C `traceparent`, if any."""

    request_id: str = ""
    traceparent: str = ""


_NO_CALL = Call()
CURRENT_CALL: ContextVar[Call] = ContextVar("CURRENT_CALL", default=_NO_CALL)


class RequestFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One ended request (one sample of a prompt). Times in seconds; `received` is Unix time, the others count from it; None: it
    did not come so far. `prompt` and `completion` are texts, and left out unless texts are wanted."""

    received: float
    request_id: str
    rid: str
    model: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    finish_reason: str
    status: int
    queue_s: float | None = None
    first_token_s: float | None = None
    end_s: float
    retractions: int = 0
    message: str = ""
    traceparent: str = ""
    prompt: str | msgspec.UnsetType = msgspec.UNSET
    completion: str | msgspec.UnsetType = msgspec.UNSET


class RequestSink(Protocol):
    """Whoever wants to know."""

    wants_texts: bool

    def ended(self, facts: RequestFacts) -> None:
        """A request has ended. Never blocks, never raises."""
        ...

    def close(self) -> None:
        """Write what is left."""
        ...


class NoSink:
    """The twin that hears nothing."""

    wants_texts = False

    def ended(self, facts: RequestFacts) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Sinks:
    """Several, told in turn."""

    def __init__(self, sinks: Sequence[RequestSink]) -> None:
        self._sinks = sinks
        self.wants_texts = any(sink.wants_texts for sink in sinks)

    def ended(self, facts: RequestFacts) -> None:
        """Tell each."""
        for sink in self._sinks:
            sink.ended(facts)

    def close(self) -> None:
        """Close each."""
        for sink in self._sinks:
            sink.close()


class RequestLog:
    """A file of JSON lines; a thread writes it, and opens it again when it was moved away (as logrotate does)."""

    def __init__(self, path: str, wants_texts: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises ConfigError when the file cannot be opened."""
        self.wants_texts = wants_texts
        self._path = path
        self._encode = msgspec.json.Encoder().encode
        self._waiting: Queue[str | None] = Queue(MAX_WAITING)
        self._clock = clock
        self._num_failures = 0
        self._quiet_until_s = clock()
        try:
            self._file = WatchedFileHandler(path, encoding="utf-8")
        except OSError as error:
            message = f"cannot write the request log to {path} ({error.strerror}); choose another --request-log"
            raise ConfigError(message) from None
        self._file.handleError = self._on_error  # type: ignore[method-assign]
        self._thread = threading.Thread(target=self._write, name="sapwood-request-log", daemon=True)
        self._thread.start()

    def ended(self, facts: RequestFacts) -> None:
        """One line."""
        line = self._encode(facts).decode()
        try:
            self._waiting.put_nowait(line)
        except Full:
            self._complain("cannot keep up; lines are left out")

    def close(self) -> None:
        """Write what waits."""
        self._waiting.put(None)
        self._thread.join()
        with contextlib.suppress(OSError):  # what a full disk did not take is tried once more
            self._file.close()

    def _write(self) -> None:
        while (line := self._waiting.get()) is not None:
            record = logging.LogRecord("requests", logging.INFO, "", 0, line, None, None)
            try:
                self._file.emit(record)
            except OSError:  # of opening it again
                self._on_error(record)

    def _on_error(self, record: logging.LogRecord) -> None:
        self._complain("cannot be written; make room there, or see to its permissions")

    def _complain(self, what: str) -> None:
        self._num_failures += 1
        now_s = self._clock()
        if now_s >= self._quiet_until_s:
            self._quiet_until_s = now_s + COMPLAINT_INTERVAL_S
            logger.error("the request log %s %s (%d times so far)", self._path, what, self._num_failures)
