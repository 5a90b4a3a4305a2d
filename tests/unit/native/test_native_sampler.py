"""The native sampler chooses what the reference chooses, but where float rounding moves a border."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("sapwood.kernels.native._native", reason="the native module is not built; see csrc/README.md")

from sapwood.core.plan import SlotStart, as_ids
from sapwood.core.sampling import LogprobOptions, SamplingParams
from sapwood.engine.native_settings import to_native_start
from sapwood.engine.sampler import Sampler
from sapwood.kernels.native import _native as native
from sapwood.kernels.reference.sampling import uniforms

EOS = (7, 9)


def random_params(rng: np.random.Generator, vocab_size: int) -> SamplingParams:
    def maybe(usual: float, other: float) -> float:
        return usual if rng.random() < 0.5 else other

    some = rng.choice(vocab_size, min(4, vocab_size), replace=False).tolist()
    return SamplingParams(
        temperature=maybe(1.0, maybe(0.0, float(rng.uniform(0.05, 2.5)))),
        top_k=int(maybe(-1, maybe(1000, int(rng.integers(1, 60))))),
        top_p=maybe(1.0, float(rng.uniform(0.02, 0.999))),
        min_p=maybe(0.0, float(rng.uniform(0, 0.2))),
        frequency_penalty=maybe(0.0, float(rng.uniform(-1, 1))),
        presence_penalty=maybe(0.0, float(rng.uniform(-1, 1))),
        repetition_penalty=maybe(1.0, float(rng.uniform(0.5, 1.9))),
        logit_bias={token_id: float(rng.normal() * 3) for token_id in some} if rng.random() < 0.3 else {},
        min_new_tokens=int(maybe(0, 4)),
        stop_token_ids=tuple(some[:2]),
        ignore_eos=bool(rng.random() < 0.3),
        seed=int(rng.integers(-(2**63), 2**63 - 1)),
    )


def both(logits: np.ndarray, params: list[SamplingParams], completions: list[list[int]]) -> tuple[list[int], list[int]]:
    """Ids of the native sampler and of the reference."""
    rows, vocab_size = logits.shape
    sampler = Sampler(rows, vocab_size, EOS, "cpu")
    table = torch.zeros(rows, 64, dtype=torch.int32)
    starts, positions = [], []
    for slot, (one, completion) in enumerate(zip(params, completions, strict=True)):
        start = SlotStart(slot, as_ids([5, 5, *completion]), 2, one, LogprobOptions(), slot % 3)
        sampler.start(start)
        table[slot, : len(start.token_ids)] = torch.tensor(start.token_ids)
        positions.append(len(start.token_ids))
        starts.append(to_native_start(start, vocab_size, EOS))
    found = native.sample(native.ThreadPool(2, pin=False), logits, starts, completions)
    return found, sampler.sample(torch.from_numpy(logits), range(rows), positions, table).token_ids.tolist()


def test_random_numbers_are_the_same_to_the_bit() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        seed, index, position = int(rng.integers(2**64, dtype=np.uint64)), int(rng.integers(128)), int(rng.integers(2**31))
        want = uniforms(np.array([seed], np.uint64), np.array([index]), np.array([position]))[0]
        assert native.random_bits(seed, index, position) * 2.0**-53 == want


@pytest.mark.parametrize("vocab_size", [12, 1000, 5000])
def test_ids_equal_the_reference_but_at_borders(vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    rows = 1500 if vocab_size < 2000 else 400
    kinds = rng.choice([0.05, 2.0, 8.0], size=(rows, 1))
    logits = (rng.normal(size=(rows, vocab_size)) * kinds).astype(np.float32)
    logits[::5] = np.round(logits[::5])  # many equal logits
    params = [random_params(rng, vocab_size) for _ in range(rows)]
    completions = [rng.integers(0, vocab_size, rng.integers(0, 12)).tolist() for _ in range(rows)]
    found, want = both(logits, params, completions)
    wrong = [row for row in range(rows) if found[row] != want[row]]
    assert not [row for row in wrong if params[row].is_greedy]
    assert len(wrong) <= rows // 500, [(params[row], found[row], want[row]) for row in wrong[:3]]


def test_the_frequencies_are_the_distribution() -> None:
    logits = np.array([2.0, 1.0, 0.5, 0.0, -1.0, 1.0, 0.9, -8.0], np.float32)
    draws = 20_000
    for options in ({}, {"top_p": 0.8}, {"top_k": 3}, {"min_p": 0.3}, {"temperature": 0.5, "top_k": 5, "top_p": 0.95}):
        params = SamplingParams(**options)
        probs = np.exp((logits - logits.max()) / params.temperature)
        order = np.lexsort((np.arange(8), -logits))
        if params.top_k > 0:
            probs[order[params.top_k :]] = 0
        probs /= probs.sum()
        before = np.cumsum(probs[order]) - probs[order]
        probs[order[before >= params.top_p]] = 0
        probs[probs < params.min_p * probs.max()] = 0
        probs /= probs.sum()
        all_params = [SamplingParams(seed=n, **options) for n in range(draws)]
        starts = [to_native_start(SlotStart(0, as_ids([]), 0, one, LogprobOptions(), 0), 8, EOS[:1]) for one in all_params]
        ids = native.sample(native.ThreadPool(1, pin=False), np.tile(logits, (draws, 1)), starts, [[]] * draws)
        counts = np.bincount(ids, minlength=8)
        assert counts[probs == 0].sum() == 0
        kept = probs > 0
        chi2 = ((counts[kept] - draws * probs[kept]) ** 2 / (draws * probs[kept])).sum()
        assert chi2 < 30, options  # 7 degrees of freedom: one in ten thousand is above 28


@pytest.mark.parametrize("options", [{"temperature": 1e300}, {"temperature": 1.1e-6}, {"logit_bias": {3: 1e300, 4: -1e300}}])
def test_extreme_but_legal_parameters_are_accepted(options: dict[str, object]) -> None:
    logits = np.random.default_rng(1).normal(size=(3, 100)).astype(np.float32)
    params = [SamplingParams(seed=row, **options) for row in range(3)]  # type: ignore[arg-type]
    found, want = both(logits, params, [[], [1], [2]])
    assert found == want
