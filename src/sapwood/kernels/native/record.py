"""Records a decoder model as a native program: the list of operations that every step replays.

Owns the order of operations of a pre-norm decoder (optional biases, q/k norms and Gemma's post-norms). Does not know files:
a `WeightSource` answers by Hugging Face name. Invariant: the program's bits do not depend on what runs beside a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sapwood.core.model_config import ModelConfig, RopeConfig
from sapwood.kernels.native import _native
from sapwood.kernels.native.balance import balance_keys

FloatArray = NDArray[np.float32]


class WeightSource(Protocol):
    """What the recorder asks for; names as in `sapwood.weights.checkpoint`."""

    def weight(self, name: str) -> _native.Weight:
        """The packed matrix, rows = outputs. Asked for twice, it may be packed once."""

    def vector(self, name: str) -> FloatArray:
        """A norm's weight or a bias, contiguous float32."""

    def rope(self, rope: RopeConfig) -> _native.Rope:
        """Tables for positions [0, max_len); one object per kind of layer."""


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """Sizes of the static buffers: `max_rows` tokens per step, `max_logit_rows` rows of logits at a time."""

    num_slots: int
    max_len: int
    max_rows: int
    max_logit_rows: int


@dataclass(frozen=True, slots=True)
class RecordedModel:
    """A finished program and the index of its logits buffer (`program.rows(logits)`: the last block's logits)."""

    program: _native.Program
    logits: int


@dataclass(frozen=True, slots=True)
class _Buffers:
    x: int
    delta: int
    qkv: int
    mixed: int
    gate_up: int
    hidden: int
    mixed_codes: int
    inner: int
    balances_keys: bool


def record_decoder(
    config: ModelConfig,
    source: WeightSource,
    pool: _native.ThreadPool,
    kv: _native.KvPool,
    limits: ProgramLimits,
    host: _native.HostPages | None = None,
    *,
    wide_activations: bool = False,
) -> RecordedModel:
    """The whole step from token ids to sampled ids and log-probabilities; `kv` has the model's layers, heads and head_dim, `host`
    is the tier below it. `wide_activations`: products with weights of 4 to 6 bits read inputs of 16 bits instead of 8."""
    program = _native.Program(
        pool, kv, limits.num_slots, limits.max_len, config.vocab_size, limits.max_rows, limits.max_logit_rows, host
    )
    buffers = _allocate(program, config, balances_keys=kv.dtype == "i8")
    embedding = source.weight("model.embed_tokens.weight")
    program.embed(embedding, config.embedding_scale, buffers.x)
    last_delta = program.buffer(config.hidden_size)  # of its own: what another stage reads is kept for every row
    for layer in range(config.num_layers):
        _record_attention(program, config, source, buffers, layer)
        _record_mlp(program, config, source, buffers, layer, last_delta if layer == config.num_layers - 1 else buffers.delta)
    logits = program.buffer(config.vocab_size, logits=True)
    last = program.activations(config.hidden_size, logits=True)
    post = f"model.layers.{config.num_layers - 1}.post_feedforward_layernorm.weight" if config.post_norms else None
    _norm(program, config, source, "model.norm.weight", (replace(buffers, delta=last_delta), last), post)
    program.linear([embedding if config.tie_embeddings else source.weight("lm_head.weight")], last, logits)
    if config.logit_softcap:
        program.soft_cap(logits, config.logit_softcap)
    program.sample(logits)
    if wide_activations:
        program.widen_activations()
    program.finish()
    return RecordedModel(program, logits)


def _allocate(program: _native.Program, config: ModelConfig, *, balances_keys: bool) -> _Buffers:
    heads = config.num_heads * config.head_dim
    return _Buffers(
        x=program.buffer(config.hidden_size),
        delta=program.buffer(config.hidden_size),
        qkv=program.buffer(heads + 2 * config.num_kv_heads * config.head_dim),
        mixed=program.buffer(heads),
        gate_up=program.buffer(2 * config.intermediate_size),
        hidden=program.activations(config.hidden_size),
        mixed_codes=program.activations(heads),
        inner=program.activations(config.intermediate_size),
        balances_keys=balances_keys,
    )


def _norm(
    program: _native.Program,
    config: ModelConfig,
    source: WeightSource,
    name: str,
    step: tuple[_Buffers, int],
    post: str | None = None,
    *,
    adds: bool = True,
) -> None:
    """out = norm of x, where `step` is (buffers, out); first x += delta, if it `adds`, normed by `post` if there is one."""
    buffers, out = step
    plus = np.float32(1.0 if config.norm_plus_one else 0.0)
    normed = source.vector(post) + plus if adds and post is not None else None
    program.norm(buffers.x, source.vector(name) + plus, config.norm_eps, out, buffers.delta if adds else -1, normed)


def _vectors(source: WeightSource, names: Sequence[str]) -> FloatArray:
    return np.concatenate([source.vector(name) for name in names])


def _record_attention(program: _native.Program, config: ModelConfig, source: WeightSource, buffers: _Buffers, layer: int) -> None:
    at, kind = f"model.layers.{layer}.", config.layers[layer]
    previous = f"model.layers.{layer - 1}.post_feedforward_layernorm.weight" if config.post_norms else None
    inner = (buffers, buffers.hidden)
    _norm(program, config, source, at + "input_layernorm.weight", inner, previous, adds=layer > 0)
    projections = [f"{at}self_attn.{p}_proj." for p in ("q", "k", "v")]
    program.linear([source.weight(p + "weight") for p in projections], buffers.hidden, buffers.qkv)
    plus = np.float32(1.0 if config.norm_plus_one else 0.0)
    program.heads(
        buffers.qkv,
        layer,
        config.num_heads,
        config.head_dim,
        source.rope(kind.rope),
        config.norm_eps,
        _vectors(source, [p + "bias" for p in projections]) if config.qkv_bias else None,
        source.vector(at + "self_attn.q_norm.weight") + plus if config.qk_norm else None,
        source.vector(at + "self_attn.k_norm.weight") + plus if config.qk_norm else None,
        balance_keys(config, source, layer) if buffers.balances_keys else None,
    )
    program.attention(
        buffers.qkv, buffers.mixed, layer, config.num_heads, config.attention_scale, config.attention_softcap, kind.window
    )
    program.quantise(buffers.mixed, buffers.mixed_codes)
    program.linear([source.weight(at + "self_attn.o_proj.weight")], buffers.mixed_codes, buffers.delta)
    if config.output_bias:
        program.bias(buffers.delta, source.vector(at + "self_attn.o_proj.bias"))


def _record_mlp(
    program: _native.Program, config: ModelConfig, source: WeightSource, buffers: _Buffers, layer: int, delta: int
) -> None:
    at = f"model.layers.{layer}."
    before = "pre_feedforward_layernorm" if config.post_norms else "post_attention_layernorm"
    post = at + "post_attention_layernorm.weight" if config.post_norms else None
    _norm(program, config, source, f"{at}{before}.weight", (buffers, buffers.hidden), post)
    names = [at + "mlp.gate_proj.", at + "mlp.up_proj."]
    program.linear([source.weight(name + "weight") for name in names], buffers.hidden, buffers.gate_up)
    if config.mlp_bias:
        program.bias(buffers.gate_up, _vectors(source, [name + "bias" for name in names]))
    program.gate(buffers.gate_up, config.activation, buffers.inner)
    program.linear([source.weight(at + "mlp.down_proj.weight")], buffers.inner, delta)
    if config.mlp_bias:
        program.bias(delta, source.vector(at + "mlp.down_proj.bias"))
