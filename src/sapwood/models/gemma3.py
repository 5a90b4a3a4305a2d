"""Gemma 3 (text): norms before and after attention and MLP, local and global layers, scaled embeddings, q/k norms."""

from sapwood.models.blocks import Names
from sapwood.models.registry import ARCHITECTURES

NAMES = ARCHITECTURES.register("gemma3")(
    Names(
        attention_post_norm="post_attention_layernorm",
        mlp_norm="pre_feedforward_layernorm",
        mlp_post_norm="post_feedforward_layernorm",
    )
)
