"""Random weights: seeded, by name alone, in parts, and of every tensor that the model has."""

from __future__ import annotations

import pytest
import torch
from transformers import Gemma3TextConfig
from weights_files import SIZES, tiny_config, write_tiny_gguf

from sapwood.errors import WeightsError
from sapwood.weights.checkpoint import check_complete, open_checkpoint
from sapwood.weights.dummy import DummyCheckpoint

NAME = "model.layers.2.mlp.down_proj.weight"


def test_is_complete_and_follows_its_seed():
    config = tiny_config(qkv_bias=True, qk_norm=True, post_norms=True, tie_embeddings=False, mlp_bias=True, output_bias=True)
    dummy, same, other = DummyCheckpoint(config, 1), DummyCheckpoint(config, 1), DummyCheckpoint(config, 2)
    check_complete(dummy, "dummy")
    assert torch.equal(dummy.tensor(NAME), same.tensor(NAME)) and not torch.equal(dummy.tensor(NAME), other.tensor(NAME))
    assert dummy.fingerprint() == same.fingerprint() != other.fingerprint()
    assert not torch.equal(dummy.tensor(NAME), dummy.tensor(NAME.replace("2", "1")))
    assert dummy.nbytes == sum(dummy.tensor(name).nbytes for name in dummy.names())


def test_parts_are_cut_from_the_whole():
    dummy = DummyCheckpoint(tiny_config(torch_dtype="bfloat16"))
    part = dummy.tensor(NAME, slice(3, 9), slice(0, 64))
    assert torch.equal(part, dummy.tensor(NAME)[3:9, :64]) and part.dtype == torch.bfloat16 and part.is_contiguous()


@pytest.mark.parametrize(("plus_one", "stored"), [(False, 1.0), (True, 0.0)])
def test_norms_do_not_scale(plus_one, stored):
    dummy = DummyCheckpoint(tiny_config(norm_plus_one=plus_one))
    assert dummy.tensor("model.norm.weight").eq(stored).all()


def test_only_the_configuration_need_be_there(tmp_path):
    Gemma3TextConfig(**SIZES, head_dim=16).save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path, "dummy", seed=5)
    assert checkpoint.folder == tmp_path and checkpoint.tensor("model.norm.weight").eq(0).all()
    write_tiny_gguf(tmp_path / "m.gguf")
    from_file = open_checkpoint(tmp_path / "m.gguf", "dummy")
    assert from_file.file == tmp_path / "m.gguf" and from_file.metadata["general.architecture"] == "qwen2"
    assert from_file.raw(NAME) is None


def test_a_missing_tensor_is_named():
    with pytest.raises(WeightsError, match="no tensor 'x'"):
        DummyCheckpoint(tiny_config()).tensor("x")
