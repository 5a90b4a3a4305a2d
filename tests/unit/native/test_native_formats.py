"""The native module's packed formats against the gguf package's numpy definitions, and its products against float64."""

from __future__ import annotations

import numpy as np
import pytest

from sapwood.config.options import BY_NAME

gguf = pytest.importorskip("gguf")
native = pytest.importorskip("sapwood.kernels.native._native")

Q = gguf.GGMLQuantizationType
FORMATS = {
    "q4_0": Q.Q4_0,
    "q4_1": Q.Q4_1,
    "q4_k": Q.Q4_K,
    "q5_0": Q.Q5_0,
    "q5_1": Q.Q5_1,
    "q5_k": Q.Q5_K,
    "q6_k": Q.Q6_K,
    "q8_0": Q.Q8_0,
    "f16": Q.F16,
    "bf16": Q.BF16,
    "f32": Q.F32,
}
# Byte offsets of the fp16 numbers inside a block: random bytes there would be NaN or huge.
HALVES = {"q4_0": [0], "q4_1": [0, 2], "q4_k": [0, 2], "q5_0": [0], "q5_1": [0, 2], "q5_k": [0, 2], "q6_k": [208], "q8_0": [0]}


def random_raw(name: str, rows: int, k: int, seed: int) -> np.ndarray:
    """`rows` rows of random blocks, as uint8 [rows, bytes per row]."""
    rng = np.random.default_rng(seed)
    if name in ("f16", "f32", "bf16"):
        numbers = rng.normal(size=(rows, k)).astype(np.float32) * 0.1
        if name == "bf16":
            return (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return numbers.astype(np.float16 if name == "f16" else np.float32).view(np.uint8)
    block, size = gguf.GGML_QUANT_SIZES[FORMATS[name]]
    raw = rng.integers(0, 256, size=(rows, k // block, size), dtype=np.uint8)
    for at in HALVES[name]:
        raw[:, :, at : at + 2] = rng.normal(scale=0.01, size=(rows, k // block, 1)).astype(np.float16).view(np.uint8)
    return raw.reshape(rows, -1)


def reference(name: str, raw: np.ndarray, k: int) -> np.ndarray:
    if name == "f16":
        return raw.view(np.float16).astype(np.float32)
    if name == "f32":
        return raw.view(np.float32)
    return gguf.quants.dequantize(raw, FORMATS[name]).reshape(raw.shape[0], k)


@pytest.fixture(scope="module")
def pool():
    return native.ThreadPool(2, pin=False)


@pytest.mark.parametrize("name", FORMATS)
def test_packed_weights_stand_for_the_same_numbers(pool, name):
    raw = random_raw(name, 21, 768, seed=1)
    weight = native.Weight.pack(pool, name, raw.reshape(-1), 21, 768)
    assert (weight.rows, weight.k, weight.format) == (21, 768, name)
    np.testing.assert_array_equal(weight.dequantise(0, 21), reference(name, raw, 768))
    np.testing.assert_array_equal(weight.dequantise(5, 3), reference(name, raw, 768)[5:8])


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_products_agree_with_float64(pool, name, rows):
    raw = random_raw(name, 50, 512, seed=2)
    weight = native.Weight.pack(pool, name, raw.reshape(-1), 50, 512)
    x = np.random.default_rng(3).normal(size=(rows, 512)).astype(np.float32)
    y = native.linear(pool, [weight], x)
    want = x.astype(np.float64) @ reference(name, raw, 512).astype(np.float64).T
    error = np.sqrt(np.mean((y - want) ** 2) / np.mean(want**2))
    assert error < {"q8_0": 1e-3, "f16": 1e-6, "bf16": 1e-6, "f32": 1e-6}.get(name, 0.015)
    alone = np.concatenate([native.linear(pool, [weight], x[i : i + 1]) for i in range(rows)])
    assert y.tobytes() == alone.tobytes()


@pytest.mark.parametrize("name", FORMATS)
def test_every_instruction_set_gives_the_same_bits(pool, name):
    raw = random_raw(name, 33, 256, seed=4)
    weight = native.Weight.pack(pool, name, raw.reshape(-1), 33, 256)
    x = np.random.default_rng(5).normal(size=(11, 256)).astype(np.float32)
    results = {}
    for isa, _ in BY_NAME["cpu_isa"].values:
        try:
            native.select_isa(isa)
        except native.NativeError:
            continue
        results[isa] = native.linear(pool, [weight], x).tobytes()
    native.select_isa("auto")
    assert "portable" in results and len(set(results.values())) == 1


def test_sizes_that_do_not_fit_are_refused(pool):
    raw = random_raw("q4_0", 4, 64, seed=6).reshape(-1)
    for bad in (raw[:-1], np.concatenate([raw, raw[:1]])):
        with pytest.raises(ValueError, match="takes 144 bytes"):
            native.Weight.pack(pool, "q4_0", bad, 4, 64)
    with pytest.raises(ValueError, match="blocks of 32"):
        native.Weight.pack(pool, "q4_0", raw, 4, 63)
    with pytest.raises(ValueError, match="known: q4_0"):
        native.Weight.pack(pool, "iq2_xs", raw, 4, 64)
    with pytest.raises(ValueError, match="not as wide"):
        native.linear(pool, [native.Weight.pack(pool, "q4_0", raw, 4, 64)], np.zeros((1, 32), np.float32))
    with pytest.raises(ValueError):
        native.Weight.pack(pool, "q4_0", raw, 4, 64).dequantise(3, 2)
    with pytest.raises(ValueError, match="instruction|unknown"):
        native.select_isa("sse9")


@pytest.mark.parametrize("name", ["q8_0", "q4_1"])
@pytest.mark.parametrize("k", [37, 256])
def test_floats_are_quantised_at_load(pool, name, k):
    values = np.random.default_rng(7).normal(size=(20, k)).astype(np.float32)
    weight = native.Weight.quantise(pool, name, values)
    close = weight.dequantise(0, 20)
    assert close.shape == values.shape and np.sqrt(np.mean((close - values) ** 2)) < (0.01 if name == "q8_0" else 0.1)
    if k % 32 == 0:  # no worse than the gguf package's own rounding
        theirs = gguf.quants.dequantize(gguf.quants.quantize(values, FORMATS[name]), FORMATS[name])
        assert np.mean((close - values) ** 2) <= 1.02 * np.mean((theirs - values) ** 2)


@pytest.mark.parametrize("name", FORMATS)
def test_byte_counts_that_lie_are_refused_before_a_byte_is_read(pool, name):
    raw = random_raw(name, 4, 256, seed=7).reshape(-1)
    size = len(raw)
    for part in (raw[:0], raw[: size // 2], raw[: size - 1], np.concatenate([raw, raw])):
        with pytest.raises(native.NativeError, match="takes"):
            native.Weight.pack(pool, name, part, 4, 256)
    for rows, k in [(5, 256), (4, 512), (0, 256), (-4, 256), (4, 0), (4, -256), (2**31, 256), (2**30, 2**30), (2**62, 2**62)]:
        with pytest.raises(native.NativeError):
            native.Weight.pack(pool, name, raw, rows, k)
