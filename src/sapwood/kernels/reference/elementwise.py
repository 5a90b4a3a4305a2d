"""Row-wise arithmetic of the torch backend: norms, rotation, activations, soft caps. Pure functions on float32 tensors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sapwood.errors import ConfigError
from sapwood.kernels.api import Norm, Rope


def rms_norm(x: Tensor, norm: Norm) -> Tensor:
    """x of any shape, normalised over its last dimension."""
    return F.rms_norm(x, (x.shape[-1],), norm.weight, norm.eps)


def rotate(heads: tuple[Tensor, Tensor], rope: Rope, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate q and k ([T, heads, D] each) by the angles of their positions ([T])."""
    cos, sin = rope.cos[positions][:, None], rope.sin[positions][:, None]
    q, k = heads
    return _rotate(q, cos, sin), _rotate(k, cos, sin)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


def gated(gate_up: Tensor, activation: str) -> Tensor:
    """activation(first half) * second half of the last dimension; `activation` is silu or gelu_tanh."""
    gate, up = gate_up.chunk(2, dim=-1)
    if activation == "silu":
        return F.silu(gate) * up
    if activation == "gelu_tanh":
        return F.gelu(gate, approximate="tanh") * up
    raise ConfigError(f"activation {activation!r} is not supported; known: gelu_tanh, silu")


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """x squeezed smoothly into (-cap, cap); 0.0 leaves x alone."""
    return x if cap == 0.0 else torch.tanh(x / cap) * cap
