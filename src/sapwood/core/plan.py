"""What the scheduler asks of the engine for one step, and what comes back.

The only thing that scheduler and engine share. Integers and numpy arrays, no torch. Invariant: device-visible state (token
table, page table, KV rows, sampler state) changes only as a plan says, in the order of the fields of `StepPlan`.

    token table  [slots, max_len]  ids by (slot, position)           written by SlotStart and by sampling
    page table   [slots, max_len]  raw KV locations by the same key  written by TableWrite; one for each kind of attention
    KV store     [locations, ...]  one row per token                 written by loads, copies and the forward pass; likewise
    host pages   [pages, bytes]    KV pages in the host's memory     written by saves (and from storage, see core.transfer)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from sapwood.core.pooling import Pooling
from sapwood.core.sampling import LogprobOptions, SamplingParams, TokenLogprobs

Int32Array = NDArray[np.int32]
UInt32Array = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class SlotStart:
    """A request takes a slot: its known ids go to the token table from position 0, its parameters to the sampler.

    `token_ids` holds prompt and already emitted completion ids (after retraction or replay); `num_prompt` is the border.
    With `pooling` the row that computes the last prompt position yields the prompt's vector, and nothing is sampled.
    `params.seed` is always set. The random numbers of position p are keyed by (seed, sample_index, p, purpose).
    """

    slot: int
    token_ids: Int32Array
    num_prompt: int
    params: SamplingParams
    logprobs: LogprobOptions
    sample_index: int
    pooling: Pooling | None = None


@dataclass(frozen=True, slots=True)
class TableWrite:
    """Positions [position, position + len(locations)) of a slot's page-table row become `locations`; `is_window` writes to the
    table of the layers that see a window, where they have pages of their own (see `EngineLimits.window`)."""

    slot: int
    position: int
    locations: Int32Array
    is_window: bool = False


@dataclass(frozen=True, slots=True)
class TokenWrite:
    """Positions [position, position + len(token_ids)) of a slot's token row become `token_ids`: ids that no step samples."""

    slot: int
    position: int
    token_ids: Int32Array


class RowRun(msgspec.Struct, frozen=True, gc=False):
    """One row of the batch: compute positions [first, first + count) of the request in `slot`.

    If `samples`, the logits of the last position choose the id of position first + count, which the engine writes to the
    token table. A row reports prompt log-probabilities for the positions p in (first, first + count] with
    `logprobs.prompt_start <= p < num_prompt`.
    """

    slot: int
    first: int
    count: int
    samples: bool


_NO_COPIES: Int32Array = np.empty((0, 2), dtype=np.int32)


def no_copies() -> Int32Array:
    """The empty `StepPlan.copies`, `saves` or `loads`; always the same one, since there is nothing in it to change."""
    return _NO_COPIES


class StepPlan(msgspec.Struct, frozen=True):
    """One step, in this order: starts, table writes, saves, loads, copies, then the forward pass over `rows` and sampling.

    `saves` [S, 2] copies whole pages (all layers) of the KV store to host pages: (page, host page); so a page that is given
    away in this very plan can still be saved. `loads` [L, 2] brings them back: (host page, page). `copies` has shape [C, 2]: the
    KV rows of location `copies[i, 0]` (all layers) are copied to location `copies[i, 1]`; `window_copies` [W, 2] do the same for
    the layers with a window, where these have pages of their own.
    Decode rows come first. An empty `rows` is legal (a plan that only moves state). `tokens` are written with the starts. The
    rows numbered in `constrained` (ascending, all of them sample) may choose only what a mask allows, which is not part of the
    plan because it depends on ids that may still be computed: see `Pending.release`.
    """

    step: int
    starts: tuple[SlotStart, ...]
    writes: tuple[TableWrite, ...]
    copies: Int32Array
    rows: tuple[RowRun, ...]
    saves: Int32Array = _NO_COPIES
    loads: Int32Array = _NO_COPIES
    window_copies: Int32Array = _NO_COPIES
    tokens: tuple[TokenWrite, ...] = ()
    constrained: tuple[int, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens computed by this step."""
        return sum([row.count for row in self.rows])


class Steering(msgspec.Struct, frozen=True, array_like=True):
    """What a row's constraint says after the sampled id: `forced` ids must follow it, in this order; with `is_complete`,
    nothing can follow them. `error`: the constraint cannot be honoured, for this reason.
    """

    forced: list[int] = []
    is_complete: bool = False
    error: str = ""


class StepResult(msgspec.Struct, frozen=True):
    """What a finished step produced, in the order of the plan's rows.

    `token_ids[i]` is the id sampled for row i, -1 if the row did not sample. `logprobs` maps row index to the sampled
    position's log-probabilities, `prompt_logprobs` row index to (first reported position, one entry per position). `vectors` maps
    row index to the prompt's vector, little-endian float32. `steering` has the constrained rows of which there is something to
    say. `duration_s` is how long the step took, as rank 0 measured it (0.0: not measured).
    """

    step: int
    token_ids: list[int]
    logprobs: dict[int, TokenLogprobs] = {}
    prompt_logprobs: dict[int, tuple[int, list[TokenLogprobs]]] = {}
    duration_s: float = 0.0
    vectors: dict[int, bytes] = {}
    steering: dict[int, Steering] = {}


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """The engine's facts that the scheduler works with. Locations are `page * page_size + offset`, page in [0, num_pages).

    `num_host_pages` pages in the host's memory can hold what the KV store has no room for; 0: there is no such tier.

    `window` > 0: some layers see only the last `window` positions and have `num_window_pages` pages of their own, with locations
    of their own; positions that no row will see again need none there. 0: all layers use the same pages.
    """

    num_slots: int
    max_len: int
    num_pages: int
    page_size: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    num_host_pages: int = 0
    window: int = 0
    num_window_pages: int = 0

    @property
    def longest_kv(self) -> int:
        """Positions of the longest request that fits when it is alone."""
        is_tight = self.window and self.num_window_pages < window_claim(self.window, self.page_size)
        return (self.num_window_pages if is_tight else self.num_pages) * self.page_size


def window_claim(window: int, page_size: int) -> int:
    """Window pages that a request of any length needs at most to get on: what the next position sees, wherever it lies in its
    page, and a page more while pages behind the window wait to be given back (which is done once a page)."""
    return (window + page_size) // page_size + 2


class Pending(Protocol):
    """A launched step."""

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        ...

    def wait(self) -> StepResult:
        """Block until the step has finished on the device and its ids are on the host."""
        ...

    def release(self, masks: UInt32Array) -> None:
        """Let a plan with `constrained` rows sample: bit `id % 32` of `masks[i, id // 32]` says whether the i-th of them may
        choose `id`. uint32 [len(plan.constrained), ceil(vocab_size / 32)]. Nothing later may be launched before."""
        ...


class Engine(Protocol):
    """The seam between the worker's loop and whatever computes: torch, native code, or the null model."""

    @property
    def limits(self) -> EngineLimits: ...

    def launch(self, plan: StepPlan) -> Pending:
        """Queue one step on the compute stream and return; steps run in the order of their launches."""
        ...

    def close(self) -> None:
        """Wait for launched steps and release the device."""
        ...


class TieredEngine(Engine, Protocol):
    """An engine with a tier below its pages, of no pages perhaps."""

    @property
    def host_pages(self) -> NDArray[np.uint8]:
        """The tier below the device as storage reads and writes it, uint8 [num_host_pages, bytes of a page]."""
        ...


def as_ids(token_ids: Sequence[int]) -> Int32Array:
    """Token ids as the int32 array that plans carry."""
    return np.asarray(token_ids, dtype=np.int32)
