"""Every message that crosses a process border, grouped by receiver.

`number` is a request's identity: issued by the server, never reused (a client's rid may recur). `epoch` counts the lives of
the replica: whoever sees an older one drops the message and counts it. Ids travel as int32 little-endian bytes.

    server ─▶ tokenizer     Tokenize                      tokenizer ─▶ server     Tokenized
    server ─▶ worker        Submit Abort Stop Renew Flush …   worker ─▶ detokenizer   StepEvents (the server, when in-process)
    server ─▶ detokenizer   Watch Forget                  detokenizer ─▶ server   StepTexts; everything else is passed on
    all    ─▶ server        Ready Answer
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from sapwood.core.constraint import GrammarDone
from sapwood.core.plan import Int32Array, StepResult
from sapwood.core.pooling import Pooling
from sapwood.core.sampling import LogprobOptions, SamplingParams, TokenLogprobs
from sapwood.core.transfer import TransferDone


def pack_ids(token_ids: Any) -> bytes:
    """Token ids (any sequence) as they travel."""
    return np.asarray(token_ids, dtype="<i4").tobytes()


def unpack_ids(data: bytes) -> Int32Array:
    """The read-only int32 array behind `pack_ids`."""
    return np.frombuffer(data, dtype="<i4")


class Finish(msgspec.Struct, frozen=True, array_like=True):
    """How a request ended. `kind`: stop (matched: id or text), length, abort or error (with message, status, code)."""

    kind: str
    matched: int | str | None = None
    message: str = ""
    status: int = 200
    code: str = ""


# ------------------------------------------------------------------------------------------------- to the worker
class Submit(msgspec.Struct, frozen=True, tag=True):
    """A request to run. The last `num_emitted` of `token_ids` are completion ids that its client already has (a replay).

    `params` is resolved: `seed` and `max_new_tokens` are set, `n` is 1 (n samples are n requests of one `group`).
    `namespace` separates prefix-cache entries; equal prompts in two namespaces never share. Timeouts count from the arrival at
    the worker: the first until admission, the second until the end. When the request has finished, its pages stay pinned under
    the name `pin` (if any) for `pin_s` seconds, instead of what that name held. `waited_s` have passed since a replayed request
    first arrived.
    """

    number: int
    group: int
    epoch: int
    token_ids: bytes
    params: SamplingParams
    logprobs: LogprobOptions = LogprobOptions()
    sample_index: int = 0
    num_emitted: int = 0
    priority: int = 0
    namespace: str = ""
    pin: str = ""
    pin_s: float = 0.0
    routing_key: str = ""
    queue_timeout_s: float | None = None
    timeout_s: float | None = None
    waited_s: float = 0.0
    pooling: Pooling | None = None


class Abort(msgspec.Struct, frozen=True, tag=True):
    """End these requests now. It may overtake its `Submit`: the scheduler remembers numbers it has not seen yet."""

    numbers: list[int]
    message: str = "aborted by the client"


class Stop(msgspec.Struct, frozen=True, tag=True):
    """The server closed the request after `num_tokens` completion tokens (a stop string matched); free it, answer nothing."""

    number: int
    num_tokens: int


class Renew(msgspec.Struct, frozen=True, tag=True):
    """Another process died: forget every request without a word, belong to `epoch` from now on, send events to `events_address`
    (the server's or the new detokenizer's), and answer. What is still wanted is submitted again."""

    ask: int
    epoch: int
    events_address: str


class Flush(msgspec.Struct, frozen=True, tag=True):
    """Empty the prefix cache; refused (Answer.ok false) while requests run or wait."""

    ask: int


class Unpin(msgspec.Struct, frozen=True, tag=True):
    """Nobody will come back to what these names have pinned."""

    names: list[str]


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Report the worker's state (an Answer with `StepStats` fields in `data`)."""

    ask: int


class AskTimeline(msgspec.Struct, frozen=True, tag=True):
    """Report what has happened to a request (an Answer with its timeline in `data`; not ok when it is not known any more)."""

    ask: int
    number: int


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Finish what runs and waits, then exit. A worker takes up to `save_s` to bring to storage what only memory holds; it may be
    told again, to shorten that."""

    save_s: float = 0.0


ToWorker = Submit | Abort | Stop | Renew | Flush | Unpin | Ask | AskTimeline | Drain


class StepInputs(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one scheduling decision depends on; rank 0 gathers it and all ranks receive the same.

    `now_s` is rank 0's monotonic clock; `results` are the steps that finished since the last decision, in order; `transfers`
    what the cache's storage has done, `grammars` which requests' grammars are ready.
    """

    messages: list[ToWorker] = []
    results: list[StepResult] = []
    transfers: list[TransferDone] = []
    grammars: list[GrammarDone] = []
    now_s: float = 0.0


