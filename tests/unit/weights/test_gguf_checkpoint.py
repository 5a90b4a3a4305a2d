"""GGUF models under canonical names: values, RoPE row order, parts, raw blocks, and damage found on opening."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import quantize
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig
from weights_files import GGUF_SIZES, SIZES, gguf_names, save_hf, write_gguf, write_tiny_gguf

from sapwood.errors import WeightsError
from sapwood.weights.checkpoint import open_checkpoint
from sapwood.weights.dequant import dequantise
from sapwood.weights.gguf_names import half_split_rows

Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


def interleaved(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows as llama.cpp's converter orders them."""
    head = weight.shape[0] // num_heads
    return weight.reshape(num_heads, 2, head // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A llama with biases, as a GGUF file whose matrices are Q8_0, and its original tensors."""
    folder = tmp_path_factory.mktemp("llama")
    tensors = save_hf(folder / "hf", LlamaConfig(**SIZES, attention_bias=True))
    for name, tensor in tensors.items():
        if name.endswith("bias"):
            torch.nn.init.normal_(tensor)
    names = gguf_names(list(tensors), post_norms=False)
    assert set(names) == set(tensors)
    written, kinds = {}, {}
    for name, tensor in tensors.items():
        value = tensor.numpy()
        if "q_proj" in name or "k_proj" in name:
            value = interleaved(value, 4 if "q_proj" in name else 2)
        if value.ndim == 2:
            value, kinds[names[name]] = quantize(value, gguf.GGMLQuantizationType.Q8_0), gguf.GGMLQuantizationType.Q8_0
        written[names[name]] = value
    path = write_gguf(folder / "m.gguf", "llama", written, {f"llama.{key}": value for key, value in GGUF_SIZES.items()}, kinds)
    return path, tensors


def test_llama_tensors_come_back_in_half_split_order(llama):
    path, tensors = llama
    checkpoint = open_checkpoint(path)
    assert set(checkpoint.names()) == set(tensors)
    for name, original in tensors.items():
        found = checkpoint.tensor(name)
        assert found.dtype == torch.float32 and checkpoint.shape(name) == tuple(original.shape)
        assert torch.allclose(found, original, atol=2e-3 if original.ndim == 2 else 0)


def test_raw_blocks_agree_with_tensors(llama):
    checkpoint = open_checkpoint(llama[0])
    for name in checkpoint.names():
        raw = checkpoint.raw(name)
        assert raw is not None and raw.data.dtype == np.uint8
        values = dequantise(raw.data, raw.type).reshape(raw.shape)
        if len(raw.shape) == 2:
            assert np.array_equal(values, checkpoint.tensor(name).numpy())
            assert raw.data.shape == (raw.shape[0], raw.type.row_bytes(raw.shape[1]))


@pytest.mark.parametrize("rows", [None, slice(0, 0), slice(0, 64), slice(16, 40), slice(63, 64)])
@pytest.mark.parametrize("cols", [None, slice(32, 64), slice(5, 39), slice(0, 0)])
def test_parts_are_cut_from_the_whole(llama, rows, cols):
    checkpoint = open_checkpoint(llama[0])
    whole = checkpoint.tensor(Q_PROJ)
    part = checkpoint.tensor(Q_PROJ, rows, cols)
    assert torch.equal(part, whole[rows or slice(None), cols or slice(None)]) and part.is_contiguous()


def test_parts_of_vectors(llama):
    checkpoint = open_checkpoint(llama[0])
    name = "model.layers.0.self_attn.q_proj.bias"
    assert torch.equal(checkpoint.tensor(name, slice(16, 32)), checkpoint.tensor(name)[16:32])


@pytest.mark.parametrize("part", [slice(0, 65), slice(70, 80), slice(0, 64, 2)])
def test_parts_outside_are_refused(llama, part):
    with pytest.raises(ValueError, match="q_proj"):
        open_checkpoint(llama[0]).tensor(Q_PROJ, part)


def test_half_split_rows_is_a_permutation_within_heads():
    order = half_split_rows(3, 8)
    assert sorted(order) == list(range(24))
    assert order[:8].tolist() == [0, 2, 4, 6, 1, 3, 5, 7]


@pytest.mark.parametrize("architecture", ["qwen2", "gemma3"])
def test_other_architectures_keep_their_rows(tmp_path, architecture):
    stored = write_tiny_gguf(
        tmp_path / "m.gguf", architecture, {"gemma3.attention.key_length": 16} if architecture == "gemma3" else {}
    )
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    assert set(checkpoint.names()) == set(stored)
    assert all(torch.equal(checkpoint.tensor(name), value) for name, value in stored.items())
    assert checkpoint.nbytes == sum(value.nbytes for value in stored.values())
    assert checkpoint.file == tmp_path / "m.gguf" and checkpoint.folder is None
    assert checkpoint.metadata["general.architecture"] == architecture


def test_tensors_outlive_close(llama):
    checkpoint = open_checkpoint(llama[0])
    tensor = checkpoint.tensor("model.norm.weight")
    before = tensor.clone()
    checkpoint.close()
    assert torch.equal(tensor, before)


def test_a_folder_with_one_gguf_file_is_that_file(tmp_path):
    write_tiny_gguf(tmp_path / "m.gguf")
    assert open_checkpoint(tmp_path).file == tmp_path / "m.gguf"
    write_tiny_gguf(tmp_path / "n.gguf")
    with pytest.raises(WeightsError, match="2 GGUF files"):
        open_checkpoint(tmp_path)


def test_load_format_must_fit(tmp_path):
    write_tiny_gguf(tmp_path / "m.gguf")
    assert open_checkpoint(tmp_path / "m.gguf", "gguf").names()
    with pytest.raises(WeightsError, match="is a GGUF file"):
        open_checkpoint(tmp_path / "m.gguf", "safetensors")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qwen2.block_count": 4}, "lacks 12 of"),
        ({"qwen2.feed_forward_length": 64}, "mlp.gate_proj.weight has the shape"),
        ({"qwen2.attention.head_count": 5}, "share 2 key-value heads"),
        ({"qwen2.attention.head_count": 64, "qwen2.attention.head_count_kv": 64}, "odd size 1"),
        ({"qwen2.attention.head_count": 65}, "'qwen2.attention.key_length' is 0"),
        ({"qwen2.embedding_length": None}, "lacks 'qwen2.embedding_length'"),
        ({"qwen2.block_count": 2**31}, "'qwen2.block_count'"),
        ({"qwen2.attention.layer_norm_rms_epsilon": float("nan")}, "not a finite number"),
        ({"qwen2.context_length": "long"}, "'qwen2.context_length' is 'long'"),
    ],
)
def test_contradictions_are_found_on_opening(tmp_path, changes, message):
    write_tiny_gguf(tmp_path / "m.gguf", changes=changes)
    with pytest.raises(WeightsError, match=message):
        open_checkpoint(tmp_path / "m.gguf")


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_random_damage_to_the_header_never_crashes(tmp_path, data):
    seed = tmp_path / "seed.gguf"
    if not seed.exists():
        changes = {"tokenizer.ggml.tokens": ["<eos>", "b"], "tokenizer.ggml.token_type": [3, 1], "tokenizer.ggml.eos_token_id": 0}
        write_tiny_gguf(seed, changes=changes)
    content = bytearray(seed.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(24, 4000))] = data.draw(st.sampled_from([0, 1, 4, 8, 9, 127, 255]))
    (tmp_path / "made.gguf").write_bytes(content)
    try:
        checkpoint = open_checkpoint(tmp_path / "made.gguf")
    except WeightsError as error:
        assert "made.gguf" in error.message
    else:
        assert all(checkpoint.tensor(name).shape == checkpoint.shape(name) for name in checkpoint.names())


def test_a_missing_tensor_and_a_missing_path_are_named(llama, tmp_path):
    with pytest.raises(WeightsError, match=r"no tensor 'lm_head\.bias'"):
        open_checkpoint(llama[0]).tensor("lm_head.bias")
    with pytest.raises(WeightsError, match="does not exist"):
        open_checkpoint(tmp_path / "none")
