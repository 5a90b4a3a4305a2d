"""The decoder that all architectures share: pre-norm attention and gated MLP over a float32 residual stream.

What differs between architectures is in `ModelConfig` (sizes, biases, norms, rotary kinds, windows) and in `Names`. Knows no
requests and no pages. Invariant: a forward pass changes nothing but the KV rows at the step's locations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from sapwood.core.model_config import LayerKind, ModelConfig
from sapwood.kernels.api import AttentionShape, KVLayer, Norm, Rope, Step, StepGeometry
from sapwood.layers.attention import SelfAttention
from sapwood.layers.embedding import Vocabulary
from sapwood.layers.loader import WeightLoader
from sapwood.layers.mlp import GatedMLP
from sapwood.layers.rotary import rope_tables


@dataclass(frozen=True, slots=True)
class Names:
    """Where an architecture keeps its tensors; the defaults are Llama's. Norm names are relative to a layer.

    The two post norms act on what attention and MLP add to the residual stream; None means that there are none.
    """

    embedding: str = "model.embed_tokens"
    final_norm: str = "model.norm"
    head: str = "lm_head"
    layer: str = "model.layers"
    attention: str = "self_attn"
    mlp: str = "mlp"
    attention_norm: str = "input_layernorm"
    attention_post_norm: str | None = None
    mlp_norm: str = "post_attention_layernorm"
    mlp_post_norm: str | None = None


class DecoderLayer:
    """Attention, then MLP, each adding to the hidden rows in place."""

    def __init__(self, load: WeightLoader, names: Names, index: int, kind: LayerKind, rope: Rope) -> None:
        prefix = f"{names.layer}.{index}"

        def norm(name: str | None) -> Norm | None:
            return None if name is None else load.norm(f"{prefix}.{name}")

        attention_norm, mlp_norm = load.norm(f"{prefix}.{names.attention_norm}"), load.norm(f"{prefix}.{names.mlp_norm}")
        self.attention = SelfAttention(
            load, f"{prefix}.{names.attention}", kind, rope, attention_norm, norm(names.attention_post_norm)
        )
        self.mlp = GatedMLP(load, f"{prefix}.{names.mlp}", mlp_norm, norm(names.mlp_post_norm))

    def __call__(self, hidden: Tensor, step: Step, kv: KVLayer) -> None:
        self.attention(hidden, step, kv)
        self.mlp(hidden)


class Decoder:
    """A whole model on one rank. `max_len` is the number of positions that it can be asked for."""

    def __init__(self, load: WeightLoader, names: Names, max_len: int) -> None:
        config = load.config
        ropes = {
            kind.rope: rope_tables(kind.rope, config.head_dim, max_len, load.device) for kind in dict.fromkeys(config.layers)
        }
        self.config: ModelConfig = config
        self.max_len = max_len
        self.kernels = load.kernels
        self._vocabulary = Vocabulary(load, names.embedding, names.final_norm, names.head)
        self._layers = [DecoderLayer(load, names, index, kind, ropes[kind.rope]) for index, kind in enumerate(config.layers)]

    @property
    def shapes(self) -> list[AttentionShape]:
        """Attention of each layer on this rank."""
        return [layer.attention.shape for layer in self._layers]

    def forward(self, token_ids: Tensor, geometries: Sequence[StepGeometry], kv: Sequence[KVLayer]) -> Tensor:
        """Run T tokens (integers [T]) through all layers and store their keys and values: hidden rows, float32 [T, hidden].

        Layers with a window go by the last of the geometries, the others by the first.
        """
        shapes = self.shapes
        steps = {}
        for window in dict.fromkeys(shape.window for shape in shapes):
            alike = [shape for shape in shapes if shape.window == window]
            steps[window] = self.kernels.begin_step(geometries[-1 if window else 0], alike)
        hidden = self._vocabulary.embed(token_ids)
        for layer, shape, rows in zip(self._layers, shapes, kv, strict=True):
            layer(hidden, steps[shape.window], rows)
        return hidden

    def final(self, rows: Tensor) -> Tensor:
        """Hidden rows [R, hidden] as they leave the model: with the final norm, float32, the same on every rank."""
        return self._vocabulary.final(rows)

    def logits(self, hidden: Tensor, rows: Tensor) -> Tensor:
        """Logits for the token after each of `hidden[rows]`: float32 [len(rows), vocab_size], the same on every rank."""
        return self._vocabulary.logits(hidden, rows)
