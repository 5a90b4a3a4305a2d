"""The engine of encoders: plans in, one vector for each prompt out; nothing is kept between steps but the prompts' ids.

Implements `core.plan.Engine` for models without a KV cache: pages and locations of a plan are numbers that nobody reads. Knows
slots and rows, not requests. Invariant: a row is a whole prompt (the scheduler never cuts one), and its vector depends on the
prompt alone.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sapwood.core.plan import EngineLimits, RowRun, SlotStart, StepPlan
from sapwood.core.pooling import PoolingKind
from sapwood.device import Stream
from sapwood.engine.batch import sample_rows
from sapwood.engine.runner import PendingStep, StepOutput
from sapwood.errors import EngineFailed
from sapwood.models.encoder import Encoder


class EncoderEngine:
    """One encoder on one device. `pooling` decides which rows become an embedding; a classifier takes the first one."""

    def __init__(self, limits: EngineLimits, model: Encoder, pooling: PoolingKind, stream: Stream) -> None:
        self._limits, self._model, self._pooling, self._stream = limits, model, pooling, stream
        self._starts: dict[int, SlotStart] = {}

    @property
    def limits(self) -> EngineLimits:
        """What the scheduler has to know."""
        return self._limits

    @property
    def host_pages(self) -> NDArray[np.uint8]:
        """None: there is nothing to keep."""
        return np.empty((0, 0), dtype=np.uint8)

    def launch(self, plan: StepPlan) -> PendingStep:
        """Queue one step and return; see `core.plan.Engine`."""
        return PendingStep(plan.step, self._stream.submit(lambda: self._run(plan)))

    def close(self) -> None:
        """Wait for launched steps and end the stream."""
        self._stream.close()

    @torch.inference_mode()
    def _run(self, plan: StepPlan) -> StepOutput:
        self._starts |= {start.slot: start for start in plan.starts}
        if not plan.rows:
            return StepOutput(0, sample_rows(()), None, [])
        starts = [self._whole(row) for row in plan.rows]
        lengths = [row.count for row in plan.rows]
        token_ids = np.concatenate([start.token_ids for start in starts])
        segments = np.concatenate([self._segments(start) for start in starts])
        hidden = self._model.forward(self._to_device(token_ids), self._to_device(segments), lengths)
        return StepOutput(len(plan.rows), sample_rows(()), None, [], dict(enumerate(self._read(hidden, lengths))))

    def _whole(self, row: RowRun) -> SlotStart:
        start = self._starts[row.slot]
        if row.first or row.count != len(start.token_ids):
            raise EngineFailed("a prompt of an encoder was cut into chunks; report this as a bug")
        return start

    def _read(self, hidden: Tensor, lengths: list[int]) -> Tensor:
        """One vector for each prompt, float32 [P, size]."""
        ends = torch.tensor(np.cumsum(lengths), device=hidden.device)
        firsts = ends - torch.tensor(lengths, device=hidden.device)
        if self._model.config.labels:
            return self._model.classify(hidden[firsts]).float().cpu()
        match self._pooling:
            case PoolingKind.CLS:
                vectors = hidden[firsts]
            case PoolingKind.LAST:
                vectors = hidden[ends - 1]
            case PoolingKind.MEAN:
                vectors = torch.stack([part.float().mean(dim=0) for part in torch.split(hidden, lengths)])
        return vectors.float().cpu()

    def _segments(self, start: SlotStart) -> NDArray[np.int64]:
        """The kind of text that each position belongs to: 0, and 1 from the second of two texts on."""
        segments = np.zeros(len(start.token_ids), dtype=np.int64)
        second = None if start.pooling is None else start.pooling.second_start
        if second is not None and self._model.config.tells_texts_apart:
            segments[second:] = 1
        return segments

    def _to_device(self, array: NDArray[np.integer]) -> Tensor:
        return torch.tensor(array, dtype=torch.int64, device=self._model.device)
