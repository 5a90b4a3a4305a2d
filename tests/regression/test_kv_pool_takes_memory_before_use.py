"""The native KV pool was cleared when it was made: half of the machine's memory gone, and seconds at every start."""

from __future__ import annotations

import psutil
import pytest

native = pytest.importorskip("sapwood.kernels.native._native", reason="the native module is not built; see csrc/README.md")


def test_a_large_pool_takes_memory_only_where_it_is_used() -> None:
    before = psutil.Process().memory_info().rss
    pool = native.KvPool(layers=4, kv_heads=8, head_dim=128, pages=16384, dtype="f32")
    assert pool.size_bytes > 1 << 30
    assert psutil.Process().memory_info().rss - before < 64 << 20
    assert not pool.read_token(3, 16384 * 16 - 1).any()
