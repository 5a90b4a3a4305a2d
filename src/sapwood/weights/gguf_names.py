"""GGUF tensor names <-> the canonical (Hugging Face) names, and the row order of llama's queries and keys.

A table and two pure functions. Does not know files. Invariant: the mapping is one to one; a name without a counterpart is
not part of the model (RoPE factors) or of an architecture that is refused elsewhere.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

_WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_PARTS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
}
_PLAIN_NORMS = {"ffn_norm": "post_attention_layernorm"}
# Gemma has four norms per layer, and its norm before the MLP has a name of its own.
_GEMMA_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


def canonical_name(gguf_name: str, post_norms: bool) -> str | None:
    """The Hugging Face name of a GGUF tensor, or None when it has none; `post_norms` tells Gemma's four norms per layer."""
    match = _BLOCK.fullmatch(gguf_name)
    if match is None:
        return _WHOLE.get(gguf_name)
    layer, part, kind = match.groups()
    target = _PARTS.get(part) or (_GEMMA_NORMS if post_norms else _PLAIN_NORMS).get(part)
    return None if target is None else f"model.layers.{layer}.{target}.{kind}"


def half_split_rows(num_heads: int, head_dim: int) -> npt.NDArray[np.intp]:
    """For each row in half-split (NeoX) RoPE order, the row of an interleaved matrix that holds it.

    llama.cpp stores llama's query and key rows so that the two numbers that rotate together are neighbours; everyone else, and
    Sapwood, keeps them half a head apart.
    """
    stored = np.arange(num_heads * head_dim).reshape(num_heads, head_dim // 2, 2)
    return stored.swapaxes(1, 2).reshape(-1)
