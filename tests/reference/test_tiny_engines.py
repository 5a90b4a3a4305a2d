"""The whole engine (plans in, ids and log-probabilities out) agrees with transformers on tiny random models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from engine_driver import EngineDriver
from tiny_models import MAX_POSITION, VOCAB_SIZE, build, logits_of
from transformers import PreTrainedModel

from sapwood.distributed.group import SoloGroup
from sapwood.engine.lifecycle import EngineOptions, create_engine
from sapwood.engine.runner import TorchEngine
from sapwood.weights.checkpoint import open_checkpoint

NAMES = ["llama", "mistral-window", "qwen2", "qwen3", "gemma3"]


class Case(NamedTuple):
    """An engine and its oracle."""

    engine: TorchEngine
    oracle: PreTrainedModel


@pytest.fixture(scope="module", params=NAMES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    folder: Path = tmp_path_factory.mktemp(request.param)
    oracle = build(request.param, folder)
    options = EngineOptions(num_slots=4, max_len=MAX_POSITION, num_pages=64, page_size=8, device="cpu")
    engine = create_engine(options, open_checkpoint(folder), SoloGroup())
    yield Case(engine, oracle)
    engine.close()


def test_greedy_output_is_what_transformers_would_choose(case: Case) -> None:
    prompts = [np.random.default_rng(n).integers(0, VOCAB_SIZE, n).tolist() for n in (3, 17, 29, 50)]
    outputs = EngineDriver(case.engine).generate(prompts, 20)
    for prompt, output in zip(prompts, outputs, strict=True):
        logits = logits_of(case.oracle, prompt + output)[len(prompt) - 1 : -1]
        chosen = logits.gather(1, torch.tensor(output)[:, None])[:, 0]
        assert len(output) == 20
        assert (logits.max(dim=1).values - chosen).max() < 1e-3


def test_scores_along_a_text_agree_with_transformers(case: Case) -> None:
    ids = np.random.default_rng(1).integers(0, VOCAB_SIZE, 100).tolist()
    scores = EngineDriver(case.engine, seed=5).score(ids, first=11)
    best = logits_of(case.oracle, ids)[10:-1].topk(2).values
    gaps = (best[:, 0] - best[:, 1]).tolist()
    assert len(scores) == 89
    assert [score.gap for score in scores] == pytest.approx(gaps, abs=1e-3)
