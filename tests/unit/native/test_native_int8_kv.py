"""8-bit pages: stored as the reference twin says, to the bit, and an engine on them computes what the twin's would."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("sapwood.kernels.native._native", reason="the native module is not built; see csrc/README.md")

from native_model import CONFIG, LIMITS, MAX_LEN, VOCAB_SIZE, Hand, Heard, LoudCheckpoint, ask, make_native

from sapwood.core.sampling import LogprobOptions, SamplingParams
from sapwood.distributed.group import SoloGroup
from sapwood.engine.lifecycle import EngineOptions, create_engine
from sapwood.engine.native_lifecycle import NativeTypes
from sapwood.kernels.api import KERNEL_BACKENDS, AttentionShape, AttentionWeights, KVLayer, Norm, Step
from sapwood.kernels.native import _native, record
from sapwood.kernels.native.balance import balance_keys
from sapwood.kernels.reference import ReferenceKernels
from sapwood.kernels.reference.int8_rows import SCALE_DIMS, round_to_int8
from sapwood.worker.backends import NATIVE_SCALE_DIMS

HEADS = 3


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(0, 31), st.integers(0, 2**32 - 1), st.sampled_from([1e-9, 1e-5, 0.01, 1.0, 300.0, 1e5]))
def test_a_stored_token_reads_as_the_twin_rounds_it(head_dim: int, location: int, seed: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    rows = (rng.standard_normal((2, HEADS, head_dim)) * size).astype(np.float32)
    rows *= rng.choice([0.0, 1.0, 1.0, 30.0], rows.shape).astype(np.float32)  # zeros and outliers
    pool = _native.KvPool(2, HEADS, head_dim, 2, "i8")
    pool.write_token(1, location, rows[0], rows[1])
    read = pool.read_token(1, location)
    assert np.array_equal(read, round_to_int8(torch.from_numpy(rows)).numpy().reshape(read.shape), equal_nan=True)
    assert not pool.read_token(0, location).any() and not pool.read_token(1, (location + 1) % 32).any()


@pytest.mark.parametrize("isa", ["portable", "auto"])
def test_every_instruction_set_stores_alike(isa: str) -> None:
    rows = np.random.default_rng(1).standard_normal((2, HEADS, 72)).astype(np.float32)
    pool = _native.KvPool(1, HEADS, 72, 1, "i8")
    _native.select_isa(isa)
    try:
        pool.write_token(0, 5, rows[0], rows[1])
    finally:
        _native.select_isa("auto")
    assert np.array_equal(pool.read_token(0, 5), round_to_int8(torch.from_numpy(rows)).numpy().reshape(-1, 72))


def test_memory_is_little_more_than_half_of_float16() -> None:
    sizes = {kind: _native.KvPool(24, 4, 64, 100, kind).size_bytes for kind in ("f32", "f16", "i8")}
    assert sizes["f32"] == 2 * sizes["f16"] and sizes["i8"] * 32 == sizes["f16"] * 17
    assert NATIVE_SCALE_DIMS["i8"] == SCALE_DIMS
    assert sizes["i8"] == 100 * 16 * 24 * 4 * 2 * (64 + 2 * 64 // SCALE_DIMS)


class RoundingKernels(ReferenceKernels):
    """The reference on rows that are rounded as 8-bit pages round them."""

    def qkv(
        self, hidden: Tensor, norm: Norm, weights: AttentionWeights, shape: AttentionShape, step: Step, kv: KVLayer
    ) -> Tensor:
        q = super().qkv(hidden, norm, weights, shape, step, kv)
        for rows in (kv.k, kv.v):
            rows[step.locations] = round_to_int8(rows[step.locations])
        return q


def test_an_engine_on_8_bit_pages_says_what_the_twin_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "balance_keys", lambda config, source, layer: None)  # the twin rounds keys as they are
    monkeypatch.setitem(KERNEL_BACKENDS._entries, "rounding", RoundingKernels)
    options = EngineOptions(LIMITS.num_slots, MAX_LEN, LIMITS.num_pages, 16, device="cpu", kernels="rounding")
    wanted = LogprobOptions(output=True, prompt_start=1)
    params = SamplingParams(temperature=0.0, seed=0, max_new_tokens=1)
    rng = np.random.default_rng(2)
    requests = [ask(n, rng.integers(3, VOCAB_SIZE, 20 + 25 * n).tolist(), params, wanted) for n in range(8)]

    def told(engine: object) -> np.ndarray:
        heard: dict[int, Heard] = Hand(engine).run(requests)  # type: ignore[arg-type]
        engine.close()  # type: ignore[attr-defined]
        return np.array([entry.logprob for n in sorted(heard) for entry in heard[n].prompt_logprobs])

    twin = told(create_engine(options, LoudCheckpoint(CONFIG), SoloGroup()))
    found, exact = told(make_native(types=NativeTypes("i8"))), told(make_native(types=NativeTypes("f32")))
    assert np.abs(found - twin).max() < 0.1 * np.abs(exact - twin).max()  # near ties round either way; the rest agrees
    assert np.abs(found - twin).mean() < 0.03 * np.abs(exact - twin).mean()


class Source:
    """One layer's key weights: `outlier` dimensions (and their partners in the rotation) have a large bias."""

    def __init__(self, outlier: int) -> None:
        rng = np.random.default_rng(4)
        heads, rows = CONFIG.num_kv_heads, CONFIG.num_kv_heads * CONFIG.head_dim
        self._keys = rng.standard_normal((rows, CONFIG.hidden_size)).astype(np.float32)
        self._bias = np.zeros((heads, CONFIG.head_dim), dtype=np.float32)
        self._bias[1, outlier] = 1000.0

    def weight(self, name: str) -> _native.Weight:
        return _native.Weight.pack(_native.ThreadPool(1), "f32", self._keys.view(np.uint8).reshape(-1), *self._keys.shape)

    def vector(self, name: str) -> np.ndarray:
        return self._bias.reshape(-1) if name.endswith("bias") else np.ones(CONFIG.hidden_size, dtype=np.float32)


@pytest.mark.parametrize("outlier", [3, 11])
def test_outliers_are_balanced_with_what_the_rotation_mixes_them_with(outlier: int) -> None:
    balance = balance_keys(CONFIG, Source(outlier), 0).reshape(CONFIG.num_kv_heads, CONFIG.head_dim)
    assert (np.exp2(np.rint(np.log2(balance))) == balance).all()
    assert balance[1, 3] == balance[1, 11] and 64 <= balance[1, 3] <= 256
    balance[1, [3, 11]] = 1
    assert ((balance >= 0.5) & (balance <= 2)).all()


def test_a_balance_that_is_no_power_of_two_is_refused() -> None:
    program = _native.Program(_native.ThreadPool(1), _native.KvPool(1, 1, 16, 4, "i8"), 1, 32, 10, 8, 8)
    rope = _native.Rope(np.zeros(32 * 8, dtype=np.float32), np.zeros(32 * 8, dtype=np.float32))
    qkv = program.buffer(64)
    for wrong in (np.full(16, 3.0), np.zeros(16), np.ones(8), np.full(16, np.nan), np.full(16, -2.0)):
        with pytest.raises(_native.NativeError, match="balance"):
            program.heads(qkv, 0, 2, 16, rope, balance=wrong.astype(np.float32))
    program.heads(qkv, 0, 2, 16, rope, balance=np.full(16, 0.25, dtype=np.float32))
