"""What keys are divided by before they are rounded to 8 bits, and queries multiplied by, so that their products stay the same.

A few dimensions of some models' keys are many times larger than the others (Qwen2.5's biases do that), and the others would be
rounded with the outliers' step. Pure arithmetic on weights. Invariant: powers of two, equal for the two dimensions that a
rotation mixes, so that dividing and multiplying is exact wherever it happens.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sapwood.core.model_config import ModelConfig
from sapwood.kernels.native import _native

FloatArray = NDArray[np.float32]
LARGEST_EXPONENT = 16


class KeyWeights(Protocol):
    """What is read of a `WeightSource`."""

    def weight(self, name: str) -> _native.Weight: ...

    def vector(self, name: str) -> FloatArray: ...


def balance_keys(config: ModelConfig, source: KeyWeights, layer: int) -> FloatArray:
    """Powers of two near the size of each key dimension of a layer, relative to its median: float32 [kv_heads * head_dim]."""
    sizes = _key_sizes(config, source, f"model.layers.{layer}.").reshape(config.num_kv_heads, config.head_dim)
    first, second = np.split(sizes, 2, axis=1)  # dimension i is rotated with i + head_dim / 2
    sizes = np.tile(np.hypot(first, second), 2)
    relative = sizes / np.maximum(np.median(sizes, axis=1, keepdims=True), 1e-30)
    exponents = np.clip(np.rint(np.log2(np.maximum(relative, 1e-30))), -LARGEST_EXPONENT, LARGEST_EXPONENT)
    return np.asarray(np.exp2(exponents), dtype=np.float32).reshape(-1)


def _key_sizes(config: ModelConfig, source: KeyWeights, at: str) -> NDArray[np.float64]:
    """Expected magnitude of each key dimension before the rotation, for normed inputs of mean square 1, up to a common factor."""
    plus = 1.0 if config.norm_plus_one else 0.0
    if config.qk_norm:
        return np.tile(np.abs(source.vector(at + "self_attn.k_norm.weight").astype(np.float64) + plus), config.num_kv_heads)
    keys = source.weight(at + "self_attn.k_proj.weight")
    rows = keys.dequantise(0, keys.rows) * (source.vector(at + "input_layernorm.weight") + np.float32(plus))
    squares = np.square(rows, dtype=np.float64).sum(axis=1)
    if config.qkv_bias:
        squares += np.square(source.vector(at + "self_attn.k_proj.bias"), dtype=np.float64)
    return np.asarray(np.sqrt(squares))
