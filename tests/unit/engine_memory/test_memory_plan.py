"""The memory plan: its sums, its automatic choices and their reasons, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.core.model_config import LayerKind, ModelConfig, RopeConfig
from sapwood.core.plan import window_claim
from sapwood.engine.memory import (
    GIB,
    Footprint,
    MemoryFacts,
    MemoryOptions,
    MemoryPlan,
    activation_bytes,
    format_bytes,
    format_table,
    plan_memory,
)
from sapwood.errors import ConfigError

CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    layers=(LayerKind(0, RopeConfig("default", 1e5)),) * 30,
    max_position=8192,
    norm_eps=1e-5,
    activation="silu",
    tie_embeddings=True,
    qkv_bias=False,
    output_bias=False,
    mlp_bias=False,
    qk_norm=False,
    post_norms=False,
    norm_plus_one=False,
    embedding_scale=1.0,
    attention_scale=0.125,
    attention_softcap=0.0,
    logit_softcap=0.0,
    eos_token_ids=(2,),
    bos_token_id=1,
    torch_dtype="bfloat16",
)
WEIGHTS = 540 << 20
FLOAT32 = Footprint(WEIGHTS, 4, 4)
TOKEN_BYTES = 2 * 30 * 3 * 64 * 4


def on_cpu(options: MemoryOptions = MemoryOptions(), available: int = 16 * GIB) -> MemoryPlan:  # noqa: B008
    return plan_memory(CONFIG, FLOAT32, MemoryFacts("cpu", 32 * GIB, available), options)


def on_cuda(total_gib: int, options: MemoryOptions = MemoryOptions()) -> MemoryPlan:  # noqa: B008
    return plan_memory(CONFIG, Footprint(WEIGHTS // 2, 2, 2), MemoryFacts("cuda", total_gib * GIB, total_gib * GIB), options)


def test_a_cpu_plan_is_a_good_neighbour() -> None:
    plan = on_cpu()
    assert plan.kv_bytes_per_token == TOKEN_BYTES
    assert 0.3 * 16 * GIB < plan.kv_bytes < 0.5 * 16 * GIB
    assert (plan.context_length, plan.chunked_prefill_size, plan.max_running_requests) == (8192, 512, 64)
    assert "other work" in dict(plan.reasons)["KV pool"]


def test_a_cpu_pool_is_no_larger_than_requests_can_use() -> None:
    plan = on_cpu(MemoryOptions(context_length=1000, max_running_requests=2))
    assert plan.num_kv_tokens == 2 * 2 * 1008
    asked_for = on_cpu(MemoryOptions(context_length=1000, max_running_requests=2, mem_fraction_static=0.25))
    assert asked_for.kv_bytes == pytest.approx(4 * GIB - WEIGHTS, rel=1e-3)


@pytest.mark.parametrize(
    ("total_gib", "chunk", "running"), [(16, 2048, 128), (24, 4096, 256), (80, 8192, 512), (192, 16384, 1024)]
)
def test_a_gpu_is_used_by_its_size(total_gib: int, chunk: int, running: int) -> None:
    plan = on_cuda(total_gib)
    assert (plan.chunked_prefill_size, plan.max_running_requests) == (chunk, running)
    assert (
        plan.kv_bytes + plan.weight_bytes == pytest.approx(0.88 * total_gib * GIB, rel=1e-3) or plan.free_bytes < TOKEN_BYTES * 16
    )


@given(
    st.builds(
        MemoryOptions,
        page_size=st.sampled_from([1, 16, 64]),
        context_length=st.none() | st.integers(64, 8192),
        max_running_requests=st.none() | st.integers(1, 300),
        chunked_prefill_size=st.none() | st.sampled_from([-1, 64, 4096]),
        mem_fraction_static=st.none() | st.floats(0.01, 0.99),
        kv_cache_bytes=st.none() | st.integers(1, 64 * GIB),
        max_total_tokens=st.none() | st.integers(1, 10**7),
    ),
    st.sampled_from(["cpu", "cuda"]),
    st.integers(0, 200 * GIB),
    st.sampled_from([1, 2, 8]),
)
def test_a_plan_fits_or_is_refused(options: MemoryOptions, kind: str, available: int, tp_size: int) -> None:
    facts = MemoryFacts(kind, 200 * GIB, available, tp_size if kind == "cpu" else 1)
    try:
        plan = plan_memory(CONFIG, FLOAT32, facts, options, tp_size)
    except ConfigError as error:
        assert error.message
        return
    parts = (plan.weight_bytes, plan.kv_bytes, plan.activation_bytes, plan.graph_bytes, plan.free_bytes)
    assert all(size >= 0 for size in parts) and sum(parts) == plan.available_bytes == available // facts.ranks_sharing
    assert plan.num_pages >= 1 and plan.kv_bytes == plan.num_kv_tokens * plan.kv_bytes_per_token
    assert plan.kv_bytes_per_token == CONFIG.kv_bytes_per_token(4, tp_size)
    assert plan.max_running_requests >= 1
    if options.max_total_tokens is not None:
        assert plan.num_kv_tokens <= options.max_total_tokens
    if options.kv_cache_bytes is not None:
        assert plan.kv_bytes <= options.kv_cache_bytes
    assert plan == plan_memory(CONFIG, FLOAT32, facts, options, tp_size)


def test_explicit_sizes_are_obeyed() -> None:
    by_bytes = on_cpu(MemoryOptions(kv_cache_bytes=GIB))
    assert by_bytes.num_pages == GIB // TOKEN_BYTES // 16
    by_tokens = on_cpu(MemoryOptions(max_total_tokens=1000, page_size=1))
    assert by_tokens.num_kv_tokens == 1000
    assert by_tokens.max_running_requests == 3  # 256 tokens each
    assert "256 tokens" in dict(by_tokens.reasons)["running requests"]


def test_a_model_that_cannot_fit_is_refused_with_the_sum() -> None:
    with pytest.raises(ConfigError) as caught:
        on_cpu(available=600 << 20)
    for part in ("weights 540 MiB", "activations", "KV pool", "600 MiB are available", "smaller model"):
        assert part in caught.value.message


@pytest.mark.parametrize(
    ("options", "param", "part"),
    [
        (MemoryOptions(kv_cache_bytes=20 * GIB), "kv_cache_bytes", "KV pool 20.00 GiB"),
        (MemoryOptions(mem_fraction_static=0.01), "mem_fraction_static", "raise it"),
        (MemoryOptions(context_length=8193), "context_length", "8192"),
        (MemoryOptions(max_total_tokens=15), None, "no page of 16"),
    ],
)
def test_options_that_cannot_work_are_named(options: MemoryOptions, param: str | None, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        on_cpu(options)
    assert caught.value.param == param and part in caught.value.message


def test_a_large_model_on_the_cpu_still_gets_a_pool() -> None:
    """Weights of more than half of the memory are no reason to refuse."""
    plan = plan_memory(CONFIG, replace(FLOAT32, weight_bytes=12 * GIB), MemoryFacts("cpu", 32 * GIB, 16 * GIB), MemoryOptions())
    assert GIB < plan.kv_bytes < 2 * GIB


def test_ranks_on_one_cpu_share_its_memory() -> None:
    plan = plan_memory(CONFIG, FLOAT32, MemoryFacts("cpu", 32 * GIB, 16 * GIB, ranks_sharing=2), MemoryOptions(), tp_size=2)
    assert plan.available_bytes == 8 * GIB


def test_activations_grow_with_the_step_and_shrink_with_the_ranks() -> None:
    base = activation_bytes(CONFIG, FLOAT32, 512, 64)
    assert activation_bytes(CONFIG, FLOAT32, 1024, 64) > base < activation_bytes(CONFIG, FLOAT32, 512, 128)
    assert activation_bytes(CONFIG, FLOAT32, 512, 64, tp_size=3) < base


LOCAL, GLOBAL = LayerKind(512, RopeConfig("default", 1e4)), LayerKind(0, RopeConfig("default", 1e6))
GEMMA = replace(CONFIG, layers=((LOCAL,) * 5 + (GLOBAL,)) * 5, max_position=32768)


def gemma_plan(options: MemoryOptions, available: int = 16 * GIB) -> MemoryPlan:
    return plan_memory(GEMMA, FLOAT32, MemoryFacts("cpu", 32 * GIB, available), options)


def test_layers_with_a_window_get_what_running_requests_can_use_of_it() -> None:
    plan = gemma_plan(MemoryOptions(max_running_requests=8))
    assert plan.window == 512 and plan.kv_bytes_per_token == TOKEN_BYTES // 6
    assert plan.num_window_pages == 2 * 8 * window_claim(512, 16) + 2 * 512 // 16
    assert plan.window_bytes == plan.num_window_pages * 16 * (TOKEN_BYTES - TOKEN_BYTES // 6)
    assert plan.kv_bytes == plan.num_kv_tokens * plan.kv_bytes_per_token + plan.window_bytes
    row = next(row for row in plan.table() if row.name == "window pool")
    assert "512 tokens" in row.reason and "9,984 tokens" in row.reason


def test_where_memory_is_short_the_window_leaves_room_for_contexts() -> None:
    plan = gemma_plan(MemoryOptions(kv_cache_bytes=64 << 20))
    assert plan.kv_bytes <= 64 << 20
    assert 0.75 < plan.num_window_pages / plan.num_pages <= 0.8
    by_ratio = gemma_plan(MemoryOptions(kv_cache_bytes=1 << 30, window_ratio=0.1))
    assert by_ratio.num_window_pages == pytest.approx(by_ratio.num_pages * 0.1, abs=1)
    assert gemma_plan(MemoryOptions(max_total_tokens=160)).num_window_pages == 10


def test_one_pool_for_all_layers_says_why() -> None:
    plan = gemma_plan(MemoryOptions(one_pool_because="--disable-hybrid-swa-memory"))
    assert (plan.window, plan.num_window_pages, plan.kv_bytes_per_token) == (0, 0, TOKEN_BYTES)
    row = next(row for row in plan.table() if row.name == "window pool")
    assert (row.value, row.reason) == ("none", "--disable-hybrid-swa-memory")


def test_a_model_that_has_windows_only_pays_for_nothing_else() -> None:
    config = replace(CONFIG, layers=(LOCAL,) * 30)
    plan = plan_memory(config, FLOAT32, MemoryFacts("cpu", 32 * GIB, 16 * GIB), MemoryOptions(max_running_requests=4))
    assert plan.kv_bytes_per_token == 0 and plan.kv_bytes == plan.window_bytes > 0
    assert plan.num_pages == 2 * 4 * 8192 // 16


def test_the_table_shows_every_size_and_the_reasons() -> None:
    plan = on_cpu()
    rows = {row.name: row for row in plan.table()}
    names = ["weights", "KV pool", "activations", "graphs", "left", "pages", "context length", "prompt chunk", "running requests"]
    assert list(rows) == names
    assert rows["weights"].value == "540 MiB"
    assert all(rows[name].reason for name in ("KV pool", "context length", "prompt chunk", "running requests"))
    assert len(format_table(plan).splitlines()) == len(rows)
    assert {"whole prompts"} == {
        r.value for r in on_cpu(MemoryOptions(chunked_prefill_size=-1)).table() if r.name == "prompt chunk"
    }


def test_sizes_for_people() -> None:
    assert [format_bytes(n) for n in (0, 1023, 1536, 540 << 20, 3 * GIB // 2, 5000 * GIB)] == [
        "0 B",
        "1023 B",
        "1.50 KiB",
        "540 MiB",
        "1.50 GiB",
        "4.88 TiB",
    ]
