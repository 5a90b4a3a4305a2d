"""A Hugging Face config.json (and generation_config.json) -> `ModelConfig`.

Owns the architectures' field names, defaults and layer patterns. Does not know tensors or files of weights. Invariant: an
architecture or option that Sapwood does not compute is refused by name, never approximated.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sapwood.core.model_config import LayerKind, ModelConfig
from sapwood.errors import WeightsError
from sapwood.weights.fields import MAX_LAYERS, Fields
from sapwood.weights.rope import read_rope

MAX_JSON_BYTES = 1 << 26
MAX_LABELS = 1 << 16
CLASSIFIER = "ForSequenceClassification"
ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
DTYPES = ("float32", "float16", "bfloat16")
MODEL_TYPES = {"llama": "llama", "mistral": "mistral", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3_text": "gemma3"}
_QWEN = {"vocab_size": 151_936, "max_position_embeddings": 32_768, "sliding_window": 4096, "max_window_layers": 28}
# What a file may leave out, as the classes of transformers fill it in.
DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {"vocab_size": 32_000, "max_position_embeddings": 2048, "eos_token_id": 2, "bos_token_id": 1},
    "mistral": {
        "vocab_size": 32_000,
        "max_position_embeddings": 131_072,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
        "eos_token_id": 2,
        "bos_token_id": 1,
    },
    "qwen2": _QWEN,
    "qwen3": _QWEN | {"head_dim": 128},
    "gemma3": {
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
        "sliding_window": 4096,
        "query_pre_attn_scalar": 256,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": True,
        "eos_token_id": 1,
        "bos_token_id": 2,
    },
}


def read_hf_config(folder: Path) -> ModelConfig:
    """The configuration of the model in `folder`; raises WeightsError when it is missing, damaged or not supported."""
    top = Fields(read_json(folder / "config.json"), str(folder / "config.json"))
    generation_path = folder / "generation_config.json"
    generation = Fields(read_json(generation_path) if generation_path.exists() else {}, str(generation_path))
    fields, architecture = _text_part(top)
    _refuse_unsupported(top, fields)
    gemma = architecture == "gemma3"
    hidden_size, num_heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    head_dim = fields.size("head_dim", hidden_size // num_heads)
    bias = architecture in ("llama", "qwen3", "gemma3") and fields.flag("attention_bias", False)
    bos = fields.token_ids("bos_token_id") or generation.token_ids("bos_token_id")
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.size("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.size("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=fields.size("num_key_value_heads", num_heads),
        head_dim=head_dim,
        layers=_layers(fields, architecture),
        max_position=fields.size("max_position_embeddings"),
        norm_eps=fields.positive("rms_norm_eps", 1e-6),
        activation=_activation(fields, gemma),
        tie_embeddings=_has_no_head(top) or top.flag("tie_word_embeddings", fields.flag("tie_word_embeddings", False)),
        qkv_bias=bias or architecture == "qwen2",
        output_bias=bias,
        mlp_bias=architecture == "llama" and fields.flag("mlp_bias", False),
        qk_norm=gemma or architecture == "qwen3",
        post_norms=gemma,
        norm_plus_one=gemma,
        embedding_scale=hidden_size**0.5 if gemma else 1.0,
        attention_scale=fields.positive("query_pre_attn_scalar", head_dim) ** -0.5 if gemma else head_dim**-0.5,
        attention_softcap=fields.number("attn_logit_softcapping", 0.0),
        logit_softcap=fields.number("final_logit_softcapping", 0.0),
        eos_token_ids=_end_ids(top, fields, generation),
        bos_token_id=bos[0] if bos else None,
        torch_dtype=_dtype(top, fields),
        labels=read_labels(top),
    )


def read_labels(top: Fields) -> tuple[str, ...]:
    """The classes of a sequence classification model, in the order of its scores; empty for other models."""
    if not any(str(name).endswith(CLASSIFIER) for name in top.items("architectures")):
        return ()
    names = top.section("id2label")
    if names is None:
        return tuple(f"LABEL_{index}" for index in range(top.size("num_labels", 2, limit=MAX_LABELS)))
    try:
        return tuple(names.text(str(index)) for index in range(len(names.values)))
    except WeightsError:
        raise WeightsError(f"{top.source}: 'id2label' must name the classes 0 to {len(names.values) - 1}") from None


def _has_no_head(top: Fields) -> bool:
    """Whether the checkpoint is of a bare model or a classifier: the vocabulary's head is never asked for, so the embedding
    table stands in for it."""
    return any(str(name).endswith((CLASSIFIER, "Model")) for name in top.items("architectures"))


def read_json(path: Path) -> dict[str, Any]:
    """The object in the JSON file `path`; raises WeightsError when it is missing, huge or no object."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise WeightsError(f"{path} is larger than {MAX_JSON_BYTES} bytes; it is not a file of this kind")
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise WeightsError(f"cannot read {path}: {error.strerror}. A model folder needs this file: download it again.") from None
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path} is not valid JSON ({error}); download it again") from None
    if not isinstance(content, dict):
        raise WeightsError(f"{path} does not hold a JSON object; download it again")
    return content


