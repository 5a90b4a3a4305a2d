"""Names for pages: a hash of a page's tokens, of all tokens before it and of the namespace.

Pure functions. Invariant: equal keys mean equal runs in equal namespaces, on every machine and in every process; nobody can
compute two runs with one key.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

KEY_BYTES = 32


def root_key(namespace: str, page_size: int) -> bytes:
    """The key above a namespace's first pages."""
    return blake2b(f"{page_size} {namespace}".encode(), digest_size=KEY_BYTES, person=b"sapwood root").digest()


def chained_keys(parent: bytes, run: bytes, page_bytes: int, start: int = 0) -> Iterator[bytes]:
    """The keys of the whole pages in `run[start:]`, which follow the page with key `parent`, one by one (bytes, not tokens)."""
    for position in range(start, len(run) - page_bytes + 1, page_bytes):
        parent = blake2b(parent + run[position : position + page_bytes], digest_size=KEY_BYTES, person=b"sapwood page").digest()
        yield parent
