"""Runs a `Decoder` on several sequences at once, in steps of any shape, on scattered pages: what the engine does, by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from sapwood.core.plan import RowRun
from sapwood.engine.batch import build_batch
from sapwood.kvcache.store import KVStore
from sapwood.models import Decoder

Schedule = list[list[tuple[int, int]]]
"""Steps; each is a list of (sequence, number of tokens to compute)."""


class ModelDriver:
    """Sequence i is slot i; its pages are drawn at random from a pool whose unused rows hold NaN."""

    def __init__(self, model: Decoder, sequences: Sequence[Sequence[int]], page_size: int) -> None:
        length = max(map(len, sequences))
        pages_each = -(-length // page_size)
        num_pages = 2 * pages_each * len(sequences)
        pages = np.random.default_rng(page_size).permutation(num_pages)
        positions = np.arange(pages_each * page_size)
        rows = [
            pages[slot * pages_each + positions // page_size] * page_size + positions % page_size
            for slot in range(len(sequences))
        ]
        self.page_table = torch.tensor(np.stack(rows), dtype=torch.int32)
        self.token_table = torch.zeros_like(self.page_table)
        for slot, ids in enumerate(sequences):
            self.token_table[slot, : len(ids)] = torch.tensor(ids)
        self.model = model
        self.store = KVStore(model.shapes, num_pages * page_size, torch.float32, torch.device("cpu"), model.kernels)
        for layer in self.store.layers:
            layer.k.fill_(torch.nan)
            layer.v.fill_(torch.nan)

    @torch.inference_mode()
    def run(self, schedule: Schedule) -> list[Tensor]:
        """Logits after every computed token, per sequence."""
        found: list[list[Tensor]] = [[] for _ in range(len(self.token_table))]
        done = [0] * len(found)
        for step in schedule:
            rows = [RowRun(sequence, done[sequence], count, False) for sequence, count in step]
            batch = build_batch(rows, self.token_table, self.page_table)
            hidden = self.model.forward(batch.token_ids, batch.geometries, self.store.layers)
            logits = self.model.logits(hidden, torch.arange(len(hidden)))
            for (sequence, count), part in zip(step, logits.split([count for _, count in step]), strict=True):
                found[sequence].append(part)
                done[sequence] += count
        return [torch.cat(parts) for parts in found]


def schedules(lengths: Sequence[int]) -> Iterator[tuple[str, Schedule]]:
    """Ways to compute sequences of these lengths, each token once."""
    numbers = range(len(lengths))
    yield "whole", [[(n, lengths[n]) for n in numbers]]
    yield "one by one", [[(n, lengths[n])] for n in numbers]
    chunks = [[(n, min(7, lengths[n] - first))] for n in numbers for first in range(0, lengths[n], 7)]
    yield "chunks of 7", chunks
    yield "single tokens", [[(n, 1) for n in numbers if step < lengths[n]] for step in range(max(lengths))]
    yield "prefill, then decode", [[(n, lengths[n] - 4) for n in numbers], *[[(n, 1) for n in numbers]] * 4]
    yield "mixed", list(_mixed(lengths))


def _mixed(lengths: Sequence[int]) -> Iterator[list[tuple[int, int]]]:
    """Random counts, single tokens first as the scheduler orders them; many steps hold both kinds."""
    rng = np.random.default_rng(sum(lengths))
    left = list(lengths)
    while any(left):
        counts = [min(int(rng.choice([0, 1, 1, 2, 11])), rest) for rest in left]
        left = [rest - count for rest, count in zip(left, counts, strict=True)]
        step = sorted(((n, count) for n, count in enumerate(counts) if count), key=lambda item: item[1] > 1)
        if step:
            yield step
