"""gemma-3-270m, 15 of whose 18 layers see 512 tokens: a long context holds little more than the other three layers need, and the
tokens and log-probabilities are those of one pool for all layers.

The torch engine is slow and runs with SAPWOOD_LONG_TESTS only; then both read 8,192 tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from sapwood.core.sampling import LogprobOptions, SamplingParams, TokenLogprobs
from sapwood.distributed.group import SoloGroup
from sapwood.llm import configure
from sapwood.messages.types import StepStats, Submit, pack_ids
from sapwood.weights import catalog
from sapwood.worker.build import build_worker
from sapwood.worker.core import WorkerCore

MODEL = "gemma-3-270m"
NUM_FULL_LAYERS, NUM_WINDOW_LAYERS = 3, 15
NUM_NEW = 24

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(600)]


class Outcome(NamedTuple):
    """What was generated, and what was held when the prompt had been read."""

    token_ids: list[int]
    logprobs: list[TokenLogprobs]
    held: StepStats


def read_and_continue(backend: str, num_tokens: int, *, one_pool: bool) -> Outcome:
    """One request of random ids, alone."""
    options = {"context_length": num_tokens + NUM_NEW, "max_running_requests": 2, "disable_hybrid_swa_memory": one_pool}
    config = configure(MODEL, {"kernel_backend": backend, **options})
    built = build_worker(config.model, config.engine, config.scheduler, str(catalog.resolve(MODEL)), SoloGroup())
    core = WorkerCore(built.scheduler, built.engine, config.scheduler.overlap)
    ids = [2, *np.random.default_rng(1).integers(1000, 200_000, num_tokens - 1).tolist()]
    params = SamplingParams(temperature=0.0, seed=0, max_new_tokens=NUM_NEW, ignore_eos=True)
    news = core.step([Submit(1, 1, 0, pack_ids(ids), params, LogprobOptions(output=True, top_n=2))])
    events, held = list(news.events), None
    while core.has_work:
        events += core.step([]).events
        held = held or (core.scheduler.stats() if events else None)
    problems = core.scheduler.check()
    core.close()
    assert held is not None and problems == []
    token_ids = [token_id for event in events for token_id in event.token_ids]
    return Outcome(token_ids, [entry for event in events for entry in event.logprobs or []], held)


def held_share(held: StepStats) -> float:
    """KV bytes in use by those of one pool for all layers, which all take the same per token."""
    pages = held.num_pages - held.num_free_pages - held.num_evictable_pages
    window_pages = held.num_window_pages - held.num_free_window_pages - held.num_evictable_window_pages
    layers = NUM_FULL_LAYERS + NUM_WINDOW_LAYERS
    return (pages * NUM_FULL_LAYERS + window_pages * NUM_WINDOW_LAYERS) / (pages * layers)


@pytest.mark.parametrize(
    ("backend", "num_tokens"),
    [("native", 2048), *(pytest.param(backend, 8192, marks=pytest.mark.long) for backend in ("native", "reference"))],
)
def test_windows_hold_little_and_change_nothing(backend: str, num_tokens: int) -> None:
    if backend == "native":
        pytest.importorskip("sapwood.kernels.native._native", reason="the native module is not built; see csrc/README.md")
    apart = read_and_continue(backend, num_tokens, one_pool=False)
    whole = read_and_continue(backend, num_tokens, one_pool=True)
    assert apart.token_ids == whole.token_ids and len(apart.token_ids) == NUM_NEW
    assert apart.logprobs == whole.logprobs
    assert whole.held.num_window_pages == 0
    print(f"{backend}, {num_tokens} tokens: {held_share(apart.held):.1%} of the KV bytes of one pool")
    assert held_share(apart.held) <= (0.3 if num_tokens >= 8192 else 0.5)
