"""Unfinished requests of a worker inside the calling process: submitted, followed, and always brought to an end.

The twin of `server.frontend` without an event loop: whoever waits for news turns the worker's loop, one step at a time, for
everybody. Knows ids and texts, not prompts' origins. Invariant: a step is never broken off (Ctrl-C waits for it), and when a call
is closed none of its requests is left in the worker.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FrameType, TracebackType

import msgspec

from sapwood.core.sampling import TokenLogprobs
from sapwood.detokenizer.detokenizer import Detokenizer
from sapwood.errors import EngineFailed, InvalidRequest, Unavailable
from sapwood.messages.types import (
    Abort,
    Answer,
    Finish,
    Flush,
    Forget,
    StepEvents,
    Stop,
    Submit,
    TextEvent,
    ToWorker,
    Unpin,
    Watch,
    pack_ids,
)
from sapwood.server.record import Reception, RequestRecord, Timings, Update
from sapwood.server.requests import PromptRequest
from sapwood.worker.core import WorkerCore, WorkerNews
from sapwood.worker.followers import Followers

CONTEXT_IDS = 16
"""Prompt ids that the detokenizer sees, so that the first characters join on as in one decode."""
HEARTBEAT_S = 60.0
TURNS_TO_ANSWER = 100
"""A worker answers within a few turns: when the steps in flight are done."""
SAVE_S = 30.0
"""How long closing may take to bring to storage what only memory holds of the cache."""
PRESSES_THAT_BREAK_OFF = 3
"""Ctrl-C waits for the step that runs; pressed this often it does not, and the worker is of no more use."""


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """One completion, or as much of it as there is (then `finish_reason` is None).

    `index` is the prompt's place in the call, `sample_index` tells its n samples apart. `delta` is the text since the last result
    of a stream. `finish_reason`: stop (`matched` is the id or the text), length, or abort. `logprobs` has one entry for each
    completion id, `prompt_logprobs` one per prompt position from `LogprobOptions.prompt_start` on; None unless asked for.
    `vector` (little-endian float32) is there when the request wanted one.
    """

    index: int
    sample_index: int
    text: str
    delta: str
    token_ids: list[int]
    finish_reason: str | None
    matched: int | str | None
    num_prompt_tokens: int
    num_cached_tokens: int
    num_retractions: int
    logprobs: list[TokenLogprobs] | None
    prompt_logprobs: list[TokenLogprobs] | None
    vector: bytes = b""


class Desk:
    """The registry, and the crank of the worker. All methods may be called from any thread."""

    def __init__(self, worker: WorkerCore, followers: Followers, detokenizer: Detokenizer, random_seed: int) -> None:
        self._worker = worker
        self._followers = followers
        self._detokenizer = detokenizer
        self._seeds = random.Random(random_seed)
        self._numbers = itertools.count(1)
        self._open: dict[int, RequestRecord] = {}
        self._outbox: list[ToWorker] = []
        self._lock = TurnLock()
        self._failure: str | None = None
        self._withheld = ""
        self._num_turns = 0
        self._closed = threading.Event()
        if followers.group.size > 1:
            threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def submit(self, prompt: PromptRequest, index: int, records: list[RequestRecord]) -> None:
        """Queue the n samples of a resolved prompt and add them to `records`; they share a seed, drawn if the prompt has none."""
        with self._lock:
            self._check()
            if self._withheld:
                raise Unavailable(self._withheld)
            seed = self._seeds.getrandbits(62) if prompt.params.seed is None else prompt.params.seed
            params = msgspec.structs.replace(prompt.params, n=1, seed=seed)
            numbers = [next(self._numbers) for _ in range(prompt.params.n)]
            for sample, number in enumerate(numbers):
                records.append(
                    RequestRecord(number, numbers[0], index, sample, prompt.rid, 0, prompt, params, Timings(time.monotonic()))
                )
                self._enter(records[-1])

    def advance(self, seen: int, records: Iterable[RequestRecord], *, partial: bool) -> tuple[int, list[Update]]:
        """Wait for a turn later than `seen`, making it unless another thread did: its number, and what is new of `records`.

        Unless `partial`, only those that have ended are reported.
        """
        with self._lock:
            if self._num_turns <= seen:
                self._turn()
            return self._num_turns, [
                r.deliver() for r in records if r.finish is not None or (partial and r.is_worth_an_update(1))
            ]

    def abandon(self, records: Iterable[RequestRecord]) -> None:
        """End those of `records` that are unfinished, and wait until the worker has let go of them."""
        with self._lock:
            numbers = [record.number for record in records if record.number in self._open]
            if numbers and self._failure is None:
                self._outbox.append(Abort(numbers))
            while self._failure is None and any(number in self._open for number in numbers):
                self._turn()
            self._settle()

    def flush_cache(self) -> None:
        """Empty the prefix cache; raises Unavailable while requests run."""
        with self._lock:
            self._check()
            self._settle()
            answer = self._ask(Flush)
            if not answer.ok:
                raise Unavailable(f"the prefix cache was not emptied: {answer.message}")

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return len(self._open)

    def withhold(self, reason: str) -> None:
        """Take no more requests because of `reason`, or ("") take them again; raises Unavailable while some run."""
        with self._lock:
            self._check()
            if reason and self._open:
                raise Unavailable(f"{len(self._open)} requests run; try again when they have ended")
            self._withheld = reason

    def order(self, make: Callable[[int], ToWorker]) -> Answer:
        """The worker's answer to a message that asks for one; `make` is given the number that the answer will bear."""
        with self._lock:
            return self._ask(make)

    def unpin(self, names: list[str]) -> None:
        """Nobody will come back to the pages pinned under these names."""
        with self._lock:
            self._outbox.append(Unpin(names))

    def _ask(self, make: Callable[[int], ToWorker]) -> Answer:
        self._check()
        ask = next(self._numbers)
        self._outbox.append(make(ask))
        for _ in range(TURNS_TO_ANSWER):
            for answer in self._turn().answers:
                if answer.ask == ask:
                    return answer
        return Answer(ask, False, "the worker did not answer")

    def close(self) -> None:
        """Release the worker; what is unfinished is lost. Idempotent."""
        self._closed.set()
        with self._lock:
            if self._failure is None:
                self._worker.drain([Abort(list(self._open))], SAVE_S)
                self._failure = "this LLM is closed; make a new one"
            self._worker.close()
            self._followers.close()
            self._open.clear()

    def _enter(self, record: RequestRecord) -> None:
        ids = record.prompt.token_ids
        self._open[record.number] = record
        self._detokenizer.watch(Watch(record.number, 0, record.params, pack_ids(ids[-CONTEXT_IDS:])))
        self._outbox.append(
            Submit(
                number=record.number,
                group=record.group,
                epoch=0,
                token_ids=pack_ids(ids),
                params=record.params,
                logprobs=record.prompt.logprobs,
                sample_index=record.sample_index,
                priority=record.prompt.priority,
                namespace=record.prompt.namespace,
                pin=record.prompt.pin,
                pin_s=record.prompt.pin_s,
                routing_key=record.prompt.routing_key,
                queue_timeout_s=record.prompt.queue_timeout_s,
                timeout_s=record.prompt.timeout_s,
                pooling=record.prompt.pooling,
            )
        )

    def _beat(self) -> None:
        """Turn now and then when nobody else does, so that the other ranks do not take silence for death."""
        with contextlib.suppress(EngineFailed):  # `_failure` tells the next caller
            while not self._closed.wait(HEARTBEAT_S):
                with self._lock:
                    self._turn()

    def _check(self) -> None:
        if self._failure is not None:
            raise EngineFailed(self._failure)

    def _settle(self) -> None:
        """With nobody left to wait, let the worker finish with what it still holds."""
        while self._failure is None and not self._open and (self._outbox or self._worker.has_work):
            self._turn()

    def _turn(self) -> WorkerNews:
        self._check()
        outbox, self._outbox = self._outbox, []
        self._failure = "a step of this LLM failed or was broken off; make a new one"
        news = self._worker.step(outbox)
        self._num_turns += 1
        if news.events:
            for event in self._detokenizer.process(StepEvents(0, news.events)).events:
                self._take(event)
        self._failure = None
        return news

    def _take(self, event: TextEvent) -> None:
        record = self._open.get(event.event.number)
        if record is None:
            return
        if record.take(event, time.monotonic()) is Reception.GAP:
            raise EngineFailed(f"ids of request {record.number} are missing before index {event.event.index}; make a new LLM")
        if record.finish is not None:
            del self._open[record.number]
            self._detokenizer.forget(Forget([record.number]))
            if event.stopped_by_text:
                self._outbox.append(Stop(record.number, event.num_tokens))


