"""Logits of every architecture agree with transformers', however the tokens are computed."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from model_driver import ModelDriver, schedules
from tiny_models import MAX_POSITION, TINY_MODELS, VOCAB_SIZE, build, logits_of

from sapwood.device import create_device
from sapwood.distributed.group import SoloGroup
from sapwood.engine.lifecycle import EngineOptions, load_model
from sapwood.models import Decoder
from sapwood.weights.checkpoint import open_checkpoint

TOLERANCE = 1e-4
LENGTHS = [6, 60, 33]


class Case(NamedTuple):
    """A model loaded by Sapwood, some sequences, and transformers' logits for them."""

    model: Decoder
    sequences: list[list[int]]
    expected: list[torch.Tensor]


@pytest.fixture(scope="module", params=TINY_MODELS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder: Path = tmp_path_factory.mktemp(request.param)
    oracle = build(request.param, folder)
    options = EngineOptions(num_slots=4, max_len=MAX_POSITION, num_pages=1, page_size=1, device="cpu")
    model = load_model(options, open_checkpoint(folder), SoloGroup(), create_device("cpu"))
    rng = np.random.default_rng(7)
    sequences = [rng.integers(0, VOCAB_SIZE, length).tolist() for length in LENGTHS]
    return Case(model, sequences, [logits_of(oracle, ids) for ids in sequences])


@pytest.mark.parametrize("page_size", [1, 16])
def test_logits_agree_with_transformers(case: Case, page_size: int) -> None:
    for name, schedule in schedules(LENGTHS):
        found = ModelDriver(case.model, case.sequences, page_size).run(schedule)
        for expected, actual in zip(case.expected, found, strict=True):
            assert expected.std() > 0.05, "the oracle's logits should differ from one another"
            error = ((actual - expected).abs().max() / expected.abs().max()).item()
            assert error < TOLERANCE, f"{name}, page size {page_size}: relative error {error:.2e}"
