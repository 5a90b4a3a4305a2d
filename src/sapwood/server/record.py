"""One request in the server's registry: what it asked for, what has come, what its client already has.

Owns the ids and the text of one sample from submission to its one terminal event; does not know the dialect that shows them.
Invariant: ids are taken in order of their index, each once; the record is closed exactly once and takes nothing afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import msgspec

from sapwood.core.sampling import SamplingParams, TokenLogprobs
from sapwood.messages.types import Finish, TextEvent
from sapwood.observability.requests import CURRENT_CALL, Call
from sapwood.server.requests import PromptRequest


class RecordState(Enum):
    """QUEUED until the first id comes, STREAMING until the end."""

    QUEUED = "queued"
    STREAMING = "streaming"
    CLOSED = "closed"


_MOVES = {
    RecordState.QUEUED: (RecordState.STREAMING, RecordState.CLOSED),
    RecordState.STREAMING: (RecordState.CLOSED,),
    RecordState.CLOSED: (),
}


class Reception(Enum):
    """What became of an event: TAKEN, a DUPLICATE of ids that are here already, or a GAP (ids before it were lost)."""

    TAKEN = "taken"
    DUPLICATE = "duplicate"
    GAP = "gap"


@dataclass(slots=True)
class Timings:
    """Moments on the server's monotonic clock, in seconds; 0.0: not yet."""

    received_s: float
    first_token_s: float = 0.0
    last_token_s: float = 0.0
    finished_s: float = 0.0


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One sample of one prompt. `index` is its choice number in the call; `params` is resolved (n is 1, the seed is set).
    `queue_s` is how long it waited in the worker, None until that is known; `call` is the HTTP request it came with."""

    number: int
    group: int
    index: int
    sample_index: int
    rid: str
    epoch: int
    prompt: PromptRequest
    params: SamplingParams
    timings: Timings
    call: Call = field(default_factory=CURRENT_CALL.get)
    state: RecordState = RecordState.QUEUED
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    num_cached: int = 0
    cached_below: tuple[int, int] = (0, 0)
    num_retractions: int = 0
    queue_s: float | None = None
    finish: Finish | None = None
    vector: bytes = b""
    _texts: list[str] = field(default_factory=list)
    _joined: str = ""
    _num_joined: int = 0
    _num_delivered_texts: int = 0
    _num_delivered_ids: int = 0

    @property
    def num_prompt(self) -> int:
        """Prompt tokens."""
        return len(self.prompt.token_ids)

    @property
    def text(self) -> str:
        """The whole completion so far; only streams that repeat it pay for keeping it joined."""
        if self._num_joined < len(self._texts):
            self._joined += "".join(self._texts[self._num_joined :])
            self._num_joined = len(self._texts)
        return self._joined

    @property
    def num_chars(self) -> int:
        """Characters of the completion so far."""
        return sum(map(len, self._texts))

    def is_worth_an_update(self, interval: int) -> bool:
        """Whether the client should hear now: at the start, at the end, and in between after every `interval` ids."""
        num_new = len(self.token_ids) - self._num_delivered_ids
        return self.finish is not None or num_new >= interval or (num_new > 0 and not self._num_delivered_ids)

    def move(self, state: RecordState) -> None:
        """Change the state; an illegal move is a bug in the caller."""
        if state not in _MOVES[self.state]:
            raise ValueError(f"request {self.number} cannot go from {self.state.value} to {state.value}")
        self.state = state

    def take(self, event: TextEvent, now_s: float) -> Reception:
        """Add what `event` brings, unless it was here already or something before it is missing."""
        news, num_known = event.event, len(self.token_ids)
        end = news.index + len(news.token_ids)
        if news.index > num_known or (news.index < num_known < end):
            return Reception.GAP
        if news.index < num_known and news.finish is None:
            return Reception.DUPLICATE
        fresh = news.token_ids if news.index == num_known else []
        if fresh or event.text:
            self._extend(event, fresh[: max(0, event.num_tokens - num_known)], now_s)
        if news.prompt_logprobs is not None:
            self.prompt_logprobs = news.prompt_logprobs
        if not news.index:  # a replay finds more in the cache than the first admission did
            self.num_cached = max(self.num_cached, news.num_cached)
            self.cached_below = max(self.cached_below, news.cached_below)
        self.num_retractions = max(self.num_retractions, news.num_retractions)
        if self.queue_s is None:
            self.queue_s = news.queue_s
        if news.finish is not None:
            self.vector = news.vector
            self.close(news.finish, now_s)
        return Reception.TAKEN

    @property
    def tokenless_queue_s(self) -> float | None:
        """How long a request that brought no tokens waited in the worker; None when it was not admitted or brought some."""
        return None if self.timings.last_token_s else self.queue_s

    def close(self, finish: Finish, now_s: float) -> None:
        """The one terminal event."""
        self.move(RecordState.CLOSED)
        self.finish = finish
        self.timings.finished_s = now_s

    def deliver(self) -> Update:
        """Everything since the last update, and the finish if it is there."""
        text = "".join(self._texts[self._num_delivered_texts :])
        first = self._num_delivered_ids
        self._num_delivered_texts, self._num_delivered_ids = len(self._texts), len(self.token_ids)
        return Update(self, text, first, self.finish)

    def everything(self) -> Update:
        """The whole request as one update, for answers that are not streamed."""
        return Update(self, self.text, 0, self.finish)

    def _extend(self, event: TextEvent, fresh: list[int], now_s: float) -> None:
        if self.state is RecordState.QUEUED:
            self.move(RecordState.STREAMING)
            self.timings.first_token_s = now_s
        self.timings.last_token_s = now_s
        self.token_ids += fresh
        if event.event.logprobs is not None:
            self.logprobs += event.event.logprobs[: len(fresh)]
        if event.text:
            self._texts.append(event.text)


class Update(msgspec.Struct, frozen=True):
    """News of one sample: `text` is new, completion ids from position `first` on are new, `finish` is the end if it has come."""

    record: RequestRecord
    text: str
    first: int
    finish: Finish | None

    @property
    def token_ids(self) -> list[int]:
        """The new ids."""
        return self.record.token_ids[self.first :]

    @property
    def logprobs(self) -> list[TokenLogprobs]:
        """Log-probabilities of the new ids (empty unless asked for)."""
        return self.record.logprobs[self.first :]
