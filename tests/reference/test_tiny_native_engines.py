"""The native engine agrees with transformers on tiny random models of every architecture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from engine_driver import EngineDriver
from tiny_models import MAX_POSITION, TINY_MODELS, VOCAB_SIZE, build, logits_of
from transformers import PreTrainedModel

pytest.importorskip("sapwood.kernels.native._native", reason="the native module is not built; see csrc/README.md")

from sapwood.core.plan import EngineLimits, RowRun
from sapwood.core.sampling import LogprobOptions
from sapwood.engine.native_lifecycle import NativeTypes, create_native_engine
from sapwood.engine.native_runner import NativeEngine
from sapwood.weights.checkpoint import open_checkpoint


class Case(NamedTuple):
    """An engine and its oracle."""

    engine: NativeEngine
    oracle: PreTrainedModel


@pytest.fixture(scope="module", params=TINY_MODELS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    folder: Path = tmp_path_factory.mktemp(request.param)
    oracle = build(request.param, folder)
    limits = EngineLimits(4, MAX_POSITION, 64, 16, VOCAB_SIZE, (2,))
    engine = create_native_engine(open_checkpoint(folder), limits, max_rows=200, types=NativeTypes("f32"), threads=2)
    yield Case(engine, oracle)
    engine.close()


def test_native_greedy_output_is_what_transformers_would_choose(case: Case) -> None:
    prompts = [np.random.default_rng(n).integers(0, VOCAB_SIZE, n).tolist() for n in (3, 17, 29, 50)]
    outputs = EngineDriver(case.engine).generate(prompts, 20)
    for prompt, output in zip(prompts, outputs, strict=True):
        logits = logits_of(case.oracle, prompt + output)[len(prompt) - 1 : -1]
        chosen = logits.gather(1, torch.tensor(output)[:, None])[:, 0]
        assert len(output) == 20
        assert (logits.max(dim=1).values - chosen).max() < 1e-3


@pytest.mark.parametrize(("quantization", "limit"), [("int8", 0.05), ("int4", 0.45)])
@pytest.mark.parametrize("name", ["llama-biases", "qwen3-yarn"])
def test_quantised_at_load_the_log_probabilities_stay_close(name: str, quantization: str, limit: float, tmp_path: Path) -> None:
    oracle = build(name, tmp_path)
    limits = EngineLimits(1, MAX_POSITION, 8, 16, VOCAB_SIZE, (2,))
    checkpoint = open_checkpoint(tmp_path)
    engine = create_native_engine(checkpoint, limits, max_rows=200, types=NativeTypes("f32", quantization), threads=2)
    prompt = np.random.default_rng(0).integers(0, VOCAB_SIZE, 60).tolist()
    driver, wanted = EngineDriver(engine), LogprobOptions(prompt_start=1, top_n=VOCAB_SIZE)
    _, entries = driver.run([RowRun(0, 0, 60, False)], [driver.begin(0, prompt, 0, wanted)]).prompt_logprobs[0]
    found = torch.tensor([[value for _, value in sorted(zip(e.top_ids, e.top_logprobs, strict=True))] for e in entries])
    right = logits_of(oracle, prompt)[:-1].log_softmax(1)
    engine.close()
    assert 0 < (found - right).std() < limit * right.std()
