"""The tiers below the KV cache, as one rank builds them: how many host pages, which storage, and whose pages those are.

Composes; decides only sizes. Invariant: two engines get one fingerprint only if equal tokens give them equal bytes of KV.
"""

from __future__ import annotations

import platform
from hashlib import blake2b
from pathlib import Path

from sapwood.config.sections import CacheSection
from sapwood.core.plan import TieredEngine
from sapwood.kvcache import storage_file, storage_redis
from sapwood.kvcache.storage import StorageOptions, storage_backends
from sapwood.weights.catalog import cache_folder
from sapwood.worker.transfers import NoTransfers, StorageTransfers, Transfers

__all__ = ["count_host_pages", "fingerprint", "open_transfers", "storage_file", "storage_redis"]

FORMAT_VERSION = 2
"""Raise it whenever models compute other numbers or the reference's pages change (native kernels name their own build)."""


def count_host_pages(cache: CacheSection, num_pages: int, page_bytes: int) -> int:
    """Pages of the host's tier; at least one where there is such a tier."""
    if cache.host_bytes == 0:
        return 0
    wanted = cache.host_ratio * num_pages if cache.host_bytes is None else cache.host_bytes / page_bytes
    return max(int(wanted), 1)


def fingerprint(*facts: object) -> bytes:
    """A digest of `facts`: everything that a page's bytes depend on besides its tokens."""
    return blake2b(repr((FORMAT_VERSION, platform.machine(), facts)).encode(), digest_size=32).digest()


def open_transfers(cache: CacheSection, engine: TieredEngine, identity: bytes) -> Transfers:
    """The storage that `cache` asks for, behind the threads that serve it; raises ConfigError when it cannot be used."""
    if cache.storage == "none":
        return NoTransfers()
    where = cache.storage_path or str(Path(cache_folder()) / "kv")
    pages = engine.host_pages
    options = StorageOptions(where, identity, pages.shape[1], cache.storage_bytes)
    return StorageTransfers(storage_backends.get(cache.storage)(options), pages)
