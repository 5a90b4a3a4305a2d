"""GGUF metadata -> `ModelConfig`.

Owns llama.cpp's metadata keys and what they leave unsaid: RoPE factors kept in a tensor, Gemma's local layers, and which
token ids end a generation. Does not know how tensors are named or stored. Invariant: an architecture or option that Sapwood
does not compute is refused by name.
"""

from __future__ import annotations

from sapwood.core.model_config import LayerKind, ModelConfig, RopeConfig
from sapwood.errors import WeightsError
from sapwood.weights.dequant import dequantise
from sapwood.weights.fields import MAX_LAYERS, Fields
from sapwood.weights.gguf import GgufFile
from sapwood.weights.rope import BETA_FAST, BETA_SLOW, yarn_magnitude, yarn_rope

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")
ROPE_FACTORS = "rope_freqs.weight"
CONTROL_TOKEN = 3
END_TEXTS = (  # a tuple: damaged files may hold what cannot be hashed
    ("</s>", "<eos>", "<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|return|>")
    + ("<|call|>", "<end_of_turn>", "<end_of_utterance>", "<|end_of_turn|>", "<EOT>", "_<EOT>", "[EOS]", "[EOT]")
)
END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
GEMMA_PATTERN = 6
GEMMA_THETA, GEMMA_LOCAL_THETA = 1_000_000.0, 10_000.0
COMPUTE_DTYPES = {"F32": "float32", "F16": "float16"}


