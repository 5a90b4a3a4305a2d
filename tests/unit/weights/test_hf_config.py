"""config.json in the spellings of old and new transformers; what is not supported is refused by name."""

from __future__ import annotations

import json

import pytest
from transformers import Gemma3Config, Gemma3TextConfig, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config
from weights_files import SIZES

from sapwood.core.model_config import LayerKind, RopeConfig
from sapwood.errors import WeightsError
from sapwood.weights.hf_config import read_hf_config
from sapwood.weights.rope import yarn_magnitude

PLAIN = RopeConfig("default", 10_000.0)
OLD = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


def parsed(tmp_path, generation=None, **values):
    (tmp_path / "config.json").write_text(json.dumps(OLD | values))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    return read_hf_config(tmp_path)


def saved(tmp_path, config):
    config.save_pretrained(tmp_path)
    return read_hf_config(tmp_path)


def test_llama(tmp_path):
    config = saved(tmp_path, LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True, tie_word_embeddings=True))
    assert (config.architecture, config.vocab_size, config.num_heads, config.num_kv_heads, config.head_dim) == (
        "llama",
        96,
        4,
        2,
        16,
    )
    assert config.qkv_bias and config.output_bias and config.mlp_bias and config.tie_embeddings
    assert not (config.qk_norm or config.post_norms or config.norm_plus_one)
    assert config.layers == (LayerKind(0, PLAIN),) * 3
    assert config.eos_token_ids == (2,) and config.bos_token_id == 1 and config.attention_scale == 0.25


def test_defaults_of_what_old_files_leave_out(tmp_path):
    config = parsed(tmp_path)
    assert config.num_kv_heads == 4 and config.head_dim == 16 and config.norm_eps == 1e-6
    assert not config.tie_embeddings and config.torch_dtype == "float32" and config.layers[0].rope.theta == 10_000.0


def test_mistral_slides_in_all_layers(tmp_path):
    assert saved(tmp_path, MistralConfig(**SIZES, sliding_window=8)).layers == (LayerKind(8, PLAIN),) * 3
    assert saved(tmp_path, MistralConfig(**SIZES, sliding_window=None)).layers == (LayerKind(0, PLAIN),) * 3
    assert parsed(tmp_path, model_type="mistral").layers[0].window == 4096
    assert parsed(tmp_path, model_type="mistral").num_kv_heads == 8


def test_qwen2(tmp_path):
    config = saved(tmp_path, Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=8, max_window_layers=1))
    assert [layer.window for layer in config.layers] == [0, 8, 8]
    assert config.qkv_bias and not config.output_bias and config.eos_token_ids == () and config.bos_token_id is None
    assert [layer.window for layer in parsed(tmp_path, model_type="qwen2").layers] == [0, 0, 0]
    old = parsed(tmp_path, model_type="qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=2)
    assert [layer.window for layer in old.layers] == [0, 0, 8]


def test_qwen3(tmp_path):
    config = saved(tmp_path, Qwen3Config(**SIZES))
    assert config.head_dim == 128 and config.qk_norm and not config.qkv_bias
    assert config.attention_scale == 128**-0.5


def test_gemma3(tmp_path):
    sizes = SIZES | {"num_hidden_layers": 7}
    config = saved(
        tmp_path, Gemma3TextConfig(**sizes, head_dim=16, sliding_window=8, query_pre_attn_scalar=64, eos_token_id=[1, 106])
    )
    assert [layer.window for layer in config.layers] == [8, 8, 8, 8, 8, 0, 8]
    assert {layer.rope.theta for layer in config.layers if layer.window} == {10_000.0}
    assert config.layers[5].rope == RopeConfig("default", 1e6)
    assert config.attention_scale == 0.125 and config.embedding_scale == 8.0 and config.activation == "gelu_tanh"
    assert config.norm_plus_one and config.post_norms and config.qk_norm and config.tie_embeddings
    assert config.eos_token_ids == (1, 106)


def test_gemma3_in_its_old_spelling_scales_only_global_layers(tmp_path):
    rope = {"rope_theta": 1e6, "rope_local_base_freq": 5000.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    config = parsed(tmp_path, model_type="gemma3_text", sliding_window=8, sliding_window_pattern=3, head_dim=16, **rope)
    local = LayerKind(8, RopeConfig("default", 5000.0))
    assert config.layers == (local, local, LayerKind(0, RopeConfig("linear", 1e6, (("factor", 8.0),))))


def test_gemma3_with_vision_uses_its_text_part(tmp_path):
    text = Gemma3TextConfig(**SIZES, head_dim=16, sliding_window=8)
    config = saved(tmp_path, Gemma3Config(text_config=text.to_dict(), eos_token_id=[1, 106]))
    assert config.architecture == "gemma3" and config.hidden_size == 64 and config.tie_embeddings
    assert set(config.eos_token_ids) == {1, 106}


def test_gemma3_with_vision_and_little_said_takes_the_defaults(tmp_path):
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text, "torch_dtype": "bfloat16"}))
    config = read_hf_config(tmp_path)
    assert (config.vocab_size, config.num_heads, config.num_kv_heads, config.head_dim) == (262_208, 8, 4, 256)
    assert config.attention_scale == 0.0625 and config.torch_dtype == "bfloat16" and config.layers[5].window == 0


