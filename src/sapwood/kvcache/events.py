"""What a prefix cache tells routers: which blocks (whole pages of confirmed tokens) it now holds, and which no longer.

Owns the events of one decision; does not send them. Invariant: a block is announced after its tokens are confirmed, removed at
most once after each time it was stored, and named by the chain of tokens before it, equally on every replica.

The form on the wire is the one that vLLM and SGLang publish, so that their routers understand it: arrays that begin with the
event's name.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sapwood.core.request import ID_BYTES
from sapwood.messages.types import unpack_ids

HASH_BYTES = 8


class BlockStored(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Blocks of `block_size` tokens each, in order, that follow the block `parent_block_hash` (None: they begin a run)."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None


class BlockRemoved(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Blocks that are no longer in the first tier."""

    block_hashes: list[int]


class AllBlocksCleared(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The cache was flushed."""


CacheEvent = BlockStored | BlockRemoved | AllBlocksCleared


def block_hash(key: bytes) -> int:
    """The public name of a block: the first bytes of its chained key, as an unsigned number."""
    return int.from_bytes(key[:HASH_BYTES], "little")


class EventLog:
    """Gathers events until they are taken; a log that is not `is_on` stays empty."""

    def __init__(self, page_size: int, *, is_on: bool) -> None:
        self._page_size = page_size
        self._is_on = is_on
        self._events: list[CacheEvent] = []

    def stored(self, keys: Sequence[bytes], parent: bytes | None, run: bytes) -> None:
        """Pages with these keys, which hold `run`, entered below `parent` (None: at the beginning)."""
        if self._is_on and keys:
            token_ids = unpack_ids(run[: len(keys) * self._page_size * ID_BYTES]).tolist()
            above = None if parent is None else block_hash(parent)
            self._events.append(BlockStored([*map(block_hash, keys)], above, token_ids, self._page_size))

    def removed(self, keys: Sequence[bytes]) -> None:
        """Pages with these keys were evicted."""
        if self._is_on and keys:
            self._events.append(BlockRemoved([*map(block_hash, keys)]))

    def cleared(self) -> None:
        """Everything is gone."""
        if self._is_on:
            self._events.append(AllBlocksCleared())

    def take(self) -> list[CacheEvent]:
        """The events since the last call, in order."""
        events, self._events = self._events, []
        return events
