"""GGUF metadata becomes a ModelConfig; what is not supported is refused by name."""

from __future__ import annotations

import numpy as np
import pytest
from weights_files import GGUF_SIZES, write_gguf, write_tiny_gguf

from sapwood.core.model_config import LayerKind, RopeConfig
from sapwood.errors import WeightsError
from sapwood.weights.gguf import GgufFile
from sapwood.weights.gguf_config import read_gguf_config
from sapwood.weights.rope import yarn_magnitude

PLAIN = RopeConfig("default", 10_000.0)


def config_of(tmp_path, architecture="qwen2", **changes):
    keyed = {(key if key.startswith("tokenizer") else f"{architecture}.{key}"): value for key, value in changes.items()}
    write_tiny_gguf(tmp_path / "m.gguf", architecture, keyed)
    return read_gguf_config(GgufFile(tmp_path / "m.gguf"))


def test_sizes_and_flags(tmp_path):
    config = config_of(tmp_path)
    assert (config.architecture, config.vocab_size, config.hidden_size, config.intermediate_size) == ("qwen2", 96, 64, 128)
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.num_layers, config.max_position) == (4, 2, 16, 3, 128)
    assert config.qkv_bias and config.tie_embeddings and not (config.output_bias or config.mlp_bias or config.qk_norm)
    assert config.attention_scale == 0.25 and config.embedding_scale == 1.0 and config.activation == "silu"
    assert config.layers == (LayerKind(0, PLAIN),) * 3
    assert config.eos_token_ids == () and config.bos_token_id is None and config.torch_dtype == "float32"


def test_gemma(tmp_path):
    changes = {"attention.key_length": 16, "attention.sliding_window": 8, "attention.sliding_window_pattern": 3}
    config = config_of(tmp_path, "gemma3", **changes)
    local, full = LayerKind(8, PLAIN), LayerKind(0, RopeConfig("default", 1e6))
    assert config.layers == (local, local, full)
    assert config.qk_norm and config.post_norms and not config.norm_plus_one
    assert config.activation == "gelu_tanh" and config.embedding_scale == 8.0


def test_gemma_layers_may_be_listed_and_global_layers_scaled(tmp_path):
    changes = {"attention.sliding_window": 8, "attention.sliding_window_pattern": [True, False, True]}
    config = config_of(tmp_path, "gemma3", **changes, **{"rope.scaling.type": "linear", "rope.scaling.factor": 8.0})
    full = LayerKind(0, RopeConfig("linear", 1e6, (("factor", 8.0),)))
    assert config.layers == (LayerKind(8, PLAIN), full, LayerKind(8, PLAIN))


def test_mistral_is_a_llama_whose_layers_all_slide(tmp_path):
    config = config_of(tmp_path, "llama", **{"attention.sliding_window": 32, "rope.freq_base": 5000.0})
    assert config.layers == (LayerKind(32, RopeConfig("default", 5000.0)),) * 3


def test_yarn_and_linear(tmp_path):
    yarn = config_of(
        tmp_path,
        **{"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32},
    ).layers[0].rope  # fmt: skip
    assert (yarn.kind, yarn["factor"], yarn["original_max_position"], yarn["beta_fast"]) == ("yarn", 4.0, 32.0, 32.0)
    assert yarn["attention_factor"] == pytest.approx(yarn_magnitude(4.0))
    assert config_of(tmp_path, **{"rope.scale_linear": 2.0}).layers[0].rope == RopeConfig("linear", 10_000.0, (("factor", 2.0),))
    assert config_of(tmp_path, **{"rope.scaling.type": "none", "rope.scaling.factor": 2.0}).layers[0].rope == PLAIN


def minimal(tmp_path, **tensors):
    """The least file that has a configuration, with more tensors."""
    needed = {"token_embd.weight": np.zeros((96, 64), np.float32), "blk.0.attn_q.weight": np.zeros((64, 64), np.float16)}
    metadata = {f"llama.{key}": value for key, value in GGUF_SIZES.items()}
    return GgufFile(write_gguf(tmp_path / "m.gguf", "llama", needed | tensors, metadata))


def test_rope_factors_are_kept_one_per_frequency(tmp_path):
    factors = np.array([1, 1, 1, 1.5, 2, 4, 8, 8], np.float32)
    config = read_gguf_config(minimal(tmp_path, **{"rope_freqs.weight": factors}))
    rope = config.layers[0].rope
    assert rope.kind == "factors" and [value for _, value in rope.params] == factors.tolist()
    assert config.torch_dtype == "float16"


@pytest.mark.parametrize("factors", [[1.0] * 7, [1.0] * 7 + [0.0], [1.0] * 7 + [float("nan")]])
def test_rope_factors_must_fit(tmp_path, factors):
    with pytest.raises(WeightsError, match="rope_freqs"):
        read_gguf_config(minimal(tmp_path, **{"rope_freqs.weight": np.array(factors, np.float32)}))


def test_end_ids_are_the_named_ones_and_the_well_known_control_tokens(tmp_path):
    tokens = {
        "tokenizer.ggml.tokens": ["a", "<|im_end|>", "<end_of_turn>", "<|endoftext|>", "</s>", "<|im_start|>"],
        "tokenizer.ggml.token_type": [1, 3, 3, 1, 3, 3],
        "tokenizer.ggml.eos_token_id": 4,
        "tokenizer.ggml.eot_token_id": 2,
        "tokenizer.ggml.bos_token_id": 5,
    }
    config = config_of(tmp_path, **tokens)
    assert config.eos_token_ids == (4, 2, 1)
    assert config.bos_token_id == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"expert_count": 8}, "mixture-of-experts"),
        ({"rope.dimension_count": 8}, "partial rotary embedding"),
        ({"attention.value_length": 8}, "value heads of 8"),
        ({"rope.scaling.type": "longrope"}, "'longrope' is not supported"),
        ({"attention.head_count_kv": [2, 2, 1]}, "differs between layers"),
        ({"tokenizer.ggml.tokens": 5}, "not a list"),
        ({"tokenizer.ggml.eos_token_id": -1.0}, "not a token id"),
        ({"rope.freq_base": 0.0}, "not a positive number"),
    ],
)
def test_unsupported_and_damaged_metadata_is_refused(tmp_path, changes, message):
    with pytest.raises(WeightsError, match=message):
        config_of(tmp_path, **changes)


def test_other_architectures_and_split_files_are_refused(tmp_path):
    write_tiny_gguf(tmp_path / "m.gguf", changes={"split.count": 3})
    with pytest.raises(WeightsError, match="one part of a split model"):
        read_gguf_config(GgufFile(tmp_path / "m.gguf"))
    write_gguf(tmp_path / "m.gguf", "mamba", {"t": np.zeros(4, np.float32)})
    with pytest.raises(WeightsError, match="'mamba' is not supported"):
        read_gguf_config(GgufFile(tmp_path / "m.gguf"))