def test_end_ids_are_the_union_with_the_generation_config(tmp_path):
    config = parsed(tmp_path, {"eos_token_id": [7, 2], "bos_token_id": 5}, eos_token_id=2, bos_token_id=None)
    assert config.eos_token_ids == (7, 2) and config.bos_token_id == 5


@pytest.mark.parametrize("kind", ["type", "rope_type"])
def test_scaling_in_the_old_spelling(tmp_path, kind):
    rope = parsed(tmp_path, rope_theta=5e5, rope_scaling={kind: "llama3", **LLAMA3}).layers[0].rope
    params = (("factor", 8.0), ("low_freq_factor", 1.0), ("high_freq_factor", 4.0), ("original_max_position", 64.0))
    assert rope == RopeConfig("llama3", 5e5, params)


def test_scaling_in_the_new_spelling(tmp_path):
    flat = parsed(tmp_path, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}).layers[0].rope
    assert flat == RopeConfig("linear", 5e5, (("factor", 2.0),))


@pytest.mark.parametrize(
    ("extra", "attention_factor"),
    [
        ({}, yarn_magnitude(4.0)),
        ({"attention_factor": 1.5}, 1.5),
        ({"mscale": 1.0, "mscale_all_dim": 0.5}, yarn_magnitude(4.0) / yarn_magnitude(4.0, 0.5)),
    ],
)
def test_yarn_resolves_its_attention_factor(tmp_path, extra, attention_factor):
    rope = parsed(tmp_path, rope_scaling={"rope_type": "yarn", "factor": 4.0, "beta_fast": 16, **extra}).layers[0].rope
    assert (rope["factor"], rope["beta_fast"], rope["beta_slow"], rope["original_max_position"]) == (4.0, 16.0, 1.0, 128.0)
    assert rope["attention_factor"] == pytest.approx(attention_factor)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "mamba"}, "'mamba' is not supported; supported: gemma3_text, llama"),
        ({"model_type": None}, "lacks 'model_type'"),
        ({"num_local_experts": 8}, "mixture-of-experts"),
        ({"partial_rotary_factor": 0.5}, "partial rotary"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "'longrope' is not supported"),
        ({"rope_scaling": {"rope_type": "linear"}}, "lacks 'factor'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "truncate": False}}, "without truncation"),
        ({"rope_scaling": 5}, "not an object"),
        ({"hidden_act": "relu"}, "the activation 'relu'"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised with 'awq'"),
        ({"dtype": "float8"}, "the data type 'float8'"),
        ({"hidden_size": "64"}, "'hidden_size' is '64'"),
        ({"hidden_size": True}, "'hidden_size' is True"),
        ({"hidden_size": -1}, "'hidden_size' is -1"),
        ({"num_hidden_layers": 10**9}, "'num_hidden_layers'"),
        ({"rope_theta": 10**400}, "not a finite number"),
        ({"rms_norm_eps": float("nan")}, "not a finite number"),
        ({"rms_norm_eps": 0}, "not a positive number"),
        ({"tie_word_embeddings": "no"}, "not true or false"),
        ({"eos_token_id": [2, "x"]}, "not a token id"),
        ({"model_type": "qwen3", "use_sliding_window": True, "layer_types": ["full_attention"]}, "must list 3 layers"),
        ({"model_type": "qwen3", "use_sliding_window": True, "layer_types": ["linear_attention"] * 3}, "'linear_attention'"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "bidirectional"),
        ({"model_type": "gemma3_text", "query_pre_attn_scalar": 0}, "not a positive number"),
    ],
)
def test_unsupported_and_damaged_values_are_refused(tmp_path, values, message):
    with pytest.raises(WeightsError, match=message):
        parsed(tmp_path, **values)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_json_object_is_refused(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(WeightsError, match=r"config\.json"):
        read_hf_config(tmp_path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(WeightsError, match=r"config\.json: No such file"):
        read_hf_config(tmp_path)
