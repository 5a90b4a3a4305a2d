"""Whole files and documents to damage: a model of one layer in both formats, its tokenizer, its templates."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save

HIDDEN, FEED_FORWARD, VOCABULARY = 32, 32, 300
CONTROL = ("<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message.content | trim }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": FEED_FORWARD,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    "tie_word_embeddings": True,
    "bos_token_id": 256,
    "eos_token_id": [257],
    "torch_dtype": "float32",
}
SHAPES = {
    "model.embed_tokens.weight": ("token_embd.weight", (VOCABULARY, HIDDEN)),
    "model.norm.weight": ("output_norm.weight", (HIDDEN,)),
    "model.layers.0.input_layernorm.weight": ("blk.0.attn_norm.weight", (HIDDEN,)),
    "model.layers.0.post_attention_layernorm.weight": ("blk.0.ffn_norm.weight", (HIDDEN,)),
    "model.layers.0.self_attn.q_proj.weight": ("blk.0.attn_q.weight", (HIDDEN, HIDDEN)),
    "model.layers.0.self_attn.k_proj.weight": ("blk.0.attn_k.weight", (HIDDEN // 2, HIDDEN)),
    "model.layers.0.self_attn.v_proj.weight": ("blk.0.attn_v.weight", (HIDDEN // 2, HIDDEN)),
    "model.layers.0.self_attn.o_proj.weight": ("blk.0.attn_output.weight", (HIDDEN, HIDDEN)),
    "model.layers.0.mlp.gate_proj.weight": ("blk.0.ffn_gate.weight", (FEED_FORWARD, HIDDEN)),
    "model.layers.0.mlp.up_proj.weight": ("blk.0.ffn_up.weight", (FEED_FORWARD, HIDDEN)),
    "model.layers.0.mlp.down_proj.weight": ("blk.0.ffn_down.weight", (HIDDEN, FEED_FORWARD)),
}


@cache
def letters() -> tuple[str, ...]:
    """Byte-level BPE's letters for the 256 bytes, two merges of them, two control tokens, and words to fill the vocabulary."""
    from tokenizers import pre_tokenizers

    base = sorted(pre_tokenizers.ByteLevel.alphabet())
    return (*base, "ab", "abc", *CONTROL, *(f"w{number}" for number in range(VOCABULARY - 260)))


@cache
def gguf_file(kind: str = "gpt2") -> bytes:
    """A whole model with the tokenizer of that kind."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "whole.gguf")
        writer = gguf.GGUFWriter(path, "llama")
        for key, value in {
            "context_length": 128,
            "embedding_length": HIDDEN,
            "block_count": 1,
            "feed_forward_length": FEED_FORWARD,
        }.items():
            writer.add_uint32(f"llama.{key}", value)
        writer.add_uint32("llama.attention.head_count", 2)
        writer.add_uint32("llama.attention.head_count_kv", 1)
        writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
        _add_tokenizer(writer, kind)
        for name, shape in SHAPES.values():
            writer.add_tensor(name, np.ones(shape, dtype=np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()


def _add_tokenizer(writer: gguf.GGUFWriter, kind: str) -> None:
    texts = (
        letters()
        if kind == "gpt2"
        else ("<unk>", *CONTROL, *(f"<0x{byte:02X}>" for byte in range(256)), *"\u2581abcdefgh", *letters()[-32:])
    )
    types = [3 if text in CONTROL else 6 if text.startswith("<0x") else 2 if text == "<unk>" else 1 for text in texts]
    writer.add_tokenizer_model(kind)
    writer.add_token_list(list(texts))
    writer.add_token_types(types)
    writer.add_token_scores([-float(rank) for rank in range(len(texts))])
    writer.add_token_merges(["a b", "ab c"] if kind == "gpt2" else [])
    writer.add_eos_token_id(texts.index(CONTROL[1]))
    writer.add_bos_token_id(texts.index(CONTROL[0]))
    writer.add_chat_template(TEMPLATE)


@cache
def safetensors_file() -> bytes:
    """The model's weights."""
    return bytes(save({name: torch.ones(shape) for name, (_, shape) in SHAPES.items()}))


@cache
def tokenizer_json(kind: str = "ByteLevel") -> dict[str, Any]:
    """A description as `tokenizers` saves it."""
    vocab = {text: token_id for token_id, text in enumerate(letters()) if text not in CONTROL}
    added = [{"id": letters().index(text), "content": text, "special": True} for text in CONTROL]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    space = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
    split = {"type": "Split", "pattern": {"Regex": "\\s+|\\d"}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{**entry, **flags} for entry in added],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]} if kind == "ByteLevel" else space,
        "post_processor": None,
        "decoder": byte_level
        if kind == "ByteLevel"
        else {
            "type": "Sequence",
            "decoders": [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}],
        },
        "model": {"type": "BPE", "vocab": vocab, "merges": [["a", "b"], ["ab", "c"]], "unk_token": None, "byte_fallback": False},
    }


TOKENIZER_CONFIG: dict[str, Any] = {
    "bos_token": CONTROL[0],
    "eos_token": {"content": CONTROL[1]},
    "chat_template": TEMPLATE,
    "added_tokens_decoder": {"258": {"content": CONTROL[0], "special": True}},
    "model_max_length": 128,
}


def as_json(document: Any) -> bytes:
    """JSON as a careless program writes it: with NaN, infinities and lone surrogates."""
    return json.dumps(document).encode("utf-8", "surrogatepass")
