"""The torch engine: applies plans, in order, to its tables, KV store, model and sampler on one compute stream.

Knows slots, positions and locations, not requests. Invariant: everything that a plan changes is changed on the compute stream,
so plans take effect in the order of their launches and the launching thread never waits for the device.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sapwood.core.plan import EngineLimits, SlotStart, StepPlan, StepResult, TableWrite, UInt32Array
from sapwood.core.sampling import TokenLogprobs
from sapwood.device import Launched, Stream
from sapwood.distributed.group import Group
from sapwood.engine.batch import PromptReport, SampleRows, build_batch, prompt_reports, sample_rows
from sapwood.engine.pooler import NoPooler, Pooler, as_bytes
from sapwood.engine.sampler import LogprobRows, Sampled, Sampler
from sapwood.errors import EngineFailed, SapwoodError
from sapwood.kvcache.host_store import HostStore
from sapwood.kvcache.store import KVStore
from sapwood.models import Decoder

logger = logging.getLogger(__name__)

SCORED_ROWS_AT_ONCE = 64
"""Rows of logits that exist at a time while prompt log-probabilities are reduced."""


@dataclass(frozen=True, slots=True)
class ScoredPrompt:
    """Prompt log-probabilities of one row, on their way to the host in blocks."""

    row: int
    position: int
    blocks: list[LogprobRows]

    def to_list(self) -> list[TokenLogprobs]:
        """One entry per position, from `position` on."""
        return [entry for block in self.blocks for entry in block.to_list()]


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a step leaves behind; its tensors may be read once the step has finished on the device."""

    num_rows: int
    sampling: SampleRows
    sampled: Sampled | None
    prompts: list[ScoredPrompt]
    vectors: dict[int, Tensor] = field(default_factory=dict)

    def to_result(self, step: int) -> StepResult:
        """The result for the scheduler, in the order of the plan's rows."""
        prompts = {prompt.row: (prompt.position, prompt.to_list()) for prompt in self.prompts}
        token_ids = [-1] * self.num_rows
        if self.sampled is None:
            vectors = {row: as_bytes(vector) for row, vector in self.vectors.items()}
            return StepResult(step, token_ids, prompt_logprobs=prompts, vectors=vectors)
        rows = self.sampling.rows
        for row, token_id in zip(rows, self.sampled.host_ids.tolist(), strict=True):
            token_ids[row] = token_id
        logprobs = {rows[index]: entry for index, entry in self.sampled.logprobs().items()}
        return StepResult(step, token_ids, logprobs, prompts)


Sample = Callable[[UInt32Array], Launched[StepOutput]]


class PendingStep:
    """A launched step; see `core.plan.Pending`. Where rows are constrained it is two pieces of work: `sample` submits the second
    one when their masks are there, so that the stream never waits."""

    def __init__(self, step: int, launched: Launched[StepOutput] | None, sample: Sample | None = None) -> None:
        self.step = step
        self.launched = launched
        self._sample = sample

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        return self.launched is not None and self.launched.done()

    def release(self, masks: UInt32Array) -> None:
        """Let the constrained rows sample, after the forward pass on the same stream."""
        if self._sample is not None:
            self.launched = self._sample(masks.copy())

    def wait(self) -> StepResult:
        """The step's result; raises EngineFailed when the step failed (out of memory, say), whose cause is logged."""
        if self.launched is None:
            raise EngineFailed(f"step {self.step} was waited for before its masks were released; report this as a bug")
        try:
            return self.launched.result().to_result(self.step)
        except SapwoodError:
            raise
        except torch.OutOfMemoryError as error:
            logger.error("step %d ran out of memory", self.step, exc_info=error)
            advice = "restart the server with a smaller --mem-fraction-static"
            raise EngineFailed(f"step {self.step} ran out of device memory; {advice}") from error
        except Exception as error:
            logger.error("step %d failed", self.step, exc_info=error)
            raise EngineFailed(f"step {self.step} failed on the device; see the server's log, then restart it") from error


