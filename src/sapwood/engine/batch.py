"""From a plan's rows to tensors: the flattened tokens of a step, which of them need logits, and what is done with those.

Reads the token and page tables on the device, so ids that were sampled a moment ago never pass through the host. Invariant:
building a batch changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sapwood.core.plan import Int32Array, RowRun, SlotStart
from sapwood.kernels.api import StepGeometry


@dataclass(frozen=True, slots=True)
class SampleRows:
    """The rows that sample, as parallel lists: index in the plan, slot, position of the new id, and its predictor's token."""

    rows: list[int]
    slots: list[int]
    positions: list[int]
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class PromptReport:
    """Prompt positions [position, position + len(target_ids)) of one row; the first is predicted by token number `token`."""

    row: int
    slot: int
    position: int
    target_ids: Int32Array
    token: int


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's input: T token ids (int32, on the device) and where they are, in each kind of attention."""

    token_ids: Tensor
    geometries: tuple[StepGeometry, ...]


def build_batch(rows: Sequence[RowRun], token_table: Tensor, *page_tables: Tensor) -> Batch:
    """Flatten `rows` (at least one); all tables are int32 [slots, max_len] on the device, the pages' one for each kind."""
    counts = np.array([row.count for row in rows])
    shifts = np.array([row.first for row in rows]) - np.cumsum(counts) + counts
    positions = np.arange(counts.sum()) + np.repeat(shifts, counts)
    slots = np.repeat(np.array([row.slot for row in rows]), counts)
    index = torch.from_numpy(np.stack((slots, positions))).to(token_table.device, non_blocking=True)
    where = (index[0], index[1])
    geometries = (StepGeometry(tuple(rows), index[1], table[where].long(), table) for table in page_tables)
    return Batch(token_table[where], tuple(geometries))


def sample_rows(rows: Sequence[RowRun]) -> SampleRows:
    """Which rows sample, and from what."""
    ends = np.cumsum([row.count for row in rows]).tolist()
    chosen = [(index, row, end - 1) for index, (row, end) in enumerate(zip(rows, ends, strict=True)) if row.samples]
    return SampleRows(
        rows=[index for index, _, _ in chosen],
        slots=[row.slot for _, row, _ in chosen],
        positions=[row.first + row.count for _, row, _ in chosen],
        tokens=[token for _, _, token in chosen],
    )


def prompt_reports(rows: Sequence[RowRun], scored: Mapping[int, SlotStart]) -> Iterator[PromptReport]:
    """The prompt positions that these rows have to report; `scored` holds, by slot, the requests that asked for any."""
    token = 0
    for index, row in enumerate(rows):
        start = scored.get(row.slot)
        if start is not None and start.logprobs.prompt_start is not None:
            first = max(row.first + 1, start.logprobs.prompt_start)
            stop = min(row.first + row.count + 1, start.num_prompt)
            if first < stop:
                yield PromptReport(index, row.slot, first, start.token_ids[first:stop], token + first - 1 - row.first)
        token += row.count
