"""Small model files for the tests of weights: tiny GGUF models and Hugging Face folders, and hand-made GGUF headers."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

from sapwood.core.model_config import LayerKind, ModelConfig, RopeConfig
from sapwood.weights.gguf_names import canonical_name
from sapwood.weights.shapes import expected_shapes

SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}

GGUF_SIZES: dict[str, Any] = {
    "context_length": 128,
    "embedding_length": 64,
    "block_count": 3,
    "feed_forward_length": 128,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-6,
}


def save_hf(folder: Path, config: PretrainedConfig, max_shard_size: str = "1GB") -> dict[str, torch.Tensor]:
    """Saves a random model of `config` and returns its tensors."""
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return dict(model.state_dict())


def gguf_names(names: list[str], post_norms: bool) -> dict[str, str]:
    """Canonical name -> GGUF name, found by trying all names that GGUF files may hold."""
    parts = [
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_output",
        "attn_q_norm",
        "attn_k_norm",
        "attn_norm",
        "ffn_gate",
        "ffn_up",
        "ffn_down",
    ]
    parts += ["ffn_norm", "post_attention_norm", "post_ffw_norm"]
    blocks = [f"blk.{layer}.{part}.{kind}" for layer in range(8) for part in parts for kind in ("weight", "bias")]
    tried = [*blocks, "token_embd.weight", "output_norm.weight", "output.weight"]
    return {found: name for name in tried if (found := canonical_name(name, post_norms)) in names}


def write_gguf(
    path: Path,
    architecture: str,
    tensors: dict[str, np.ndarray],
    metadata: dict[str, Any] | None = None,
    kinds: dict[str, gguf.GGMLQuantizationType] | None = None,
) -> Path:
    """Writes `tensors` by GGUF name, and `metadata`, with the reference writer; with a type in `kinds` they are stored bytes."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (metadata or {}).items():
        _add_value(writer, key, value)
    for name, value in tensors.items():
        writer.add_tensor(name, value, raw_dtype=(kinds or {}).get(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_tiny_gguf(path: Path, architecture: str = "qwen2", changes: dict[str, Any] | None = None) -> dict[str, torch.Tensor]:
    """Writes a tiny model of random float32 weights and returns them by canonical name; a change to None drops that key."""
    sizes = {f"{architecture}.{key}": value for key, value in GGUF_SIZES.items()}
    metadata = {key: value for key, value in (sizes | (changes or {})).items() if value is not None}
    gemma = architecture == "gemma3"
    shapes = expected_shapes(tiny_config(post_norms=gemma, qk_norm=gemma, qkv_bias=architecture == "qwen2"))
    generator = np.random.default_rng(3)
    values = {name: generator.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    names = gguf_names(list(shapes), gemma)
    write_gguf(path, architecture, {names[name]: value for name, value in values.items()}, metadata)
    return {name: torch.from_numpy(value) for name, value in values.items()}


def tiny_config(**changes: Any) -> ModelConfig:
    """A tiny llama's configuration with `changes`."""
    values: dict[str, Any] = {
        "architecture": "llama",
        "vocab_size": 96,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "layers": (LayerKind(0, RopeConfig("default", 10_000.0)),) * 3,
        "max_position": 128,
        "norm_eps": 1e-6,
        "activation": "silu",
        "tie_embeddings": True,
        "qkv_bias": False,
        "output_bias": False,
        "mlp_bias": False,
        "qk_norm": False,
        "post_norms": False,
        "norm_plus_one": False,
        "embedding_scale": 1.0,
        "attention_scale": 0.25,
        "attention_softcap": 0.0,
        "logit_softcap": 0.0,
        "eos_token_ids": (2,),
        "bos_token_id": 1,
        "torch_dtype": "float32",
    }
    return ModelConfig(**(values | changes))


def text(value: str) -> bytes:
    """A GGUF string."""
    return struct.pack("<Q", len(value.encode())) + value.encode()


def key_value(key: str, kind: int, payload: bytes) -> bytes:
    """One GGUF metadata entry."""
    return text(key) + struct.pack("<I", kind) + payload


def tensor_entry(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    """One entry of the tensor table; `shape` in GGUF's order, columns first."""
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dimensions + struct.pack("<IQ", kind, offset)


def header(num_tensors: int, num_keys: int, body: bytes = b"", version: int = 3) -> bytes:
    """A GGUF file that claims these counts and goes on with `body`."""
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_keys) + body


def _add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
