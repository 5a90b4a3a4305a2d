"""The contract of a storage for pages of KV that outlives the process, and the registry of its kinds.

Knows bytes under keys, not tokens. Invariant of every kind: what `read` delivers is, bit for bit, what was written under that key
by an engine with the same fingerprint; whatever is missing, damaged or foreign is a miss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

from sapwood.registry import Registry

CHECKSUM_BYTES = 16


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """`where` is the kind's own address (a folder, a URL); `fingerprint` (32 bytes) names everything that a page's content
    depends on besides its tokens; every page has `page_bytes`; at most `max_bytes` are kept."""

    where: str
    fingerprint: bytes
    page_bytes: int
    max_bytes: int


class Storage(Protocol):
    """Called from two threads at most, one that reads and one that writes. OSError says that the storage cannot be reached."""

    def count_leading(self, keys: Sequence[bytes]) -> int:
        """How many of the keys, from the first on, are held."""
        ...

    def read(self, key: bytes, into: memoryview) -> bool:
        """Fill `into` with the page under `key`; False (and any content) when it is missing or damaged."""
        ...

    def write(self, key: bytes, data: memoryview) -> None:
        """Keep a page, unless it is kept already."""
        ...

    def close(self) -> None:
        """Finish what was begun; nothing is called afterwards."""
        ...


def page_checksum(fingerprint: bytes, key: bytes, data: memoryview) -> bytes:
    """What proves that `data` is the page under `key` of an engine with this fingerprint."""
    digest = blake2b(key, digest_size=CHECKSUM_BYTES, key=fingerprint)
    digest.update(data)
    return digest.digest()


storage_backends: Registry[Callable[[StorageOptions], Storage]] = Registry("cache storage")
