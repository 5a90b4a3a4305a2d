"""One request's ledger: three lengths, the ids that are known on the host, and what the request is doing.

Owns the arithmetic of `num_confirmed <= num_computed <= num_known <= max_len` and the table of legal state moves; does not
know pages, slots or queues. Invariant: ids below `num_ids` are on the host, those up to `num_known` are reserved by launched
steps.

    [0 ......... num_computed)[num_computed ..... num_known)[num_known ..... max_len)
     KV launched or finished   ids that exist, to compute    room still promised
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import msgspec
import numpy as np

from sapwood.core.plan import Int32Array
from sapwood.core.pooling import Pooling
from sapwood.core.sampling import LogprobOptions, SamplingParams, TokenLogprobs

ID_BYTES = 4
ELDER_PRIORITY = 2**62
"""Above every priority that a client can give."""


class RequestState(Enum):
    """What a request is doing; never guessed from its lengths."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    RETRACTED = "retracted"
    FINISHED = "finished"
    ABORTED = "aborted"
    FAILED = "failed"

    def __init__(self, value: str) -> None:
        self.is_terminal: bool = value in ("finished", "aborted", "failed")
        """Whether the request has had its one terminal event (or was closed by the server)."""


_TERMINAL = frozenset({RequestState.FINISHED, RequestState.ABORTED, RequestState.FAILED})

LEGAL_MOVES: Mapping[RequestState, frozenset[RequestState]] = {
    RequestState.WAITING: _TERMINAL | {RequestState.PREFILLING},
    RequestState.PREFILLING: _TERMINAL | {RequestState.DECODING, RequestState.RETRACTED},
    RequestState.DECODING: _TERMINAL | {RequestState.RETRACTED},
    RequestState.RETRACTED: _TERMINAL | {RequestState.WAITING},
    RequestState.FINISHED: frozenset(),
    RequestState.ABORTED: frozenset(),
    RequestState.FAILED: frozenset(),
}


class PromptReport:
    """Prompt log-probabilities of positions [start, stop), gathered in order over steps and retractions, handed out once.

    A request that asks for none has an empty report that counts as handed out.
    """

    __slots__ = ("start", "stop", "is_sent", "_entries")

    def __init__(self, start: int, stop: int, *, is_sent: bool) -> None:
        self.start = min(max(start, 0), stop)
        self.stop = stop
        self.is_sent = is_sent
        self._entries: list[TokenLogprobs] = []

    @property
    def next_position(self) -> int:
        """The first position that is still to be reported."""
        return self.start + len(self._entries)

    @property
    def is_complete(self) -> bool:
        """Whether every position is in."""
        return self.is_sent or self.next_position >= self.stop

    def add(self, first: int, entries: list[TokenLogprobs]) -> None:
        """Append `entries`, which begin at position `first`; what is already here is skipped."""
        num_known = self.next_position - first
        if not self.is_sent and 0 <= num_known < len(entries):
            self._entries.extend(entries[num_known : num_known + self.stop - self.next_position])

    def take(self) -> list[TokenLogprobs] | None:
        """The whole report the first time it is asked for after completion, None otherwise."""
        if self.is_sent or self.next_position < self.stop:
            return None
        self.is_sent = True
        entries, self._entries = self._entries, []
        return entries