def read_gguf_config(gguf: GgufFile) -> ModelConfig:
    """The configuration of the model in `gguf`; raises WeightsError when it is incomplete or not supported."""
    architecture = Fields(gguf.metadata, str(gguf.path)).text("general.architecture")
    if architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise WeightsError(f"{gguf.path}: the architecture {architecture!r} is not supported in GGUF; supported: {known}")
    fields = Fields(gguf.metadata, str(gguf.path), f"{architecture}.")
    _refuse_unsupported(gguf, fields)
    hidden_size, num_heads = fields.size("embedding_length"), fields.size("attention.head_count")
    head_dim = fields.size("attention.key_length", hidden_size // num_heads)
    _check_heads(fields, head_dim)
    gemma = architecture == "gemma3"
    num_layers = fields.size("block_count", limit=MAX_LAYERS)
    tokens = Fields(gguf.metadata, str(gguf.path), "tokenizer.ggml.")
    bos = tokens.token_ids("bos_token_id")
    return ModelConfig(
        architecture=architecture,
        vocab_size=gguf.info("token_embd.weight").shape[0],
        hidden_size=hidden_size,
        intermediate_size=fields.size("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=fields.size("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        layers=_layers(gguf, fields, num_layers, head_dim),
        max_position=fields.size("context_length"),
        norm_eps=fields.positive("attention.layer_norm_rms_epsilon"),
        activation="gelu_tanh" if gemma else "silu",
        tie_embeddings="output.weight" not in gguf.tensors,
        qkv_bias="blk.0.attn_q.bias" in gguf.tensors,
        output_bias="blk.0.attn_output.bias" in gguf.tensors,
        mlp_bias="blk.0.ffn_up.bias" in gguf.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in gguf.tensors,
        post_norms=gemma,
        norm_plus_one=False,  # the converter has added the one
        embedding_scale=hidden_size**0.5 if gemma else 1.0,
        attention_scale=_attention_scale(fields, gemma, num_layers, head_dim),
        attention_softcap=fields.number("attn_logit_softcapping", 0.0),
        logit_softcap=fields.number("final_logit_softcapping", 0.0),
        eos_token_ids=_end_ids(tokens),
        bos_token_id=bos[0] if bos else None,
        torch_dtype=_compute_dtype(gguf),
    )


def _refuse_unsupported(gguf: GgufFile, fields: Fields) -> None:
    if fields.get("expert_count", 0) or any("_exps." in name for name in gguf.tensors):
        raise WeightsError(f"{gguf.path}: mixture-of-experts models are not supported; choose a dense model")
    if gguf.metadata.get("split.count", 0) not in (0, 1):
        raise WeightsError(f"{gguf.path} is one part of a split model; join the parts with llama-gguf-split --merge")
    for key in ("attention.head_count", "attention.head_count_kv", "feed_forward_length"):
        if isinstance(fields.get(key), list):
            raise WeightsError(f"{gguf.path}: {fields.prefix + key} differs between layers, which is not supported")


def _check_heads(fields: Fields, head_dim: int) -> None:
    rotary = fields.size("rope.dimension_count", head_dim)
    if rotary != head_dim:
        raise WeightsError(f"{fields.source}: partial rotary embedding ({rotary} of {head_dim}) is not supported")
    value_dim = fields.size("attention.value_length", head_dim)
    if value_dim != head_dim:
        raise WeightsError(f"{fields.source}: value heads of {value_dim} beside key heads of {head_dim} are not supported")


def _layers(gguf: GgufFile, fields: Fields, num_layers: int, head_dim: int) -> tuple[LayerKind, ...]:
    full = LayerKind(0, _rope(gguf, fields, head_dim))
    window = fields.size("attention.sliding_window") if fields.get("attention.sliding_window", 0) else 0
    if fields.prefix == "llama.":  # Mistral is stored as llama, and slides in all layers
        return (LayerKind(window, full.rope),) * num_layers
    if fields.prefix != "gemma3.":
        return (full,) * num_layers
    local = LayerKind(window, RopeConfig("default", fields.positive("rope.freq_base_swa", GEMMA_LOCAL_THETA)))
    return tuple(local if is_local else full for is_local in _local_layers(fields, num_layers))


def _local_layers(fields: Fields, num_layers: int) -> list[bool]:
    """For each of Gemma's layers, whether it attends only to a window: a list in the file, or all but every n-th."""
    key = "attention.sliding_window_pattern"
    if not isinstance(fields.get(key), list):
        pattern = fields.size(key, GEMMA_PATTERN)
        return [bool((index + 1) % pattern) for index in range(num_layers)]
    listed = [bool(item) for item in fields.items(key)]
    if len(listed) != num_layers:
        raise WeightsError(f"{fields.source}: {fields.prefix}{key} must list {num_layers} layers; download the file again")
    return listed


def _rope(gguf: GgufFile, fields: Fields, head_dim: int) -> RopeConfig:
    theta = fields.positive("rope.freq_base", GEMMA_THETA if fields.prefix == "gemma3." else 10_000.0)
    if ROPE_FACTORS in gguf.tensors:
        return _rope_of_factors(gguf, theta, head_dim)
    kind = fields.text("rope.scaling.type", "linear")
    factor = fields.number("rope.scaling.factor", fields.number("rope.scale_linear", 0.0)) or 1.0
    if kind == "yarn":
        original = fields.size("rope.scaling.original_context_length", fields.size("context_length"))
        magnitude = fields.positive("rope.scaling.attn_factor", 1.0) * yarn_magnitude(factor)
        beta_fast = fields.positive("rope.scaling.yarn_beta_fast", BETA_FAST)
        return yarn_rope(theta, factor, original, magnitude, beta_fast, fields.positive("rope.scaling.yarn_beta_slow", BETA_SLOW))
    if kind not in ("linear", "none"):
        raise WeightsError(f"{gguf.path}: the rope scaling {kind!r} is not supported; supported: none, linear, yarn")
    if kind == "none" or factor == 1.0:
        return RopeConfig("default", theta)
    return RopeConfig("linear", theta, (("factor", factor),))


def _rope_of_factors(gguf: GgufFile, theta: float, head_dim: int) -> RopeConfig:
    """Llama 3's scaling: GGUF keeps what it divides each frequency by, not the numbers that led there."""
    factors = dequantise(gguf.raw(ROPE_FACTORS), gguf.info(ROPE_FACTORS).type).ravel()
    if len(factors) != head_dim // 2 or not (factors > 0).all():
        raise WeightsError(f"{gguf.path}: {ROPE_FACTORS} must hold {head_dim // 2} positive numbers; download the file again")
    return RopeConfig("factors", theta, tuple((str(index), float(value)) for index, value in enumerate(factors)))


def _attention_scale(fields: Fields, gemma: bool, num_layers: int, head_dim: int) -> float:
    """1/sqrt(head_dim), but for Gemma 3 27B, whose query scale is not in the metadata."""
    if gemma and num_layers == 62:
        return float((fields.size("embedding_length") / fields.size("attention.head_count")) ** -0.5)
    return float(head_dim**-0.5)


def _end_ids(tokens: Fields) -> tuple[int, ...]:
    """Ids that end a generation: the named ones, and control tokens whose text is known to mean the end of a turn."""
    ids = [found for key in END_KEYS for found in tokens.token_ids(key)]
    pairs = zip(tokens.items("tokens"), tokens.items("token_type"), strict=False)
    ids += [index for index, (text, kind) in enumerate(pairs) if kind == CONTROL_TOKEN and text in END_TEXTS]
    return tuple(dict.fromkeys(ids))


def _compute_dtype(gguf: GgufFile) -> str:
    """What to compute in where memory counts; quantised models were bfloat16 once."""
    return COMPUTE_DTYPES.get(gguf.info("blk.0.attn_q.weight").type.name, "bfloat16")