# ------------------------------------------------------------------------------------- from the worker
class TokenEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """News of one request: completion ids [index, index + len(token_ids)) and, with `finish`, its one terminal event.

    `num_cached` counts prompt tokens found in the prefix index at first admission. `logprobs` has one entry per id when asked.
    `prompt_logprobs` covers [prompt_start, num_prompt) and comes once. `queue_s`, how long the request waited to be admitted,
    comes with the first id (or the end, when there is none). `cached_below` says how many of the cached tokens came from the
    host's memory and from storage; the rest lay on the device.
    `vector` (little-endian float32) comes with the end of a request that wanted one.
    """

    number: int
    index: int
    token_ids: list[int]
    finish: Finish | None = None
    num_cached: int = 0
    num_retractions: int = 0
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    queue_s: float | None = None
    cached_below: tuple[int, int] = (0, 0)
    vector: bytes = b""


class StepStats(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduler's gauges and running totals after a step; sums over the life of the worker end in `_total`."""

    num_running: int = 0
    num_waiting: int = 0
    num_pages: int = 0
    num_free_pages: int = 0
    num_cached_pages: int = 0
    num_evictable_pages: int = 0
    page_size: int = 1
    steps_total: int = 0
    prompt_tokens_total: int = 0
    cached_tokens_total: int = 0
    computed_tokens_total: int = 0
    generated_tokens_total: int = 0
    retractions_total: int = 0
    preemptions_total: int = 0
    timeouts_total: int = 0
    evicted_pages_total: int = 0
    stale_messages_total: int = 0
    law_violations_total: int = 0
    new_token_ratio: float = 1.0
    num_pins: int = 0
    num_host_pages: int = 0
    num_host_cached_pages: int = 0
    saved_pages_total: int = 0
    unsaved_pages_total: int = 0
    loaded_pages_total: int = 0
    fetched_pages_total: int = 0
    stored_pages_total: int = 0
    cached_host_tokens_total: int = 0
    cached_storage_tokens_total: int = 0
    num_window_pages: int = 0
    num_free_window_pages: int = 0
    num_evictable_window_pages: int = 0
    evicted_window_pages_total: int = 0


class StepEvents(msgspec.Struct, frozen=True, tag=True):
    """All news of one step in one message."""

    epoch: int
    events: list[TokenEvent]
    stats: StepStats | None = None


class Answer(msgspec.Struct, frozen=True, tag=True):
    """The reply to a Flush or Ask with that number."""

    ask: int
    ok: bool
    message: str = ""
    data: dict[str, Any] = {}


class Ready(msgspec.Struct, frozen=True, tag=True):
    """A process has finished starting. A worker's `info` carries the engine's limits and the memory table."""

    process: str
    pid: int
    info: dict[str, Any] = {}


# ------------------------------------------------------------------------------------- tokenizer and detokenizer
class Tokenize(msgspec.Struct, frozen=True, tag=True):
    """Encode `pieces`: (text, parse_special) runs of one prompt, in order. Special tokens are added when `add_special`."""

    ask: int
    pieces: list[tuple[str, bool]]
    add_special: bool = True


class Tokenized(msgspec.Struct, frozen=True, tag=True):
    """The ids of one `Tokenize`."""

    ask: int
    token_ids: bytes
    error: str = ""


class Watch(msgspec.Struct, frozen=True, tag=True):
    """A request whose ids will come: the detokenizer keeps events of numbers that it does not know yet.

    `token_ids` is the prompt's tail (context for the first characters), then the `num_emitted` completion ids of a replay;
    `num_chars` characters of the completion were already delivered.
    """

    number: int
    epoch: int
    params: SamplingParams
    token_ids: bytes = b""
    num_emitted: int = 0
    num_chars: int = 0


class Forget(msgspec.Struct, frozen=True, tag=True):
    """The server is done with these requests; drop their state and whatever still comes."""

    numbers: list[int]


class TextEvent(msgspec.Struct, frozen=True, array_like=True):
    """A TokenEvent with the text that became certain. A stop string or regex shows as finish.kind "stop" with its text.

    `num_tokens` completion tokens count (the one that completed the stop included); later ids were dropped.
    """

    event: TokenEvent
    text: str
    num_tokens: int
    stopped_by_text: bool = False


class StepTexts(msgspec.Struct, frozen=True, tag=True):
    """All texts of one step in one message."""

    epoch: int
    events: list[TextEvent]
    stats: StepStats | None = None


ToTokenizer = Tokenize | Drain
ToDetokenizer = Watch | Forget | StepEvents | Answer | Ready | Drain
ToServer = Tokenized | StepEvents | StepTexts | Answer | Ready
