"""A whole worker on the null engine with a real grammar backend, driven through the real loops."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sapwood.core.constraint import Constraint
from sapwood.core.plan import EngineLimits
from sapwood.engine.null import NullEngine, NullOptions
from sapwood.engine.null_model import EOS_ID, VOCAB_SIZE
from sapwood.grammar.api import GrammarOptions, Vocabulary
from sapwood.grammar.guidance import GuidanceBackend
from sapwood.messages.types import Finish, StepInputs, TokenEvent, ToWorker
from sapwood.scheduler import Scheduler, SchedulerOptions
from sapwood.tokenizer.byte_vocabulary import byte_tokenizer
from sapwood.worker.constraints import ConstrainedEngine
from sapwood.worker.core import WorkerCore
from sapwood.worker.grammars import GrammarLibrary


def byte_backend(*, any_whitespace: bool = False) -> GuidanceBackend:
    """For the null model's vocabulary: an id for each byte, and three control tokens."""
    tokenizer = byte_tokenizer()
    tokens = [tokenizer.token_bytes(token_id) for token_id in range(VOCAB_SIZE)]
    vocabulary = Vocabulary(
        tokens,
        sorted(tokenizer.special_ids),
        [EOS_ID],
        VOCAB_SIZE,
        lambda text: tokenizer.encode(text, add_special=False, parse_special=False),
    )
    return GuidanceBackend(vocabulary, GrammarOptions(any_whitespace, tokenizer.control_ids))


@dataclass
class News:
    """What came back for one request."""

    ids: list[int] = field(default_factory=list)
    finishes: list[Finish] = field(default_factory=list)
    num_logprobs: int = 0
    num_retractions: int = 0

    @property
    def text(self) -> str:
        return bytes(token for token in self.ids if token < 256).decode("utf-8", "replace")


class Worker:
    """One worker. `heard` maps request numbers to what came back; the law of pages is proved after every turn."""

    def __init__(
        self,
        limits: EngineLimits | None = None,
        options: SchedulerOptions | None = None,
        *,
        overlap: bool = True,
        jumps: bool = True,
        num_kept: int = 8,
        **more: Any,
    ) -> None:
        limits = limits or EngineLimits(8, 512, 256, 16, VOCAB_SIZE, (EOS_ID,))
        self.library = GrammarLibrary(byte_backend, num_kept)
        self.null = NullEngine(limits, NullOptions(is_racy=overlap))
        self.scheduler = Scheduler(limits, options or SchedulerOptions())
        self.engine = ConstrainedEngine(self.null, self.library, jumps=jumps)
        self.inputs: list[StepInputs] = []
        core = WorkerCore(self.scheduler, self.engine, overlap, share=self.inputs.append, grammars=self.library, **more)
        self.core = core
        self.heard: dict[int, News] = {}

    def turn(self, *messages: ToWorker) -> list[TokenEvent]:
        events = self.core.step(list(messages)).events
        for event in events:
            news = self.heard.setdefault(event.number, News())
            assert not news.finishes, f"request {event.number} had an event after its terminal one"
            news.ids += event.token_ids
            news.num_logprobs += len(event.logprobs or [])
            news.num_retractions = event.num_retractions
            if event.finish is not None:
                news.finishes.append(event.finish)
        assert self.scheduler.check() == []
        return events

    def run(self, *messages: ToWorker, max_turns: int = 20_000) -> Worker:
        self.turn(*messages)
        for _ in range(max_turns):
            if not self.core.has_work:
                return self
            self.turn()
        raise AssertionError(f"not idle after {max_turns} turns")


def regex(pattern: str, **more: Any) -> Constraint:
    return Constraint("regex", pattern, **more)
