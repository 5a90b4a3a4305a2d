"""Layers with a window and pages of their own compute what they compute in one pool with all others, to the bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("sapwood.kernels.native._native", reason="the native module is not built; see csrc/README.md")

from native_model import CONFIG, EOS, MAX_LEN, ROPE, VOCAB_SIZE, Hand, LoudCheckpoint, ask, make_native

from sapwood.core.model_config import LayerKind, ModelConfig
from sapwood.core.plan import Engine, EngineLimits, window_claim
from sapwood.core.sampling import LogprobOptions, SamplingParams
from sapwood.distributed.group import SoloGroup
from sapwood.engine.lifecycle import EngineOptions, create_engine
from sapwood.engine.native_lifecycle import NativeTypes, create_native_engine
from sapwood.messages.types import StepStats, Submit

WINDOW = 50
ALL_WINDOWS = replace(CONFIG, layers=(LayerKind(WINDOW, ROPE), LayerKind(20, ROPE)))
TIGHT = {"max_reserved_tokens": 1, "publish_tokens": 16}
"""Pages run out, so that requests are retracted and matches lose their window."""


def requests() -> list[Submit]:
    """Prompts that share beginnings, some of them twins; greedy and drawn, scored and not."""
    rng = np.random.default_rng(5)
    common = rng.integers(3, VOCAB_SIZE, 120).tolist()
    made = []
    for index in range(12):
        ids = common[: 40 * (index % 4)] + rng.integers(3, VOCAB_SIZE, 5 + 7 * index).tolist()
        params = SamplingParams(temperature=0.8 * (index % 3), seed=index, max_new_tokens=10 + 3 * index, ignore_eos=True)
        start = 10 if index % 5 == 0 else None
        made.append(ask(2 * index, ids, params, LogprobOptions(output=True, top_n=3, prompt_start=start)))
        made.append(ask(2 * index + 1, ids, params, LogprobOptions(output=True, top_n=3)))
    return made


def limits(num_pages: int, num_claims: int, page_size: int = 16) -> EngineLimits:
    num_window_pages = num_claims * window_claim(WINDOW, page_size)
    window = WINDOW if num_claims else 0
    return EngineLimits(
        8, MAX_LEN, num_pages, page_size, VOCAB_SIZE, (EOS,), window=window, num_window_pages=min(num_window_pages, num_pages)
    )


def contents(engine: Engine, **options: object) -> tuple[list[object], StepStats]:
    """What every request got, twice (the second time with a warm cache), and the end's statistics."""
    hand = Hand(engine, **options)
    heard = [one.content for _ in range(2) for one in hand.run(requests()).values()]
    stats = hand.stats()
    assert stats.law_violations_total == 0
    hand.leave()
    return heard, stats


@pytest.fixture(scope="module")
def truth() -> list[object]:
    """With one pool and no reuse."""
    return contents(make_native(limits=limits(400, 0)), cache="chunk")[0]


@pytest.mark.parametrize("page_size", [16, 32])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("budget", [7, 64, None])
def test_window_pools_change_no_bit(truth: list[object], page_size: int, overlap: bool, budget: int | None) -> None:
    engine = make_native(limits=limits(640 // page_size, 2, page_size))
    heard, stats = contents(engine, overlap=overlap, step_token_budget=budget, **TIGHT)
    assert heard == truth
    assert stats.cached_tokens_total > 0 and stats.evicted_window_pages_total > 0


def test_the_pools_hold_few_pages_for_windows() -> None:
    heard, stats = contents(make_native(limits=limits(400, 3)), cache="hash", step_token_budget=32)
    assert stats.num_window_pages == 3 * window_claim(WINDOW, 16) and stats.retractions_total == 0
    assert stats.num_free_window_pages + stats.num_evictable_window_pages == stats.num_window_pages
    assert len(heard) == 48


def torch_contents(config: ModelConfig, num_window_pages: int) -> list[object]:
    """What the torch engine gives to a few requests, one at a time: equal shapes give equal sums."""
    torch.set_num_threads(1)
    window = WINDOW if num_window_pages else 0
    options = EngineOptions(8, MAX_LEN, 40, 16, device="cpu", window=window, num_window_pages=num_window_pages)
    engine = create_engine(options, LoudCheckpoint(config), SoloGroup())
    hand = Hand(engine, max_running_requests=1, step_token_budget=32)
    heard = [one.content for submit in requests()[10:16] for one in hand.run([submit]).values()]
    hand.leave()
    return heard


@pytest.mark.parametrize("config", [CONFIG, ALL_WINDOWS], ids=["mixed", "windows only"])
def test_the_reference_engine_follows(config: ModelConfig) -> None:
    assert torch_contents(config, 12) == torch_contents(config, 0)


def test_a_model_that_has_windows_only_needs_no_other_pages() -> None:
    def make(num_claims: int) -> Engine:
        checkpoint = LoudCheckpoint(ALL_WINDOWS)
        return create_native_engine(checkpoint, limits(400, num_claims), max_rows=4096, types=NativeTypes(), threads=2)

    one, apart = contents(make(0), cache="chunk")[0], contents(make(3), step_token_budget=32)[0]
    assert apart == one