@dataclass(slots=True, eq=False)
class Request:
    """A request as the scheduler sees it. Fixed facts first, then the ledger.

    `token_bytes` holds the known ids as little-endian int32 (the form in which they travel and are compared); the first
    `num_prompt` are the prompt. `max_len` is the largest `num_known` allowed; `max_len == num_prompt` asks for no completion.
    `cached_below` counts those of `num_cached` tokens that lay in the host's memory and in storage.
    With `pooling` a vector for the prompt is wanted, and no completion.
    `pin` names who will come back to the request's pages within `pin_s` seconds ("": nobody).
    `asked_priority` stays what it was when `priority` becomes an elder's.
    `unwritten` is the first position of forced ids that no plan has told the engine of (None: there are none).
    `arrival` orders requests by age; `seniority` sorts the most deserving first (higher priority, then older). Moments are on
    the scheduler's clock (`arrived_s`, `admitted_s`, in seconds; `tokens_at_arrival` in tokens computed till then).
    """

    number: int
    group: int
    arrival: int
    token_bytes: bytearray
    num_prompt: int
    max_len: int
    params: SamplingParams
    logprobs: LogprobOptions = LogprobOptions()
    sample_index: int = 0
    priority: int = 0
    namespace: str = ""
    pin: str = ""
    pin_s: float = 0.0
    routing_key: str = ""
    pooling: Pooling | None = None

    state: RequestState = field(default=RequestState.WAITING, init=False)
    num_computed: int = field(default=0, init=False)
    num_confirmed: int = field(default=0, init=False)
    num_known: int = field(default=0, init=False)
    num_cached: int = field(default=-1, init=False)
    cached_below: tuple[int, int] = field(default=(0, 0), init=False)
    num_retractions: int = field(default=0, init=False)
    unwritten: int | None = field(default=None, init=False)
    arrived_s: float = field(default=0.0, init=False)
    admitted_s: float | None = field(default=None, init=False)
    tokens_at_arrival: int = field(default=0, init=False)
    report: PromptReport = field(init=False)
    seniority: tuple[int, int] = field(init=False)
    asked_priority: int = field(init=False)

    def __post_init__(self) -> None:
        self.asked_priority = self.priority
        self.num_known = self.num_ids
        self.seniority = (-self.priority, self.arrival)
        start, is_replay = self.logprobs.prompt_start, self.num_known > self.num_prompt
        self.report = PromptReport(start or 0, self.num_prompt, is_sent=start is None or is_replay)
        if not self.report.is_complete and self.report.start == 0:
            first_id = int.from_bytes(self.token_bytes[:ID_BYTES], "little", signed=True)
            self.report.add(0, [TokenLogprobs(first_id, None)])

    # ------------------------------------------------------------------------------------------------- questions
    @property
    def is_elder(self) -> bool:
        """Whether the request has waited so long that it goes before everybody else."""
        return self.priority == ELDER_PRIORITY

    @property
    def queue_s(self) -> float | None:
        """Seconds from arrival to first admission; None before."""
        return None if self.admitted_s is None else self.admitted_s - self.arrived_s

    @property
    def num_ids(self) -> int:
        """Ids known on the host."""
        return len(self.token_bytes) // ID_BYTES

    @property
    def num_completion(self) -> int:
        """Completion ids known on the host."""
        return len(self.token_bytes) // ID_BYTES - self.num_prompt

    @property
    def num_pending(self) -> int:
        """Positions that a step may compute now; 0 when nothing is left to launch."""
        if self.num_known == self.max_len and self.max_len > self.num_prompt:
            return 0
        return self.num_known - self.num_computed

    @property
    def match_limit(self) -> int:
        """How many tokens may come from the prefix index: one position is always computed, more when their
        log-probabilities are still to be reported."""
        limit = self.num_known - 1
        if not self.report.is_complete:
            limit = min(limit, self.report.next_position - 1)
        return max(limit, 0)

    def run(self, first: int, end: int) -> bytes:
        """The ids [first, end) in the form in which the prefix index compares them."""
        return bytes(memoryview(self.token_bytes)[first * ID_BYTES : end * ID_BYTES])

    def begins_like(self, other: Request, num_tokens: int) -> bool:
        """Whether both requests begin with the same `num_tokens` ids."""
        with memoryview(other.token_bytes)[: num_tokens * ID_BYTES] as head:
            return self.token_bytes.startswith(head)

    def ids(self) -> Int32Array:
        """A copy of the ids known on the host."""
        return np.frombuffer(self.token_bytes, dtype="<i4").copy()

    def engine_logprobs(self) -> LogprobOptions:
        """The log-probability options with prompt positions that were already reported left out."""
        if self.logprobs.prompt_start is None:
            return self.logprobs
        start = None if self.report.is_complete else self.report.next_position
        return msgspec.structs.replace(self.logprobs, prompt_start=start)

    # ------------------------------------------------------------------------------------------------- moves
    def admit(self, num_shared: int, num_copied: int = 0) -> None:
        """Start (again) with the KV of the first tokens in place: `num_shared` in shared pages, `num_copied` that the launched
        step copies (and that are confirmed with it)."""
        self._move(RequestState.PREFILLING)
        self.num_computed, self.num_confirmed = num_shared + num_copied, num_shared
        if self.num_cached < 0:
            self.num_cached = min(self.num_computed, self.num_prompt)

    def note_tiers(self, num_host: int, num_storage: int) -> None:
        """Before the first admission: so many of the cached tokens lay in the host's memory, and so many in storage."""
        if self.num_cached < 0:
            self.cached_below = (num_host, num_storage)

    def launch(self, count: int) -> bool:
        """Count `count` positions as computed; True when the step samples, which reserves the next position."""
        self.num_computed += count
        if self.num_computed < self.num_known or self.num_known >= self.max_len:
            return False
        self.num_known += 1
        if self.state is RequestState.PREFILLING:
            self._move(RequestState.DECODING)
        return True

    def confirm(self, num_confirmed: int) -> None:
        """A step that computed up to `num_confirmed` has finished."""
        self.num_confirmed = num_confirmed

    def append(self, token_id: int) -> None:
        """The id of the oldest reserved position has reached the host; where none is reserved, this id is forced to be next."""
        self.token_bytes += token_id.to_bytes(ID_BYTES, "little")
        num_ids = len(self.token_bytes) // ID_BYTES  # the property, inlined: this runs for every token
        if num_ids > self.num_known:
            if self.unwritten is None:
                self.unwritten = self.num_known
            self.num_known = num_ids

    def retract(self) -> None:
        """Take the request off the batch; what is in flight may still be confirmed."""
        self._move(RequestState.RETRACTED)
        self.num_retractions += 1

    def requeue(self) -> None:
        """Everything launched is confirmed: wait again, with the ids so far and no KV."""
        self._move(RequestState.WAITING)
        self.num_computed = self.num_confirmed = 0
        self.num_known = self.num_ids

    def end(self, state: RequestState, num_known: int | None = None) -> None:
        """Enter a terminal state with `num_known` ids (all on the host by default); later results are discarded."""
        self._move(state)
        kept = self.num_ids if num_known is None else min(num_known, self.num_ids)
        self.num_known = kept
        self.num_confirmed = min(self.num_confirmed, kept)

    def promote(self) -> None:
        """Make it an elder: from now on it is admitted before, and retracted after, all that are not."""
        self.priority = ELDER_PRIORITY
        self.seniority = (-ELDER_PRIORITY, self.arrival)

    def _move(self, state: RequestState) -> None:
        if state not in LEGAL_MOVES[self.state]:
            raise RuntimeError(f"request {self.number}: illegal move {self.state.value} -> {state.value}; report this as a bug")
        self.state = state
