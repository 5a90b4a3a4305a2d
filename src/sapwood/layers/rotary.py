"""Rotary position embedding: from a RopeConfig to tables of cosines and sines.

Knows the frequency rules (default, linear, llama3, yarn, and explicit factors as GGUF stores them), not where they are
configured. Invariant: tables are float32 and cover every position that the engine may serve.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from sapwood.core.model_config import RopeConfig
from sapwood.kernels.api import Rope
from sapwood.registry import Registry

FrequencyRule = Callable[[RopeConfig, Tensor], Tensor]
ROPE_KINDS: Registry[FrequencyRule] = Registry("rope kind")


def rope_tables(rope: RopeConfig, head_dim: int, num_positions: int, device: torch.device) -> Rope:
    """Tables for positions [0, num_positions), [num_positions, head_dim / 2] each."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = ROPE_KINDS.get(rope.kind)(rope, 1.0 / rope.theta**exponents)
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * frequencies
    magnitude = rope["attention_factor"] if rope.kind == "yarn" else 1.0
    return Rope((angles.cos() * magnitude).to(device), (angles.sin() * magnitude).to(device))


@ROPE_KINDS.register("default")
def _default(rope: RopeConfig, frequencies: Tensor) -> Tensor:
    return frequencies


@ROPE_KINDS.register("linear")
def _linear(rope: RopeConfig, frequencies: Tensor) -> Tensor:
    return frequencies / rope["factor"]


@ROPE_KINDS.register("factors")
def _factors(rope: RopeConfig, frequencies: Tensor) -> Tensor:
    """Explicit divisors, one per frequency; `params` holds them in order."""
    return frequencies / torch.tensor([factor for _, factor in rope.params], dtype=torch.float32)


@ROPE_KINDS.register("llama3")
def _llama3(rope: RopeConfig, frequencies: Tensor) -> Tensor:
    """Waves that turn often within the original context stay, slow ones are stretched, those between are blended."""
    turns = rope["original_max_position"] * frequencies / (2 * math.pi)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies * (kept + (1.0 - kept) / rope["factor"])


@ROPE_KINDS.register("yarn")
def _yarn(rope: RopeConfig, frequencies: Tensor) -> Tensor:
    """A linear ramp over the frequency index, between the indices that turn `beta_fast` and `beta_slow` times."""
    half = len(frequencies)

    def index_of(turns: float) -> float:
        return half * math.log(rope["original_max_position"] / (turns * 2 * math.pi)) / math.log(rope.theta)

    low = max(math.floor(index_of(rope["beta_fast"])), 0)
    high = min(math.ceil(index_of(rope["beta_slow"])), 2 * half - 1)
    span = high - low if high != low else 0.001
    stretched = ((torch.arange(half, dtype=torch.float32) - low) / span).clamp(0.0, 1.0)
    return frequencies * (1.0 - stretched + stretched / rope["factor"])
