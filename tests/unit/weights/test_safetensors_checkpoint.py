"""Hugging Face folders: whole and sharded, under canonical names, in parts; damage is found and named on opening."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma3TextConfig, LlamaConfig, Qwen2Config
from weights_files import SIZES, save_hf

from sapwood.errors import WeightsError
from sapwood.weights.checkpoint import open_checkpoint

INDEX = "model.safetensors.index.json"


@pytest.fixture
def sharded(tmp_path):
    return tmp_path, save_hf(tmp_path, LlamaConfig(**SIZES), max_shard_size="100KB")


def test_whole_and_sharded_hold_the_same(tmp_path, sharded):
    folder, tensors = sharded
    save_hf(tmp_path / "whole", LlamaConfig(**SIZES))
    whole, parts = open_checkpoint(tmp_path / "whole"), open_checkpoint(folder)
    assert len(list(folder.glob("*.safetensors"))) > 2 and (folder / INDEX).exists()
    assert set(whole.names()) == set(parts.names()) == set(tensors)
    for name, tensor in tensors.items():
        assert torch.equal(whole.tensor(name), tensor) and torch.equal(parts.tensor(name), tensor)
        assert parts.shape(name) == tuple(tensor.shape) and parts.raw(name) is None
    assert whole.nbytes == parts.nbytes == sum(tensor.nbytes for tensor in tensors.values())
    assert whole.folder == tmp_path / "whole" and whole.file is None and whole.metadata == {}


@pytest.mark.parametrize("rows", [None, slice(0, 0), slice(5, 40), slice(0, 64)])
@pytest.mark.parametrize("cols", [None, slice(0, 0), slice(7, 9), slice(32, 64)])
def test_parts_are_cut_from_the_whole(sharded, rows, cols):
    name = "model.layers.1.self_attn.q_proj.weight"
    part = open_checkpoint(sharded[0]).tensor(name, rows, cols)
    assert torch.equal(part, sharded[1][name][rows or slice(None), cols or slice(None)])


@pytest.mark.parametrize("part", [slice(0, 65), slice(70, 80), slice(0, 64, 2)])
def test_parts_outside_are_refused(sharded, part):
    with pytest.raises(ValueError, match="q_proj"):
        open_checkpoint(sharded[0]).tensor("model.layers.1.self_attn.q_proj.weight", part)


def test_the_stored_type_is_kept(tmp_path):
    save_hf(tmp_path, Qwen2Config(**SIZES))
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({name: value.bfloat16() for name, value in tensors.items()}, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    assert {checkpoint.tensor(name).dtype for name in checkpoint.names()} == {torch.bfloat16}


@pytest.mark.parametrize("old,new", [("model.", "language_model.model."), ("model.", "model.language_model."), ("model.", "")])
def test_prefixes_of_other_packagings_are_understood(tmp_path, old, new):
    expected = save_hf(tmp_path, Gemma3TextConfig(**SIZES, head_dim=16))
    tensors = load_file(tmp_path / "model.safetensors")
    renamed = {name.replace(old, new, 1): value for name, value in tensors.items()}
    save_file(renamed | {"vision_tower.patch.weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    assert set(checkpoint.names()) == set(expected) - {"lm_head.weight"}
    assert torch.equal(checkpoint.tensor("model.norm.weight"), expected["model.norm.weight"])


def test_missing_shards_are_named(sharded):
    shard = sorted(sharded[0].glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(WeightsError, match=f"lacks 1 of .*{shard.name}"):
        open_checkpoint(sharded[0])


def test_a_shard_that_lacks_what_the_index_promises(sharded):
    shard = sorted(sharded[0].glob("*.safetensors"))[1]
    save_file({"other": torch.zeros(1)}, shard)
    with pytest.raises(WeightsError, match=f"{shard.name} lacks 'model"):
        open_checkpoint(sharded[0])


@pytest.mark.parametrize("place", ["../model.safetensors", "/etc/passwd", "a/b.safetensors", "pickle.bin", 7, ".."])
def test_an_index_cannot_lead_out_of_the_folder(sharded, place):
    index = json.loads((sharded[0] / INDEX).read_text())
    index["weight_map"]["model.norm.weight"] = place
    (sharded[0] / INDEX).write_text(json.dumps(index))
    with pytest.raises(WeightsError, match="no file of this folder"):
        open_checkpoint(sharded[0])


@pytest.mark.parametrize("length", [0, 4, 8, 200, -1])
def test_truncated_files_are_refused(tmp_path, length):
    save_hf(tmp_path, LlamaConfig(**SIZES))
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(WeightsError, match="not a usable safetensors file"):
        open_checkpoint(tmp_path)


def test_a_header_that_claims_to_be_huge_is_refused(tmp_path):
    save_hf(tmp_path, LlamaConfig(**SIZES))
    path = tmp_path / "model.safetensors"
    path.write_bytes((2**62).to_bytes(8, "little") + path.read_bytes()[8:])
    with pytest.raises(WeightsError, match="not a usable safetensors file"):
        open_checkpoint(tmp_path)


def test_missing_tensors_wrong_shapes_and_unsupported_types_are_named(tmp_path):
    save_hf(tmp_path, LlamaConfig(**SIZES))
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    save_file({name: value for name, value in tensors.items() if name != "lm_head.weight"}, path)
    with pytest.raises(WeightsError, match=r"lacks 1 of 30 tensors \(lm_head"):
        open_checkpoint(tmp_path)
    save_file(tensors | {"model.norm.weight": torch.zeros(63)}, path)
    with pytest.raises(WeightsError, match=r"model\.norm\.weight has the shape \(63,\)"):
        open_checkpoint(tmp_path)
    save_file(tensors | {"model.norm.weight": torch.zeros(64, dtype=torch.int8)}, path)
    with pytest.raises(WeightsError, match=r"'model\.norm\.weight' is stored as I8"):
        open_checkpoint(tmp_path)


def test_pickled_weights_are_refused_with_advice(tmp_path):
    save_hf(tmp_path, LlamaConfig(**SIZES))
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(WeightsError, match=r"convert its \.bin files"):
        open_checkpoint(tmp_path)


def test_fingerprint_follows_weights_and_configuration(tmp_path):
    save_hf(tmp_path, LlamaConfig(**SIZES))
    before = open_checkpoint(tmp_path).fingerprint()
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    again = open_checkpoint(tmp_path).fingerprint()
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-5}))
    other_config = open_checkpoint(tmp_path).fingerprint()
    save_file({name: value * 2 for name, value in tensors.items()}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert before == again and len({before, other_config, open_checkpoint(tmp_path).fingerprint()}) == 3


def test_tensors_outlive_close(sharded):
    checkpoint = open_checkpoint(sharded[0])
    tensor = checkpoint.tensor("model.norm.weight")
    checkpoint.close()
    assert torch.equal(tensor, sharded[1]["model.norm.weight"])
