"""Builds a native engine from a checkpoint: threads, packed weights, KV pages, the recorded program, its stream.

Does not decide how much memory the KV pages take (its caller says how many). Invariant: an engine that is returned can run any
plan within its limits of at most `max_rows` tokens per step.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from sapwood.core.plan import EngineLimits
from sapwood.engine.native_cache import NO_WEIGHT_CACHE, WeightCache, WeightFile
from sapwood.engine.native_runner import NativeEngine
from sapwood.engine.native_weights import NativeWeights, StoredTensors
from sapwood.errors import ConfigError
from sapwood.kernels.native import _native
from sapwood.kernels.native.record import ProgramLimits, record_decoder

__all__ = ["NO_WEIGHT_CACHE", "NativeTypes", "WeightFile", "arithmetic", "create_native_engine"]

LOGIT_ROWS_AT_ONCE = 64
"""Rows of logits that exist at a time; a step with more sampling or reporting rows computes them in blocks."""


@dataclass(frozen=True, slots=True)
class NativeTypes:
    """How numbers are kept: keys and values (f16, f32, i8), weights rounded at load (none, int8, int4), and the inputs of
    products with weights of 4 to 6 bits (8 or 16 bits)."""

    kv: str = "f16"
    quantization: str = "none"
    activation_bits: int = 8


def create_native_engine(
    checkpoint: StoredTensors,
    limits: EngineLimits,
    *,
    max_rows: int,
    threads: int,
    types: NativeTypes,
    cache: WeightCache = NO_WEIGHT_CACHE,
) -> NativeEngine:
    """An engine for steps of at most `max_rows` tokens on `threads` threads. What `cache` lacks is packed, and kept there.

    Raises ConfigError for limits that the native engine does not have, WeightsError for a checkpoint that it cannot pack.
    """
    if limits.page_size % _native.PAGE_TOKENS:
        raise ConfigError(
            f"a page of {limits.page_size} tokens is not made of the native engine's pages of {_native.PAGE_TOKENS}; "
            "take a multiple, or leave the page size out",
            param="page_size",
        )
    config = checkpoint.config
    pool = _native.ThreadPool(threads)
    span = limits.page_size // _native.PAGE_TOKENS
    windows = [bool(kind.window) for kind in config.layers] if limits.window else []
    sizes_kv = (config.num_layers, config.num_kv_heads, config.head_dim)
    kv = _native.KvPool(*sizes_kv, limits.num_pages * span, types.kv, windows, limits.num_window_pages * span)
    host = _native.HostPages(kv, limits.num_host_pages, span)
    sizes = ProgramLimits(limits.num_slots, limits.max_len, max_rows, LOGIT_ROWS_AT_ONCE)
    weights = NativeWeights(checkpoint, pool, limits.max_len, cache.load(pool), types.quantization)
    recorded = record_decoder(config, weights, pool, kv, sizes, host, wide_activations=types.activation_bits == 16)
    if weights.num_new:
        cache.save(weights.matrices, pool)
    return NativeEngine(limits, recorded.program, _native.ComputeStream(pool), host)


def arithmetic() -> str:
    """A name for the numbers that come out: the instruction set, and the very build of the kernels (so no version to forget)."""
    build = blake2b(Path(str(_native.__file__)).read_bytes(), digest_size=16).hexdigest()
    return f"{_native.isa()} {build}"
