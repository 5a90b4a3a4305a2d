"""The attention of a decoder layer: merged projections, heads split over the ranks, keys and values in the KV store.

Does not know how attention is computed (kernels) nor which rows belong to whom (the step). Invariant: updates hidden rows in
place, and writes no KV row but those at the step's locations.
"""

from __future__ import annotations

from torch import Tensor

from sapwood.core.model_config import LayerKind, ModelConfig
from sapwood.kernels.api import AttentionShape, AttentionWeights, KVLayer, Norm, Rope, Step
from sapwood.layers.loader import Part, WeightLoader
from sapwood.layers.sharding import HeadShard, split_heads


def attention_shape(config: ModelConfig, kind: LayerKind, heads: HeadShard) -> AttentionShape:
    """One rank's share of a layer's attention."""
    return AttentionShape(
        num_heads=len(heads.queries),
        num_kv_heads=len(heads.keys),
        head_dim=config.head_dim,
        scale=config.attention_scale,
        softcap=config.attention_softcap,
        window=kind.window,
    )


class SelfAttention:
    """hidden += output(attention(norm(hidden))), with an optional norm before the sum."""

    def __init__(self, load: WeightLoader, prefix: str, kind: LayerKind, rope: Rope, norm: Norm, post_norm: Norm | None) -> None:
        config, group = load.config, load.group
        heads = split_heads(config.num_heads, config.num_kv_heads, group.rank, group.size)
        queries, keys = _rows(heads.queries, config.head_dim), _rows(heads.keys, config.head_dim)
        parts = [Part(f"{prefix}.q_proj", queries), Part(f"{prefix}.k_proj", keys), Part(f"{prefix}.v_proj", keys)]
        q_norm, k_norm = (load.norm(f"{prefix}.{which}_norm") if config.qk_norm else None for which in "qk")
        self.shape = attention_shape(config, kind, heads)
        self._kernels, self._group = load.kernels, group
        self._norm, self._post_norm = norm, post_norm
        self._weights = AttentionWeights(load.stacked(parts, config.qkv_bias), q_norm, k_norm, rope)
        self._output = load.reduced(f"{prefix}.o_proj", queries, config.output_bias)

    def __call__(self, hidden: Tensor, step: Step, kv: KVLayer) -> None:
        q = self._kernels.qkv(hidden, self._norm, self._weights, self.shape, step, kv)
        delta = self._kernels.project(self._kernels.attend(q, kv, self.shape, step), self._output)
        self._group.all_reduce_(delta)
        self._kernels.add(hidden, delta, self._post_norm)


def _rows(heads: range, head_dim: int) -> range:
    return range(heads.start * head_dim, heads.stop * head_dim)
