"""The registry of unfinished requests: the only place that opens and closes them.

Owns numbers, seeds, records and streams; does not know HTTP, and reaches other processes through `Backend` alone. Invariant: each
accepted request is closed exactly once; what is stale, late or doubled is dropped and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from sapwood.errors import EngineFailed, InvalidRequest, Overloaded, SapwoodError, Unavailable
from sapwood.messages.types import (
    Abort,
    Answer,
    Ask,
    Finish,
    Flush,
    Forget,
    Ready,
    StepStats,
    StepTexts,
    Stop,
    Submit,
    TextEvent,
    Unpin,
    pack_ids,
)
from sapwood.observability.metrics import Metrics, NullMetrics
from sapwood.server.backend import Backend
from sapwood.server.ledger import Ledger
from sapwood.server.limits import ServingLimits, ServingState, check_room, check_state
from sapwood.server.outbox import Outbox
from sapwood.server.questions import Questions
from sapwood.server.recent import RecentRids
from sapwood.server.record import Reception, RecordState, RequestRecord, Timings
from sapwood.server.replay import Replays, watch_of
from sapwood.server.requests import GenerateRequest, PromptRequest, resolve
from sapwood.server.sessions import Sessions
from sapwood.server.steering import Steering
from sapwood.server.stream import Stream

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class DropCounts:
    """What was thrown away: of an older epoch, of a request that is closed, of ids that were here already, out of order."""

    stale: int = 0
    late: int = 0
    duplicate: int = 0
    gap: int = 0


class Frontend:
    """Accepts calls, follows their requests to the end. All methods belong to one event loop."""

    def __init__(
        self,
        backend: Backend,
        *,
        metrics: Metrics | NullMetrics | None = None,
        ledger: Ledger | None = None,
        random_seed: int | None = None,
        num_recent: int = 256,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.backend = backend
        self.metrics = metrics or NullMetrics()
        self.ledger = ledger or Ledger()
        self.state = ServingState.STARTING
        self.limits = ServingLimits(context_len=0, pool_tokens=0, vocab_size=0, max_open_requests=0)
        self.stats, self.dropped = StepStats(), DropCounts()
        self.processes: dict[str, Ready] = {}
        self._clock = clock
        self._draw_seed = random.Random(random_seed)
        self._numbers = itertools.count(1)
        self._records: dict[int, RequestRecord] = {}
        self._streams: dict[int, Stream] = {}
        self._rids: set[str] = set()
        self._recent = RecentRids(num_recent)
        self._questions = Questions(backend.send)
        self.steering = Steering(self._questions)
        self._outbox = Outbox(backend)
        self.replays = Replays(backend, self._questions, self._records, _as_submit, self._outbox.send, self._end, clock)
        self.sessions = Sessions(clock, lambda names: self._outbox.send(Unpin(names)), self.abort_one)
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def num_open(self) -> int:
        """Unfinished requests (samples, not calls)."""
        return len(self._records)

    def start_serving(self, limits: ServingLimits) -> None:
        """Every process is ready: accept requests within `limits`."""
        self.limits = limits
        self.state = ServingState.READY

    # ---------------------------------------------------------------------------------------------- from clients
    def open(self, request: GenerateRequest, stream: Stream | None = None) -> Stream:
        """Check, register and submit a call, or more prompts of the call that `stream` is of; raises SapwoodError and leaves
        nothing of it behind when it cannot be accepted."""
        if self.state is not ServingState.RECOVERING:  # the door is closed then; who was inside goes on
            check_state(self.state)
        prompts = [resolve(prompt, self.limits) for prompt in request.prompts]
        check_room(len(self._records), request.num_samples, self.limits.max_open_requests)
        _check_rids(prompts, self._rids)
        stream = stream or Stream(self._abandon, request.stream_interval)
        try:
            for prompt in prompts:
                self._submit(prompt, stream)
        except SapwoodError:
            stream.close()
            raise
        return stream

    def abort(self, rid_prefix: str, message: str = "aborted by an operator") -> int:
        """End every request whose rid starts with `rid_prefix` ("" for all); returns how many there were."""
        hit = [record for record in self._records.values() if record.rid.startswith(rid_prefix)]
        self._end(hit, Finish("abort", message=message, status=499, code="aborted"))
        self._abort_in_worker(hit, message)
        return len(hit)

    def abort_one(self, rid: str) -> None:
        """End the request with exactly this rid, if it is unfinished."""
        for record in [record for record in self._records.values() if record.rid == rid]:
            self._abandon([record])

    async def flush_cache(self, timeout_s: float = 10.0) -> Answer:
        """Empty the prefix cache; the answer says whether it was."""
        check_state(self.state)
        return await self._questions.ask(Flush(next(self._numbers)), timeout_s)

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no request is open; returns whether that came about."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        return self._idle.is_set()

    async def refresh_stats(self, timeout_s: float = 1.0) -> None:
        """Ask the worker how it stands now; what it said last stays when it does not answer."""
        with contextlib.suppress(Unavailable, Overloaded):
            check_state(self.state)
            answer = await self._questions.ask(Ask(next(self._numbers)), timeout_s)
            if answer.data:
                self._note_stats(msgspec.convert(answer.data, StepStats))

    async def timeline(self, rid: str) -> dict[str, Any] | None:
        """What has happened to the latest request of that id; None when it is not known any more."""
        return await self._recent.timeline(rid, next(self._numbers), self._questions)

    async def probe_worker(self) -> None:
        """Return when rank 0 has answered something, however long that takes."""
        await self._questions.ask(Ask(next(self._numbers)), None)

    def set_stalled(self, is_stalled: bool) -> None:
        """Whether a process hangs: while one does, no new request is accepted; those that are open wait for it."""
        if self.state in (ServingState.READY, ServingState.STALLED):
            self.state = ServingState.STALLED if is_stalled else ServingState.READY

    async def drain(self, timeout_s: float) -> bool:
        """Accept nothing more, wait for what is open, abort the rest at the deadline; returns whether none was left."""
        self.state = ServingState.DRAINING
        if not await self.wait_idle(timeout_s):
            self.abort("", "the server is shutting down")
            return False
        return True

    # --------------------------------------------------------------------------------------- from the other processes
    def on_message(self, message: StepTexts | Answer | Ready) -> None:
        """Take whatever arrives, in order."""
        self._outbox.flush()
        match message:
            case StepTexts():
                self._on_texts(message)
            case Answer():
                self._questions.take(message)
            case Ready():
                self.processes[message.process] = message

    def fail_all(self, error: SapwoodError) -> None:
        """The replica is gone: every open request ends with `error`, and no new one is accepted."""
        self.state = ServingState.FAILED
        self._outbox.clear()
        self._end(list(self._records.values()), Finish("error", message=error.message, status=error.status, code=error.code))
        self._questions.fail_all("the engine has failed; restart the server")

    # --------------------------------------------------------------------------------------------------- internals
    def _submit(self, prompt: PromptRequest, stream: Stream) -> None:
        seed = prompt.params.seed if prompt.params.seed is not None else self._draw_seed.getrandbits(62)
        params = msgspec.structs.replace(prompt.params, n=1, seed=seed)
        packed = pack_ids(prompt.token_ids)
        group = 0
        for sample in range(prompt.params.n):
            number = next(self._numbers)
            group = group or number
            record = RequestRecord(
                number=number,
                group=group,
                index=len(stream.records),
                sample_index=sample,
                rid=_sample_rid(prompt, sample),
                epoch=self.backend.epoch,
                prompt=prompt,
                params=params,
                timings=Timings(self._clock()),
            )
            self._register(record, stream)
            if self.replays.is_holding:
                continue
            self.backend.watch(watch_of(record))
            if record.state is not RecordState.CLOSED:  # else the detokenizer refused it at once
                self.backend.send(_as_submit(record, packed))

    def _register(self, record: RequestRecord, stream: Stream) -> None:
        stream.add(record)
        self._records[record.number] = record
        self._streams[record.number] = stream
        self._rids.add(record.rid)
        self._recent.add(record.rid, record.number)
        self._idle.clear()

    def _on_texts(self, message: StepTexts) -> None:
        if message.epoch != self.backend.epoch:
            self.dropped.stale += len(message.events)
            return
        if message.stats is not None:
            self._note_stats(message.stats)
        now_s = self._clock()
        for event in message.events:
            record = self._records.get(event.event.number)
            if record is None:
                self.dropped.late += 1
            else:
                self._on_event(record, event, now_s)

    def _note_stats(self, stats: StepStats) -> None:
        self.stats = stats
        self.metrics.observe_step(stats)

    def _on_event(self, record: RequestRecord, event: TextEvent, now_s: float) -> None:
        before_s = record.timings.last_token_s
        reception = record.take(event, now_s)
        if reception is Reception.DUPLICATE:
            self.dropped.duplicate += 1
            return
        if reception is Reception.GAP:
            self.dropped.gap += 1
            self._lose(record)
            return
        if record.timings.last_token_s == now_s:
            self.metrics.observe_tokens(now_s - (before_s or record.timings.received_s), not before_s, record.queue_s)
        self._streams[record.number].notify(record)
        if record.state is RecordState.CLOSED:
            self._retire(record)
            if event.stopped_by_text:
                self._outbox.send(Stop(record.number, event.num_tokens))
            elif record.finish is not None and record.finish.kind == "error":  # perhaps the worker does not know
                self._abort_in_worker([record], record.finish.message)

    def _lose(self, record: RequestRecord) -> None:
        logger.error("request %d: token ids before index %d never arrived; it is failed", record.number, len(record.token_ids))
        error = EngineFailed("part of the output was lost; send the request again")
        self._end([record], Finish("error", message=error.message, status=error.status, code=error.code))
        self._abort_in_worker([record], error.message)

    def _abandon(self, records: list[RequestRecord]) -> None:
        """A client went away."""
        message = "aborted by the client"
        self._end(records, Finish("abort", message=message, status=499, code="aborted"))
        self._abort_in_worker(records, message)

    def _end(self, records: list[RequestRecord], finish: Finish) -> None:
        now_s = self._clock()
        for record in records:
            record.close(finish, now_s)
            self._streams[record.number].notify(record)
            self._retire(record)
        if records:
            self.backend.forget(Forget([record.number for record in records]))

    def _abort_in_worker(self, records: list[RequestRecord], message: str) -> None:
        if records:
            self._outbox.send(Abort([record.number for record in records], message))

    def _retire(self, record: RequestRecord) -> None:
        del self._records[record.number], self._streams[record.number]
        self._rids.discard(record.rid)
        assert record.finish is not None
        now_s = self._clock()
        self.metrics.observe_finish(record.finish.kind, now_s - record.timings.received_s, record.tokenless_queue_s)
        self.ledger.ended(record, now_s)
        if not self._records:
            self._idle.set()


def _check_rids(prompts: Iterable[PromptRequest], taken: set[str]) -> None:
    seen = set[str]()
    for prompt in prompts:
        for sample in range(prompt.params.n):
            rid = _sample_rid(prompt, sample)
            if rid in seen or rid in taken:
                raise InvalidRequest(f"rid {rid!r} belongs to an unfinished request; choose another", param="rid")
            seen.add(rid)


def _sample_rid(prompt: PromptRequest, sample: int) -> str:
    return prompt.rid if prompt.params.n == 1 else f"{prompt.rid}_{sample}"


def _as_submit(record: RequestRecord, packed_ids: bytes) -> Submit:
    return Submit(
        number=record.number,
        group=record.group,
        epoch=record.epoch,
        token_ids=packed_ids,
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
