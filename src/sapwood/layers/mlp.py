"""The gated MLP of a decoder layer, its columns split over the ranks. Knows no other layer; updates hidden rows in place."""

from __future__ import annotations

from torch import Tensor

from sapwood.kernels.api import Norm
from sapwood.layers.loader import Part, WeightLoader
from sapwood.layers.sharding import split_columns


class GatedMLP:
    """hidden += down(activation(gate(x)) * up(x)) of x = norm(hidden), with an optional norm before the sum."""

    def __init__(self, load: WeightLoader, prefix: str, norm: Norm, post_norm: Norm | None) -> None:
        config, group = load.config, load.group
        columns = split_columns(config.intermediate_size, group.rank, group.size)
        self._kernels, self._group = load.kernels, group
        self._norm, self._post_norm, self._activation = norm, post_norm, config.activation
        self._gate_up = load.stacked([Part(f"{prefix}.gate_proj", columns), Part(f"{prefix}.up_proj", columns)], config.mlp_bias)
        self._down = load.reduced(f"{prefix}.down_proj", columns, config.mlp_bias)

    def __call__(self, hidden: Tensor) -> None:
        delta = self._kernels.mlp(hidden, self._norm, self._gate_up, self._down, self._activation)
        self._group.all_reduce_(delta)
        self._kernels.add(hidden, delta, self._post_norm)
