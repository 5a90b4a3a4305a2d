"""The facts about a decoder model that layers, memory planning and the scheduler need, whatever file they came from.

Filled by `weights/` from a Hugging Face config.json or from GGUF metadata. Imports no torch. Invariant: every field is
resolved (no "None means look elsewhere"); an architecture or option that is not supported never gets this far.
"""

from __future__ import annotations

from dataclasses import dataclass

from sapwood.core.units import div_ceil


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding of one kind of layer. `kind`: default, linear, llama3, yarn or factors; `params` holds its numbers.

    linear: factor. llama3: factor, low_freq_factor, high_freq_factor, original_max_position. yarn: factor, beta_fast,
    beta_slow, original_max_position, attention_factor (already resolved: scales cos and sin). factors: what each frequency
    is divided by, in order, named "0", "1", … (all that GGUF keeps of llama3).
    """

    kind: str
    theta: float
    params: tuple[tuple[str, float], ...] = ()

    def __getitem__(self, name: str) -> float:
        return dict(self.params)[name]


@dataclass(frozen=True, slots=True)
class LayerKind:
    """Attention of one layer: `window` is the number of positions seen, itself included (0 = all of them)."""

    window: int
    rope: RopeConfig


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder-only transformer. `layers[i]` tells layer i's attention; sizes are counts of elements.

    `attention_scale` multiplies q·k; `embedding_scale` multiplies embedding rows (Gemma); `norm_plus_one` says that RMSNorm
    weights are stored as w - 1 (Gemma safetensors; GGUF already adds the one); softcaps are 0.0 when absent.
    `labels` are the classes that a classification head (`score.weight`) has scores for; empty: there is none.
    `activation`: silu or gelu_tanh. `post_norms`: Gemma's extra norms after attention and MLP.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    layers: tuple[LayerKind, ...]
    max_position: int
    norm_eps: float
    activation: str
    tie_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    post_norms: bool
    norm_plus_one: bool
    embedding_scale: float
    attention_scale: float
    attention_softcap: float
    logit_softcap: float
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    torch_dtype: str
    labels: tuple[str, ...] = ()

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def widest_window(self) -> int:
        """What layers with a window see at most; 0: all layers see everything."""
        return max(kind.window for kind in self.layers)

    def kv_bytes_per_token(self, element_bytes: int, tp_size: int = 1, scale_dims: int = 0) -> int:
        """Bytes of K and V that one token takes on one rank in all layers; heads are replicated when ranks exceed them.

        Every `scale_dims` elements of a head share a scale of two bytes (0: none).
        """
        heads = div_ceil(self.num_kv_heads, tp_size)  # of the rank that holds most, where they do not divide evenly
        scale_bytes = 2 * div_ceil(self.head_dim, scale_dims) if scale_dims else 0
        return 2 * self.num_layers * heads * (self.head_dim * element_bytes + scale_bytes)
