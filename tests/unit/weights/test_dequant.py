"""Every readable storage type against the reference implementation; every other type is refused by name."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from sapwood.errors import WeightsError
from sapwood.weights.dequant import READABLE_TYPES, dequantise
from sapwood.weights.ggml_types import GGML_TYPES

BY_NAME = {kind.name: kind for kind in GGML_TYPES.values()}


def stored(name: str, rows: int, columns: int) -> np.ndarray:
    """Random stored rows: quantised where the reference can, otherwise random bits under finite scales."""
    generator = np.random.default_rng(5)
    kind = BY_NAME[name]
    if name in ("Q4_K", "Q5_K", "Q6_K"):
        blocks = generator.integers(0, 256, (rows * columns // kind.block_size, kind.block_bytes), dtype=np.uint8)
        scales = generator.uniform(0.001, 0.1, (len(blocks), 2)).astype(np.float16).view(np.uint8)
        place = slice(208, 210) if name == "Q6_K" else slice(0, 4)
        blocks[:, place] = scales[:, : place.stop - place.start]
        return blocks.reshape(rows, kind.row_bytes(columns))
    values = generator.standard_normal((rows, columns), dtype=np.float32)
    return quantize(values, gguf.GGMLQuantizationType[name]).view(np.uint8).reshape(rows, kind.row_bytes(columns))


@pytest.mark.parametrize("name", READABLE_TYPES)
@pytest.mark.parametrize("shape", [(1, 256), (3, 512), (33, 256), (16, 4096)])
def test_agrees_with_the_reference(name, shape):
    data = stored(name, *shape)
    data.flags.writeable = False
    expected = dequantize(data, gguf.GGMLQuantizationType[name]).reshape(shape)
    found = dequantise(data, BY_NAME[name])
    assert found.dtype == np.float32 and found.flags.writeable
    assert np.isfinite(found).all() and np.array_equal(found, expected)


@pytest.mark.parametrize("name", READABLE_TYPES)
def test_no_rows_and_strided_rows(name):
    data = stored(name, 4, 512)
    kind = BY_NAME[name]
    half = kind.row_bytes(256)
    assert dequantise(data[:0], kind).shape == (0, 512)
    assert np.array_equal(dequantise(data[:, half:], kind), dequantise(data, kind)[:, 256:])


def test_close_to_what_was_quantised():
    values = np.random.default_rng(1).standard_normal((8, 256), dtype=np.float32)
    for name, tolerance in {
        "F32": 0,
        "F16": 2e-3,
        "BF16": 2e-2,
        "Q8_0": 2e-2,
        "Q5_1": 0.15,
        "Q5_0": 0.2,
        "Q4_1": 0.3,
        "Q4_0": 0.4,
    }.items():
        data = quantize(values, gguf.GGMLQuantizationType[name]).view(np.uint8).reshape(8, -1)
        assert np.abs(dequantise(data, BY_NAME[name]) - values).max() <= tolerance


@pytest.mark.parametrize("name", sorted(set(BY_NAME) - set(READABLE_TYPES)))
def test_other_types_are_refused_by_name(name):
    with pytest.raises(WeightsError, match=f"stored as {name} "):
        dequantise(np.zeros((1, BY_NAME[name].block_bytes), np.uint8), BY_NAME[name])