def _text_part(top: Fields) -> tuple[Fields, str]:
    """The language model's fields, completed with the architecture's defaults, and the architecture's name."""
    inner = top.section("text_config") if top.get("model_type") == "gemma3" else None
    values = top.values if inner is None else {"model_type": "gemma3_text", **inner.values}
    model_type = Fields(values, top.source).text("model_type")
    architecture = MODEL_TYPES.get(model_type)
    if architecture is None:
        known = ", ".join(sorted(MODEL_TYPES))
        raise WeightsError(f"{top.source}: the architecture {model_type!r} is not supported; supported: {known}")
    return Fields({**DEFAULTS[architecture], **values}, top.source), architecture


def _refuse_unsupported(top: Fields, fields: Fields) -> None:
    for key in ("num_experts", "num_local_experts", "n_routed_experts"):
        if fields.get(key, 0):
            raise WeightsError(f"{top.source}: mixture-of-experts models ({key}) are not supported; choose a dense model")
    quantization = top.section("quantization_config") or fields.section("quantization_config")
    if quantization is not None:
        method = quantization.text("quant_method", "unknown")
        raise WeightsError(f"{top.source}: weights quantised with {method!r} are not supported; choose the original or a GGUF")
    if fields.flag("use_bidirectional_attention", False):
        raise WeightsError(f"{top.source}: bidirectional attention is not supported; choose a generative model")


def _layers(fields: Fields, architecture: str) -> tuple[LayerKind, ...]:
    num_layers = fields.size("num_hidden_layers", limit=MAX_LAYERS)
    local_types = _local_layers(fields, architecture, num_layers)
    full = LayerKind(0, read_rope(fields, "full_attention", 10_000.0))
    if not any(local_types):
        return (full,) * num_layers
    local_fields = fields
    if architecture == "gemma3" and not _has_rope_per_layer_type(fields):  # the scaling is the global layers' alone
        local_fields = Fields({"rope_theta": fields.positive("rope_local_base_freq", 10_000.0)}, fields.source)
    local = LayerKind(fields.size("sliding_window"), read_rope(local_fields, "sliding_attention", 10_000.0))
    return tuple(local if is_local else full for is_local in local_types)


def _has_rope_per_layer_type(fields: Fields) -> bool:
    parameters = fields.section("rope_parameters")
    return parameters is not None and parameters.has("sliding_attention")


def _local_layers(fields: Fields, architecture: str, num_layers: int) -> list[bool]:
    """For each layer, whether it attends only to a window."""
    if architecture == "llama" or not fields.has("sliding_window"):
        return [False] * num_layers
    if architecture == "mistral":
        return [True] * num_layers
    if architecture.startswith("qwen") and not fields.flag("use_sliding_window", False):
        return [False] * num_layers
    if fields.has("layer_types"):
        return _parse_layer_types(fields, num_layers)
    if architecture == "gemma3":
        pattern = fields.size("sliding_window_pattern", fields.get("_sliding_window_pattern", 6))
        return [bool((index + 1) % pattern) for index in range(num_layers)]
    first_local = int(fields.number("max_window_layers"))
    return [index >= first_local for index in range(num_layers)]


def _parse_layer_types(fields: Fields, num_layers: int) -> list[bool]:
    types = fields.items("layer_types")
    if len(types) != num_layers:
        raise WeightsError(f"{fields.source}: 'layer_types' must list {num_layers} layers; correct the file")
    unknown = [kind for kind in types if kind not in ("full_attention", "sliding_attention")]
    if unknown:
        raise WeightsError(f"{fields.source}: the layer type {unknown[0]!r} is not supported; choose another model")
    return [kind == "sliding_attention" for kind in types]


def _activation(fields: Fields, gemma: bool) -> str:
    name = fields.text("hidden_activation", "gelu_pytorch_tanh") if gemma else fields.text("hidden_act", "silu")
    if name not in ACTIVATIONS:
        raise WeightsError(f"{fields.source}: the activation {name!r} is not supported; supported: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def _end_ids(top: Fields, fields: Fields, generation: Fields) -> tuple[int, ...]:
    """The union of all ids that end a generation; the generation config adds the chat model's end of turn."""
    found = [*generation.token_ids("eos_token_id"), *top.token_ids("eos_token_id"), *fields.token_ids("eos_token_id")]
    return tuple(dict.fromkeys(found))


def _dtype(top: Fields, fields: Fields) -> str:
    value = str(top.get("dtype", top.get("torch_dtype", fields.get("dtype", fields.get("torch_dtype", "float32")))))
    name = value.removeprefix("torch.")
    if name not in DTYPES:
        raise WeightsError(f"{top.source}: the data type {value!r} is not supported; supported: {', '.join(DTYPES)}")
    return name