class Call:
    """The prompts of one call on their way through the desk, at most `portion` samples at a time. Close it in any case.

    With `partial`, each turn reports what is new of every sample; otherwise a sample is reported once, when it has ended.
    """

    def __init__(self, desk: Desk, prompts: Iterable[PromptRequest], portion: int, *, partial: bool) -> None:
        self._desk = desk
        self._waiting = deque(enumerate(prompts))
        self._running: list[RequestRecord] = []
        self._portion = portion
        self._partial = partial
        self._seen = 0
        self._lock = threading.Lock()

    def turn(self) -> list[GenerationResult] | None:
        """Let one step pass and return what is new, at most one result for each sample; None when all have ended.

        Raises InvalidRequest or EngineFailed when a request failed.
        """
        with self._lock:
            while self._waiting and len(self._running) < self._portion:
                index, prompt = self._waiting.popleft()
                self._desk.submit(prompt, index, self._running)
            if not self._running:
                return None
            self._seen, updates = self._desk.advance(self._seen, self._running, partial=self._partial)
            if any(update.finish is not None for update in updates):
                self._running = [record for record in self._running if record.finish is None]
            return [to_result(update) for update in updates]

    def close(self) -> None:
        """Forget what waits, end what runs. May be called while another thread is in `turn`: it then waits for that turn."""
        with self._lock:
            self._waiting.clear()
            self._desk.abandon(self._running)


