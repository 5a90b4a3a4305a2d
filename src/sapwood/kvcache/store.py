"""The KV store: for every layer, one row of keys and one of values per location.

Does not know pages, slots or requests; a location is a row number. Invariant: a row means nothing until it is written, and
it changes only through a forward pass (at its step's locations) or `copy_rows`. On a CPU a row that is not used costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sapwood.kernels.api import AttentionShape, Kernels, KVLayer


class KVStore:
    """K and V of all layers, [num_locations, kv_heads, head_dim] each."""

    def __init__(
        self, shapes: Sequence[AttentionShape], num_locations: int, dtype: torch.dtype, device: torch.device, kernels: Kernels
    ) -> None:
        def rows(shape: AttentionShape) -> Tensor:
            return torch.empty(num_locations, shape.num_kv_heads, shape.head_dim, dtype=dtype, device=device)

        self.layers = [KVLayer(rows(shape), rows(shape)) for shape in shapes]
        self.device = device
        self._kernels = kernels

    @property
    def num_bytes(self) -> int:
        """Memory that the store takes on this rank."""
        return sum(tensor.nbytes for layer in self.layers for tensor in (layer.k, layer.v))

    def copy_rows(self, sources: Tensor, targets: Tensor) -> None:
        """Copy whole rows of every layer; all reads come before all writes (int64 [C] each)."""
        for layer in self.layers:
            self._kernels.copy_rows(layer, sources, targets)
