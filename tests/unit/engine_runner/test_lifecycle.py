"""Building an engine: data types, kernel backends, and the parts' sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from random_model import CONFIG, RandomCheckpoint, make_engine

from sapwood.device import create_device
from sapwood.distributed.group import SoloGroup
from sapwood.engine.lifecycle import EngineOptions, load_model, resolve_dtype
from sapwood.errors import ConfigError
from sapwood.models import ARCHITECTURES

OPTIONS = EngineOptions(num_slots=2, max_len=32, num_pages=6, page_size=4, device="cpu")


def test_auto_is_float32_on_a_cpu_and_the_checkpoints_type_elsewhere() -> None:
    assert resolve_dtype("auto", CONFIG, "cpu") == torch.float32
    assert resolve_dtype("auto", CONFIG, "cuda") == torch.bfloat16
    assert resolve_dtype("float16", CONFIG, "cpu") == torch.float16
    with pytest.raises(ConfigError, match="int3.*float32"):
        resolve_dtype("int3", CONFIG, "cpu")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_store_has_a_row_per_location_in_its_own_type(dtype: str) -> None:
    engine = make_engine(kv_dtype=dtype)
    layers = engine._store.layers
    assert len(layers) == 2
    assert all(layer.k.shape == layer.v.shape == (160, 2, 4) for layer in layers)
    assert {layer.k.dtype for layer in layers} == {resolve_dtype(dtype, CONFIG, "cpu")}
    assert engine._store.num_bytes == CONFIG.kv_bytes_per_token(layers[0].k.element_size()) * 160
    engine.close()


def test_tied_head_is_the_embedding_table() -> None:
    device = create_device("cpu")
    tied = load_model(OPTIONS, RandomCheckpoint(replace(CONFIG, tie_embeddings=True)), SoloGroup(), device)
    assert tied._vocabulary._head is tied._vocabulary._table
    untied = load_model(OPTIONS, RandomCheckpoint(), SoloGroup(), device)
    assert untied._vocabulary._head is not untied._vocabulary._table


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    device = create_device("cpu")
    with pytest.raises(ConfigError, match="known: gemma3, llama, mistral, qwen2, qwen3"):
        load_model(OPTIONS, RandomCheckpoint(replace(CONFIG, architecture="gpt0")), SoloGroup(), device)
    with pytest.raises(ConfigError, match="known: reference"):
        load_model(replace(OPTIONS, kernels="abacus"), RandomCheckpoint(), SoloGroup(), device)
    assert list(ARCHITECTURES) == ["gemma3", "llama", "mistral", "qwen2", "qwen3"]
