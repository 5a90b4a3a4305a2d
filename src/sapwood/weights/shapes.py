"""Which tensors a model must have, and their shapes, from its `ModelConfig` alone.

Knows the canonical names; no files, no torch. Invariant: this is the one list; dummy weights are made from it and checkpoints
are checked against it.
"""

from __future__ import annotations

from collections.abc import Iterator

from sapwood.core.model_config import ModelConfig
from sapwood.errors import WeightsError

Shape = tuple[int, ...]

EDGE_MATRICES = ("model.embed_tokens.weight", "lm_head.weight")
"""The first and the last matrix, in which errors of rounding show most."""


def expected_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Canonical name -> shape of every tensor of the model, in the order of computation."""
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": (config.vocab_size, config.hidden_size)}
    for index in range(config.num_layers):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in _layer_shapes(config)}
    shapes["model.norm.weight"] = (config.hidden_size,)
    if not config.tie_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    return shapes


def check_consistent(config: ModelConfig, source: str) -> None:
    """Raises WeightsError when the sizes of `config` contradict each other."""
    if config.head_dim % 2:
        raise WeightsError(f"{source}: heads of odd size {config.head_dim} cannot be rotated; download the model again")
    if config.num_heads % config.num_kv_heads:
        heads = f"{config.num_heads} heads do not share {config.num_kv_heads} key-value heads evenly"
        raise WeightsError(f"{source}: {heads}; download the model again")


def _layer_shapes(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    yield "input_layernorm.weight", (hidden,)
    yield from _linear("self_attn.q_proj", queries, hidden, config.qkv_bias)
    yield from _linear("self_attn.k_proj", keys, hidden, config.qkv_bias)
    yield from _linear("self_attn.v_proj", keys, hidden, config.qkv_bias)
    if config.qk_norm:
        yield "self_attn.q_norm.weight", (config.head_dim,)
        yield "self_attn.k_norm.weight", (config.head_dim,)
    yield from _linear("self_attn.o_proj", hidden, queries, config.output_bias)
    yield "post_attention_layernorm.weight", (hidden,)
    if config.post_norms:
        yield "pre_feedforward_layernorm.weight", (hidden,)
    yield from _linear("mlp.gate_proj", inner, hidden, config.mlp_bias)
    yield from _linear("mlp.up_proj", inner, hidden, config.mlp_bias)
    yield from _linear("mlp.down_proj", hidden, inner, config.mlp_bias)
    if config.post_norms:
        yield "post_feedforward_layernorm.weight", (hidden,)


def _linear(name: str, rows: int, columns: int, bias: bool) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", (rows, columns)
    if bias:
        yield f"{name}.bias", (rows,)
