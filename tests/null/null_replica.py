"""A whole replica without processes, driven a message at a time, whose worker and detokenizer can die between any two of them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from sapwood.core.sampling import LogprobOptions, SamplingParams, TokenLogprobs
from sapwood.detokenizer.detokenizer import Detokenizer
from sapwood.engine.null import NullEngine
from sapwood.engine.null_model import null_limits
from sapwood.messages.types import Finish, Forget, Renew, StepEvents, ToWorker, Watch
from sapwood.scheduler.options import SchedulerOptions
from sapwood.scheduler.scheduler import Scheduler
from sapwood.server.backend import Pieces
from sapwood.server.frontend import Frontend
from sapwood.server.limits import ServingLimits
from sapwood.server.record import RequestRecord
from sapwood.server.requests import GenerateRequest, PromptRequest
from sapwood.tokenizer.byte_vocabulary import byte_tokenizer
from sapwood.worker.core import WorkerCore

LIMITS = null_limits(num_slots=6, max_len=96, num_pages=40, page_size=4)
SERVING = ServingLimits(LIMITS.max_len, LIMITS.num_pages * LIMITS.page_size, LIMITS.vocab_size, 1000)
TOKENIZER = byte_tokenizer()


@dataclass
class Heard:
    """What one sample's client got, in the order in which it came."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finishes: list[Finish] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)


class CrashingReplica:
    """The real registry, scheduler, null engine and detokenizer; queues instead of sockets. It is the frontend's `Backend`."""

    def __init__(self, overlap: bool) -> None:
        self.epoch = 0
        self.alive = True
        self.overlap = overlap
        self.now_s = 1.0
        self.num_replays = 0
        self._to_worker: deque[ToWorker] = deque()
        self._to_detokenizer: deque[Any] = deque()
        self._to_server: deque[Any] = deque()
        self._worker_epoch = 0
        self._core = self._new_worker()
        self._detokenizer = Detokenizer(TOKENIZER)
        self.frontend = Frontend(self, random_seed=7, clock=lambda: self.now_s)
        self.frontend.start_serving(SERVING)
        self.records: list[RequestRecord] = []
        self.heard: dict[int, Heard] = {}

    # ------------------------------------------------------------------------------------------- the frontend's backend
    def send(self, message: ToWorker) -> None:
        self._to_worker.append(message)

    def watch(self, message: Watch) -> None:
        self._to_detokenizer.append(message)

    def forget(self, message: Forget) -> None:
        self._to_detokenizer.append(message)

    async def tokenize(self, pieces: Pieces, add_special: bool) -> list[int]:
        return TOKENIZER.encode_pieces(pieces, add_special)

    # ------------------------------------------------------------------------------------------------------- moves
    def open(self, token_ids: list[int], params: SamplingParams, logprobs: LogprobOptions) -> None:
        """A client asks."""
        prompt = PromptRequest(rid=f"r{len(self.records)}", token_ids=token_ids, params=params, logprobs=logprobs)
        self.records += self.frontend.open(GenerateRequest((prompt,))).records

    def leave(self, index: int) -> None:
        """The client of a sample goes away."""
        if self.records:
            self.frontend.abort_one(self.records[index % len(self.records)].rid)

    def worker(self, num_messages: int, *, dies: bool = False) -> None:
        """A turn of the worker's loop, which may die when it has decided and not yet said so."""
        taken = [self._to_worker.popleft() for _ in range(min(num_messages, len(self._to_worker)))]
        if not taken and not self._core.has_work:
            return
        news = self._core.step(taken)
        for message in taken:
            if isinstance(message, Renew):
                self._worker_epoch = message.epoch
        if not dies and news.events:
            self._to_detokenizer.append(StepEvents(self._worker_epoch, news.events))

    def detokenizer(self, num_messages: int) -> None:
        """The detokenizer takes some messages."""
        for _ in range(min(num_messages, len(self._to_detokenizer))):
            match self._to_detokenizer.popleft():
                case StepEvents() as events:
                    self._to_server.append(self._detokenizer.process(events))
                case Watch() as watch:
                    self._to_server.extend(self._detokenizer.watch(watch))
                case Forget() as forget:
                    self._detokenizer.forget(forget)

    def server(self, num_messages: int) -> None:
        """The server takes some texts, and clients read."""
        self.now_s += 0.001
        for _ in range(min(num_messages, len(self._to_server))):
            self.frontend.on_message(self._to_server.popleft())
        self._read()

    def kill_worker(self) -> None:
        """Everything in it is gone, and what was on its way to it; what it had sent is still under way."""
        self._core = self._new_worker()
        self._to_worker.clear()
        self._worker_epoch = self.epoch + 1
        self._recover()

    def kill_detokenizer(self) -> None:
        """Gone with all that was on its way to it; the worker forgets and begins again."""
        self._detokenizer = Detokenizer(TOKENIZER)
        self._to_detokenizer.clear()
        self._to_worker.append(Renew(-1, self.epoch + 1, ""))
        self._recover()

    def finish(self) -> None:
        """Everybody works until nothing is left."""
        for _ in range(20_000):
            if not self.frontend.num_open and not self._to_worker and not self._core.has_work:
                break
            self.worker(1000)
            self.detokenizer(1000)
            self.server(1000)
            problems = self._core.scheduler.check()
            assert not problems, problems
        assert not self.frontend.num_open, "a request never ended"
        self._read()

    # ---------------------------------------------------------------------------------------------------- internals
    def _new_worker(self) -> WorkerCore:
        return WorkerCore(Scheduler(LIMITS, SchedulerOptions(step_token_budget=16)), NullEngine(LIMITS), self.overlap)

    def _recover(self) -> None:
        self.epoch += 1
        self.num_replays += self.frontend.num_open
        self.frontend.replays.hold()
        self.frontend.replays.replay()

    def _read(self) -> None:
        for record in self.records:
            update = record.deliver()
            heard = self.heard.setdefault(record.number, Heard())
            heard.text += update.text
            heard.token_ids += update.token_ids
            heard.logprobs += update.logprobs
            heard.prompt_logprobs = record.prompt_logprobs
            if update.finish is not None and not heard.finishes:
                heard.finishes.append(update.finish)
