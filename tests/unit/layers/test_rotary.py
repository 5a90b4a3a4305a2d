"""Rotary tables: the frequency rules by their properties (their values are compared with transformers in tests/reference)."""

from __future__ import annotations

import math

import pytest
import torch

from sapwood.core.model_config import RopeConfig
from sapwood.errors import ConfigError
from sapwood.kernels.api import Rope
from sapwood.layers.rotary import rope_tables

CPU = torch.device("cpu")
LLAMA3 = (("factor", 8.0), ("low_freq_factor", 1.0), ("high_freq_factor", 4.0), ("original_max_position", 64.0))
YARN = (
    ("factor", 4.0),
    ("beta_fast", 32.0),
    ("beta_slow", 1.0),
    ("original_max_position", 1024.0),
    ("attention_factor", 1.25),
)


def angles(rope: Rope) -> torch.Tensor:
    """The angle of every frequency at position 1."""
    return torch.atan2(rope.sin[1], rope.cos[1])


def test_default_frequencies_fall_from_one_to_almost_one_over_theta() -> None:
    rope = rope_tables(RopeConfig("default", 10_000.0), 8, 5, CPU)
    assert rope.cos.shape == rope.sin.shape == (5, 4)
    torch.testing.assert_close(angles(rope), torch.tensor([1.0, 0.1, 0.01, 0.001]))
    torch.testing.assert_close(rope.cos[3], (3 * angles(rope)).cos())


def test_linear_scaling_divides_every_frequency() -> None:
    plain, scaled = (
        angles(rope_tables(RopeConfig(kind, 500.0, params), 8, 2, CPU))
        for kind, params in (("default", ()), ("linear", (("factor", 4.0),)))
    )
    torch.testing.assert_close(scaled, plain / 4)


def test_explicit_factors_divide_their_own_frequency() -> None:
    plain = angles(rope_tables(RopeConfig("default", 500.0), 8, 2, CPU))
    params = (("0", 1.0), ("1", 2.0), ("2", 4.0), ("3", 8.0))
    torch.testing.assert_close(
        angles(rope_tables(RopeConfig("factors", 500.0, params), 8, 2, CPU)), plain / torch.tensor([1.0, 2.0, 4.0, 8.0])
    )


def test_llama3_keeps_fast_waves_and_stretches_slow_ones() -> None:
    plain = angles(rope_tables(RopeConfig("default", 10_000.0), 64, 2, CPU))
    ratio = plain / angles(rope_tables(RopeConfig("llama3", 10_000.0, LLAMA3), 64, 2, CPU))
    turns = 64 * plain / (2 * math.pi)
    torch.testing.assert_close(ratio[turns > 4], torch.ones(int((turns > 4).sum())), rtol=1e-5, atol=0)
    torch.testing.assert_close(ratio[turns < 1], torch.full((int((turns < 1).sum()),), 8.0), rtol=1e-5, atol=0)
    assert (ratio.diff() >= -1e-5).all()


def test_yarn_ramps_between_and_scales_the_magnitude() -> None:
    plain = rope_tables(RopeConfig("default", 10_000.0), 64, 2, CPU)
    yarn = rope_tables(RopeConfig("yarn", 10_000.0, YARN), 64, 2, CPU)
    ratio = angles(plain) / angles(yarn)
    assert ratio[0] == pytest.approx(1.0) and ratio[-1] == pytest.approx(4.0)
    assert (ratio.diff() >= -1e-5).all()
    torch.testing.assert_close((yarn.cos**2 + yarn.sin**2).sqrt(), torch.full((2, 32), 1.25))


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="dynamic.*known: default"):
        rope_tables(RopeConfig("dynamic", 10_000.0), 8, 2, CPU)
