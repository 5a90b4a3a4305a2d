"""The torch backend: dense weights in their checkpoint's dtype, float32 activations between operations.

Knows no model and no ranks. Invariant: a matrix product runs in the weights' dtype; everything else runs in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from sapwood.kernels.api import (
    KERNEL_BACKENDS,
    AttentionShape,
    AttentionWeights,
    KVLayer,
    Linear,
    Norm,
    Step,
    StepGeometry,
)
from sapwood.kernels.reference.attention import attend_tile, plan_tiles
from sapwood.kernels.reference.elementwise import gated, rms_norm, rotate, soft_cap


@dataclass(frozen=True, slots=True)
class DenseWeights:
    """How this backend packs a Linear: weight [out_features, in_features] and bias [out_features] in one dtype."""

    weight: Tensor
    bias: Tensor | None


def _project(x: Tensor, linear: Linear) -> Tensor:
    dense: DenseWeights = linear.data
    return F.linear(x.to(dense.weight.dtype), dense.weight, dense.bias).float()


@KERNEL_BACKENDS.register("reference")
class ReferenceKernels:
    """Implements `kernels.api.Kernels`; stateless."""

    name: Final = "reference"

    def prepare_linear(self, parts: Sequence[Tensor], bias: Tensor | None) -> Linear:
        """See Kernels.prepare_linear. A single part is kept as it is, so tied matrices stay one tensor."""
        weight = parts[0] if len(parts) == 1 else torch.cat(list(parts))
        return Linear(weight.shape[1], weight.shape[0], DenseWeights(weight, None if bias is None else bias.to(weight.dtype)))

    def begin_step(self, geometry: StepGeometry, shapes: Sequence[AttentionShape]) -> Step:
        """See Kernels.begin_step. Attention is planned once per kind."""
        tiles = {shape: plan_tiles(geometry, shape) for shape in set(shapes)}
        return Step(geometry.positions, geometry.locations, tiles)

    def embed(self, token_ids: Tensor, table: Linear, first_id: int, scale: float) -> Tensor:
        """See Kernels.embed."""
        dense: DenseWeights = table.data
        rows = token_ids - first_id
        is_inside = (rows >= 0) & (rows < table.out_features)
        embedded = F.embedding(rows.where(is_inside, 0), dense.weight).float()
        return embedded * (scale * is_inside[:, None])

    def qkv(
        self, hidden: Tensor, norm: Norm, weights: AttentionWeights, shape: AttentionShape, step: Step, kv: KVLayer
    ) -> Tensor:
        """See Kernels.qkv."""
        heads = _project(rms_norm(hidden, norm), weights.qkv).view(hidden.shape[0], -1, shape.head_dim)
        q, k, v = torch.split(heads, [shape.num_heads, shape.num_kv_heads, shape.num_kv_heads], dim=1)
        if weights.q_norm is not None and weights.k_norm is not None:
            q, k = rms_norm(q, weights.q_norm), rms_norm(k, weights.k_norm)
        q, k = rotate((q, k), weights.rope, step.positions)
        kv.k.index_copy_(0, step.locations, k.to(kv.k.dtype))
        kv.v.index_copy_(0, step.locations, v.to(kv.v.dtype))
        return q

    def attend(self, q: Tensor, kv: KVLayer, shape: AttentionShape, step: Step) -> Tensor:
        """See Kernels.attend."""
        output = torch.empty_like(q)
        for tile in step.attention[shape]:
            output[tile.tokens] = attend_tile(q[tile.tokens], kv, shape, tile)
        return output.view(q.shape[0], -1)

    def project(self, x: Tensor, linear: Linear) -> Tensor:
        """See Kernels.project."""
        return _project(x, linear)

    def mlp(self, hidden: Tensor, norm: Norm, gate_up: Linear, down: Linear, activation: str) -> Tensor:
        """See Kernels.mlp."""
        return _project(gated(_project(rms_norm(hidden, norm), gate_up), activation), down)

    def add(self, hidden: Tensor, delta: Tensor, norm: Norm | None) -> None:
        """See Kernels.add."""
        hidden += delta if norm is None else rms_norm(delta, norm)

    def logits(self, hidden: Tensor, rows: Tensor, norm: Norm, head: Linear, softcap: float) -> Tensor:
        """See Kernels.logits."""
        return soft_cap(_project(rms_norm(hidden[rows], norm), head), softcap)

    def copy_rows(self, kv: KVLayer, sources: Tensor, targets: Tensor) -> None:
        """See Kernels.copy_rows."""
        kv.k[targets] = kv.k[sources]
        kv.v[targets] = kv.v[sources]
