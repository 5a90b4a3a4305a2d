"""The catalog's real files: their facts, and their tensors against transformers' own reading of GGUF."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from sapwood.weights.catalog import list_models
from sapwood.weights.checkpoint import open_checkpoint
from sapwood.weights.dequant import dequantise

pytestmark = pytest.mark.real_model

# layers, hidden, heads, kv heads, head size, mlp, vocabulary, context, tied, end ids
FACTS = {
    "smollm2-135m-instruct": ("llama", 30, 576, 9, 3, 64, 1536, 49_152, 8192, True, (2, 0)),
    "qwen2.5-coder-0.5b-instruct": ("qwen2", 24, 896, 14, 2, 64, 4864, 151_936, 32_768, False, (151_645, 151_643)),
    "gemma-3-270m": ("gemma3", 18, 640, 4, 1, 256, 2048, 262_144, 32_768, True, (1, 106)),
}


def path_of(name: str) -> Path:
    path = {entry.model.name: entry.path for entry in list_models()}[name]
    if path is None:
        pytest.skip(f"{name} is not in the cache: sapwood pull {name}")
    return path


@pytest.mark.parametrize("name", FACTS)
def test_facts(name):
    checkpoint = open_checkpoint(path_of(name))
    config = checkpoint.config
    sizes = (
        config.hidden_size,
        config.num_heads,
        config.num_kv_heads,
        config.head_dim,
        config.intermediate_size,
        config.vocab_size,
    )
    found = (config.architecture, config.num_layers, *sizes, config.max_position, config.tie_embeddings, config.eos_token_ids)
    assert found == FACTS[name]
    assert len(checkpoint.metadata["tokenizer.ggml.tokens"]) == config.vocab_size
    windows = [layer.window for layer in config.layers]
    assert windows == ([512, 512, 512, 512, 512, 0] * 3 if config.architecture == "gemma3" else [0] * config.num_layers)


@pytest.mark.parametrize("name", FACTS)
def test_every_tensor_can_be_read_and_parts_agree(name):
    checkpoint = open_checkpoint(path_of(name))
    for tensor in checkpoint.names():
        if "layers.1." not in tensor:
            continue
        whole = checkpoint.tensor(tensor)
        assert whole.isfinite().all() and tuple(whole.shape) == checkpoint.shape(tensor)
        half = slice(0, whole.shape[0] // 2)
        assert torch.equal(checkpoint.tensor(tensor, half), whole[half])
        raw = checkpoint.raw(tensor)
        assert raw is not None and np.array_equal(dequantise(raw.data, raw.type).reshape(whole.shape), whole.numpy())


@pytest.mark.long
def test_smollm2_equals_transformers_reading():
    path = path_of("smollm2-135m-instruct")
    checkpoint = open_checkpoint(path)
    oracle = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).state_dict()
    assert set(checkpoint.names()) == set(oracle) - {"lm_head.weight"}
    for name in checkpoint.names():
        assert torch.allclose(checkpoint.tensor(name), oracle[name], atol=1e-6), name
