"""Which part of a model one tensor-parallel rank holds: pure integer arithmetic, no tensors.

Invariant: over all ranks the parts cover everything; only key/value heads may be held by several ranks (when there are more
ranks than heads), and their query heads still belong to one rank each.
"""

from __future__ import annotations

from dataclasses import dataclass

from sapwood.core.units import div_ceil
from sapwood.errors import ConfigError


@dataclass(frozen=True, slots=True)
class HeadShard:
    """Query heads and key/value heads of one rank, as half-open ranges of the model's heads."""

    queries: range
    keys: range


def split_evenly(count: int, rank: int, size: int) -> range:
    """Rank's share of `count` items: consecutive, and no two shares differ by more than one item."""
    return range(rank * count // size, (rank + 1) * count // size)


def split_columns(count: int, rank: int, size: int, block: int = 32) -> range:
    """Rank's share of `count` MLP columns, cut only at multiples of `block` so that quantisation blocks stay whole."""
    blocks = split_evenly(div_ceil(count, block), rank, size)
    return range(min(blocks.start * block, count), min(blocks.stop * block, count))


def split_vocab(count: int, rank: int, size: int) -> range:
    """Rank's share of `count` vocabulary rows: every share has div_ceil(count, size) rows, the last ones partly past the end."""
    share = div_ceil(count, size)
    return range(rank * share, (rank + 1) * share)


def split_heads(num_heads: int, num_kv_heads: int, rank: int, size: int) -> HeadShard:
    """Rank's share of the attention heads; every local key/value head serves the same number of local query heads.

    Raises ConfigError when there are more ranks than query heads.
    """
    if size > num_heads:
        raise ConfigError(f"a model with {num_heads} attention heads cannot be split over {size} ranks; lower tp-size")
    per_key = num_heads // num_kv_heads
    if size <= num_kv_heads:
        keys = split_evenly(num_kv_heads, rank, size)
        return HeadShard(range(keys.start * per_key, keys.stop * per_key), keys)
    key = rank * num_kv_heads // size
    sharers = range(div_ceil(key * size, num_kv_heads), div_ceil((key + 1) * size, num_kv_heads))
    mine = split_evenly(per_key, rank - sharers.start, len(sharers))
    if not mine:
        raise ConfigError(
            f"{num_heads} attention heads in {num_kv_heads} groups cannot be split over {size} ranks; lower tp-size"
        )
    return HeadShard(range(key * per_key + mine.start, key * per_key + mine.stop), range(key, key + 1))