class TorchEngine:
    """Implements `core.plan.Engine` for one rank. All ranks launch the same plans; rank 0 samples for all."""

    def __init__(
        self,
        limits: EngineLimits,
        model: Decoder,
        store: KVStore,
        sampler: Sampler,
        group: Group,
        stream: Stream,
        pooler: Pooler | None = None,
    ) -> None:
        self._host = HostStore(store, limits.num_host_pages, limits.page_size)
        device = store.device
        self._limits, self._model, self._store = limits, model, store
        self._sampler, self._group, self._stream = sampler, group, stream
        self._token_table = torch.zeros(limits.num_slots, limits.max_len, dtype=torch.int32, device=device)
        self._page_tables = [torch.zeros_like(self._token_table) for _ in range(2 if limits.window else 1)]
        self._scored: dict[int, SlotStart] = {}
        self._pooler = pooler or NoPooler()

    @property
    def limits(self) -> EngineLimits:
        """What the scheduler has to know."""
        return self._limits

    @property
    def host_pages(self) -> NDArray[np.uint8]:
        """The host pages as storage sees them, uint8 [num_host_pages, bytes]."""
        return self._host.host_pages

    @property
    def stream(self) -> Stream:
        """The compute stream, to be polled for finished steps."""
        return self._stream

    def launch(self, plan: StepPlan) -> PendingStep:
        """Queue one step and return; see `core.plan.Engine`."""
        if not plan.constrained or self._group.rank > 0:  # the other ranks hear what rank 0 chose
            return PendingStep(plan.step, self._stream.submit(lambda: self._read_out(plan, self._run(plan), None)))
        hidden: list[Tensor | None] = []  # passed on without waiting for the device
        forward = self._stream.submit(lambda: hidden.append(self._run(plan)))

        def read_out(masks: UInt32Array) -> StepOutput:
            if not hidden:
                forward.result()  # raises what the forward pass raised
            return self._read_out(plan, hidden[0], masks)

        return PendingStep(plan.step, None, lambda masks: self._stream.submit(lambda: read_out(masks)))

    def close(self) -> None:
        """Wait for launched steps and end the stream."""
        self._stream.close()

    @torch.inference_mode()
    def _run(self, plan: StepPlan) -> Tensor | None:
        """State, then the forward pass over the rows, if there are any: the last hidden states [T, hidden_size]."""
        for start in plan.starts:
            self._start(start)
        for token_write in plan.tokens:
            end = token_write.position + len(token_write.token_ids)
            self._token_table[token_write.slot, token_write.position : end] = self._to_device(token_write.token_ids)
        for is_window, table in enumerate(self._page_tables):
            writes = [write for write in plan.writes if write.is_window == is_window]
            if writes:
                self._write_locations(table, writes)
        if len(plan.saves):
            self._host.save(self._to_device(plan.saves[:, 0].astype(np.int64)), plan.saves[:, 1].tolist())
        if len(plan.loads):
            self._host.load(plan.loads[:, 0].tolist(), self._to_device(plan.loads[:, 1].astype(np.int64)))
        for copies, of_window in ((plan.copies, False), (plan.window_copies, True)):
            if len(copies):
                sources, targets = self._to_device(copies.astype(np.int64).T)
                self._store.copy_rows(sources, targets, of_window=of_window)
        if not plan.rows:
            return None
        batch = build_batch(plan.rows, self._token_table, *self._page_tables)
        return self._model.forward(batch.token_ids, batch.geometries, self._store.layers)

    def _start(self, start: SlotStart) -> None:
        self._token_table[start.slot, : len(start.token_ids)] = self._to_device(start.token_ids)
        self._sampler.start(start)
        self._pooler.start(start)
        self._scored.pop(start.slot, None)
        if start.logprobs.prompt_start is not None:
            self._scored[start.slot] = start

    def _write_locations(self, table: Tensor, writes: Sequence[TableWrite]) -> None:
        """All writes in one scatter; where two of them touch the same entry, the later one holds."""
        starts = [write.slot * self._limits.max_len + write.position for write in writes]
        entries = np.concatenate([start + np.arange(len(w.locations)) for start, w in zip(starts, writes, strict=True)])
        locations = np.concatenate([write.locations for write in writes])
        entries, last = np.unique(entries[::-1], return_index=True)
        table.view(-1)[self._to_device(entries)] = self._to_device(locations[::-1][last])

    @torch.inference_mode()
    def _read_out(self, plan: StepPlan, hidden: Tensor | None, masks: UInt32Array | None) -> StepOutput:
        rows = plan.rows
        if hidden is None:
            return StepOutput(0, sample_rows(()), None, [])
        prompts = [self._score(report, hidden) for report in prompt_reports(rows, self._scored)]
        sampling, vectors = sample_rows(rows), self._pooler.read(rows, hidden)
        if not sampling.rows:
            return StepOutput(len(rows), sampling, None, prompts, vectors)
        slots, positions, tokens = (
            self._to_device(np.array(part)) for part in (sampling.slots, sampling.positions, sampling.tokens)
        )
        allowed = None if masks is None else self._allowed(sampling, plan, masks)
        sampled = self._sample(sampling, self._model.logits(hidden, tokens), allowed)
        self._token_table[slots, positions] = sampled.token_ids.to(self._token_table.dtype)
        return StepOutput(len(rows), sampling, sampled, prompts, vectors)

    def _allowed(self, sampling: SampleRows, plan: StepPlan, masks: UInt32Array) -> Tensor:
        """The masks of the constrained rows among all that sample, bool [S, vocab_size]."""
        size = self._limits.vocab_size
        allowed = np.ones((len(sampling.rows), size), dtype=np.bool_)
        index = [sampling.rows.index(row) for row in plan.constrained]
        allowed[index] = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")[:, :size]
        return self._to_device(allowed)

    def _sample(self, sampling: SampleRows, logits: Tensor, allowed: Tensor | None) -> Sampled:
        """Rank 0 chooses; the others learn its ids."""
        if self._group.rank == 0:
            sampled = self._sampler.sample(logits, sampling.slots, sampling.positions, self._token_table, allowed)
            self._group.broadcast_(sampled.token_ids)
            return sampled
        token_ids = torch.empty(len(sampling.rows), dtype=torch.int64, device=logits.device)
        self._group.broadcast_(token_ids)
        return Sampled(token_ids, token_ids.to("cpu", non_blocking=True))

    def _score(self, report: PromptReport, hidden: Tensor) -> ScoredPrompt:
        """Prompt log-probabilities, reduced block by block (every rank takes part in the logits, rank 0 reads them)."""
        blocks = []
        for offset in range(0, len(report.target_ids), SCORED_ROWS_AT_ONCE):
            targets = report.target_ids[offset : offset + SCORED_ROWS_AT_ONCE]
            first = report.token + offset
            logits = self._model.logits(hidden, torch.arange(first, first + len(targets), device=hidden.device))
            if self._group.rank == 0:
                blocks.append(self._sampler.score(logits, report.slot, targets.tolist()))
        return ScoredPrompt(report.row, report.position, blocks)

    def _to_device(self, array: NDArray[Any]) -> Tensor:
        """A copy, since plans belong to the scheduler (and their arrays may be read-only)."""
        return torch.tensor(array, device=self._token_table.device)
