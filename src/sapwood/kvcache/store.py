"""The KV store: for every layer, one row of keys and one of values per location of its kind.

Does not know pages, slots or requests; a location is a row number. Invariant: a row means nothing until it is written, and
it changes only through a forward pass (at its step's locations) or `copy_rows`. On a CPU a row that is not used costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sapwood.kernels.api import AttentionShape, Kernels, KVLayer


class KVStore:
    """K and V of all layers, [num_locations, kv_heads, head_dim] each, or [num_window_locations, ...] where a layer sees a window
    and such layers have locations of their own (more than 0)."""

    def __init__(
        self,
        shapes: Sequence[AttentionShape],
        num_locations: int,
        dtype: torch.dtype,
        device: torch.device,
        kernels: Kernels,
        num_window_locations: int = 0,
    ) -> None:
        self._is_apart = [num_window_locations > 0 and shape.window > 0 for shape in shapes]

        def rows(shape: AttentionShape, *, is_apart: bool) -> Tensor:
            count = num_window_locations if is_apart else num_locations
            return torch.empty(count, shape.num_kv_heads, shape.head_dim, dtype=dtype, device=device)

        self.layers = [
            KVLayer(rows(shape, is_apart=is_apart), rows(shape, is_apart=is_apart))
            for shape, is_apart in zip(shapes, self._is_apart, strict=True)
        ]
        self.device = device
        self._kernels = kernels

    @property
    def num_bytes(self) -> int:
        """Memory that the store takes on this rank."""
        return sum(tensor.nbytes for layer in self.layers for tensor in (layer.k, layer.v))

    def copy_rows(self, sources: Tensor, targets: Tensor, *, of_window: bool = False) -> None:
        """Copy whole rows of every layer without (or with) locations of its own; reads come before writes (int64 [C] each)."""
        for layer, is_apart in zip(self.layers, self._is_apart, strict=True):
            if is_apart == of_window:
                self._kernels.copy_rows(layer, sources, targets)
