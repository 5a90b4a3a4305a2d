"""A model split over ranks gives the whole model's logits, also where heads, columns or vocabulary do not divide evenly."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
import torch
from model_driver import ModelDriver, schedules
from tiny_models import MAX_POSITION, VOCAB_SIZE, build, logits_of
from torch import Tensor

from sapwood.device import create_device
from sapwood.engine.lifecycle import EngineOptions, load_model
from sapwood.weights.checkpoint import open_checkpoint

LENGTHS = [5, 30]


class ThreadGroup:
    """Ranks that are threads of this process; `shared` is one list for all of them."""

    def __init__(self, rank: int, shared: list[Tensor], barrier: Barrier) -> None:
        self.rank, self.size = rank, barrier.parties
        self._shared, self._barrier = shared, barrier

    def _exchange(self, tensor: Tensor) -> list[Tensor]:
        self._shared[self.rank] = tensor.clone()
        self._barrier.wait(timeout=60)
        parts = list(self._shared)
        self._barrier.wait(timeout=60)
        return parts

    def all_reduce_(self, tensor: Tensor) -> Tensor:
        return tensor.copy_(torch.stack(self._exchange(tensor)).sum(0))

    def all_gather(self, tensor: Tensor, dim: int = -1) -> Tensor:
        return torch.cat(self._exchange(tensor), dim=dim)

    def broadcast_(self, tensor: Tensor, src: int = 0) -> Tensor:
        return tensor.copy_(self._exchange(tensor)[src])

    def barrier(self) -> None:
        self._barrier.wait(timeout=60)

    def close(self) -> None:
        return None


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 6])
@pytest.mark.parametrize("name", ["llama-biases", "llama-multi-head", "qwen2", "gemma3-softcaps"])
def test_split_model_gives_the_same_logits(name: str, num_ranks: int, tmp_path: Path) -> None:
    oracle = build(name, tmp_path)
    rng = np.random.default_rng(3)
    sequences = [rng.integers(0, VOCAB_SIZE, length).tolist() for length in LENGTHS]
    schedule = dict(schedules(LENGTHS))["prefill, then decode"]
    shared, barrier = [torch.empty(0)] * num_ranks, Barrier(num_ranks)

    def run(rank: int) -> list[Tensor]:
        group = ThreadGroup(rank, shared, barrier)
        options = EngineOptions(num_slots=2, max_len=MAX_POSITION, num_pages=1, page_size=1, device="cpu")
        model = load_model(options, open_checkpoint(tmp_path), group, create_device("cpu"))
        return ModelDriver(model, sequences, page_size=4).run(schedule)

    with ThreadPoolExecutor(num_ranks) as pool:
        by_rank = list(pool.map(run, range(num_ranks)))
    for sequence, found in zip(sequences, zip(*by_rank, strict=True), strict=True):
        expected = logits_of(oracle, sequence)
        assert found[0].shape == expected.shape
        assert ((found[0] - expected).abs().max() / expected.abs().max()).item() < 1e-4
        assert all(torch.equal(part, found[0]) for part in found[1:]), "ranks must agree to the bit"