class TurnLock:
    """A lock that a thread in a loop cannot keep from others, inside which Ctrl-C is only noted; leaving raises it.

    Off the main thread, or where the program handles SIGINT by itself, only the lock remains. Not reentrant.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = threading.Lock()
        self._restores = False
        self._presses = 0

    def __enter__(self) -> None:
        with self._next:  # who waits here goes before who has just released the lock
            self._lock.acquire()
        on_main = threading.current_thread() is threading.main_thread()
        self._presses, self._restores = 0, on_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._restores:
            signal.signal(signal.SIGINT, self._note)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._restores:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        presses = self._presses
        self._lock.release()
        if presses and kind is None:
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._presses += 1
        if self._presses >= PRESSES_THAT_BREAK_OFF:
            raise KeyboardInterrupt


def to_result(update: Update) -> GenerationResult:
    """What a caller sees of an update; raises the error of a request that failed."""
    record, finish = update.record, update.finish
    raise_if_failed(update)
    options = record.prompt.logprobs
    return GenerationResult(
        index=record.index,
        sample_index=record.sample_index,
        text=record.text,
        delta=update.text,
        token_ids=list(record.token_ids),
        finish_reason=finish.kind if finish else None,
        matched=finish.matched if finish else None,
        num_prompt_tokens=record.num_prompt,
        num_cached_tokens=record.num_cached,
        num_retractions=record.num_retractions,
        logprobs=list(record.logprobs) if options.output else None,
        prompt_logprobs=list(record.prompt_logprobs) if options.prompt_start is not None else None,
        vector=record.vector,
    )


def raise_if_failed(update: Update) -> None:
    """Raise the error of a request that ended with one."""
    if update.finish is not None and update.finish.kind == "error":
        raise _as_error(update.finish)


def _as_error(finish: Finish) -> InvalidRequest | EngineFailed:
    return InvalidRequest(finish.message) if finish.status == InvalidRequest.status else EngineFailed(finish.message)
