"""The encoder of the BERT family: embeddings of words, positions and segments, then post-norm layers that look both ways.

The plain reference in torch, on any device. Knows no requests; prompts come packed, one after another, without padding.
Invariant: a prompt's rows depend on its own ids alone, and nothing is changed but the returned tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from sapwood.core.encoder_config import EncoderConfig


class EncoderTensors(Protocol):
    """Where weights come from; see `weights.encoder.EncoderCheckpoint`."""

    @property
    def config(self) -> EncoderConfig: ...

    def tensor(self, name: str) -> Tensor:
        """The tensor called `name`."""
        ...


class Affine:
    """x @ weight.T + bias."""

    def __init__(self, load: _Placed, *names: str) -> None:
        """The matrices called `names`, one on top of the other."""
        self._weight = torch.cat([load.tensor(f"{name}.weight") for name in names])
        self._bias = torch.cat([load.tensor(f"{name}.bias") for name in names])

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self._weight, self._bias)


class LayerNorm:
    """Norm over the last dimension, with mean and bias."""

    def __init__(self, load: _Placed, name: str) -> None:
        self._weight, self._bias = load.tensor(f"{name}.weight"), load.tensor(f"{name}.bias")
        self._eps = load.source.config.norm_eps

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self._weight.shape, self._weight, self._bias, self._eps)


class EncoderLayer:
    """Attention and a plain MLP, each added to its input and normed afterwards."""

    def __init__(self, load: _Placed, prefix: str) -> None:
        self._qkv = Affine(load, f"{prefix}.query", f"{prefix}.key", f"{prefix}.value")
        self._output = Affine(load, f"{prefix}.output")
        self._up, self._down = Affine(load, f"{prefix}.up"), Affine(load, f"{prefix}.down")
        self._attention_norm = LayerNorm(load, f"{prefix}.attention_norm")
        self._mlp_norm = LayerNorm(load, f"{prefix}.mlp_norm")
        self._num_heads = load.source.config.num_heads
        self._activation = load.source.config.activation

    def __call__(self, hidden: Tensor, groups: Sequence[Tensor]) -> Tensor:
        """`hidden` [T, E]; each of `groups` holds the rows [P, L] of P prompts of one length."""
        hidden = self._attention_norm(hidden + self._output(self._attend(self._qkv(hidden), groups)))
        return self._mlp_norm(hidden + self._down(self._activate(self._up(hidden))))

    def _attend(self, qkv: Tensor, groups: Sequence[Tensor]) -> Tensor:
        attended = qkv.new_empty(qkv.shape[0], qkv.shape[1] // 3)
        for rows in groups:
            q, k, v = qkv[rows].view(*rows.shape, 3, self._num_heads, -1).permute(2, 0, 3, 1, 4)
            out = F.scaled_dot_product_attention(q, k, v)
            attended[rows.flatten()] = out.transpose(1, 2).flatten(2).flatten(0, 1)
        return attended

    def _activate(self, x: Tensor) -> Tensor:
        if self._activation == "relu":
            return F.relu(x)
        return F.gelu(x, approximate="tanh" if self._activation == "gelu_tanh" else "none")


class Encoder:
    """A whole encoder on one device."""

    def __init__(self, source: EncoderTensors, device: torch.device, dtype: torch.dtype) -> None:
        load, config = _Placed(source, device, dtype), source.config
        self.config = config
        self.device = device
        self._words, self._positions, self._segments = (load.tensor(f"{n}.weight") for n in ("words", "positions", "segments"))
        self._norm = LayerNorm(load, "norm")
        self._layers = [EncoderLayer(load, f"layers.{index}") for index in range(config.num_layers)]
        self._head = _Head(load) if config.labels else None

    def forward(self, token_ids: Tensor, segments: Tensor, lengths: Sequence[int]) -> Tensor:
        """Hidden rows [T, E] of prompts of these `lengths`, packed one after another (`token_ids`, `segments`: int64 [T])."""
        starts = [0]
        for length in lengths:
            starts.append(starts[-1] + length)
        positions = torch.cat([torch.arange(length, device=self.device) for length in lengths]) + self.config.first_position
        hidden = self._norm(self._words[token_ids] + self._positions[positions] + self._segments[segments])
        groups = [
            torch.tensor([starts[i] for i in which], device=self.device)[:, None] + torch.arange(length, device=self.device)
            for length, which in _by_length(lengths).items()
        ]
        for layer in self._layers:
            hidden = layer(hidden, groups)
        return hidden

    def classify(self, first_rows: Tensor) -> Tensor:
        """Scores of classes [P, classes] from the first hidden row [P, E] of each prompt."""
        assert self._head is not None, "the model has no classification head"
        return self._head(first_rows)


class _Head:
    """dense, tanh, classifier: the same in BERT (whose dense part is called pooler) and RoBERTa."""

    def __init__(self, load: _Placed) -> None:
        self._dense, self._classifier = Affine(load, "pooler"), Affine(load, "classifier")

    def __call__(self, rows: Tensor) -> Tensor:
        return self._classifier(torch.tanh(self._dense(rows)))


class _Placed:
    """Tensors on their device, in the type of the arithmetic."""

    def __init__(self, source: EncoderTensors, device: torch.device, dtype: torch.dtype) -> None:
        self.source, self._device, self._dtype = source, device, dtype

    def tensor(self, name: str) -> Tensor:
        return self.source.tensor(name).to(self._device, self._dtype)


def _by_length(lengths: Sequence[int]) -> dict[int, list[int]]:
    """The prompts of each length, so that those of one length can attend in one call without padding."""
    groups: dict[int, list[int]] = {}
    for index, length in enumerate(lengths):
        groups.setdefault(length, []).append(index)
    return groups
