"""Every part of a model belongs to exactly one rank (key/value heads to at least one)."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.errors import ConfigError
from sapwood.layers.sharding import split_columns, split_evenly, split_heads, split_vocab

sizes = st.integers(1, 9)


@given(count=st.integers(0, 200), size=sizes)
def test_even_shares_cover_everything_once(count: int, size: int) -> None:
    shares = [split_evenly(count, rank, size) for rank in range(size)]
    assert list(chain(*shares)) == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(count=st.integers(1, 500), size=sizes, block=st.sampled_from([1, 32, 256]))
def test_columns_are_cut_between_blocks(count: int, size: int, block: int) -> None:
    shares = [split_columns(count, rank, size, block) for rank in range(size)]
    assert list(chain(*shares)) == list(range(count))
    assert all(share.start % block == 0 or share.start == count for share in shares)


@given(count=st.integers(1, 500), size=sizes)
def test_vocabulary_shares_are_equal_and_cover_all_ids(count: int, size: int) -> None:
    shares = [split_vocab(count, rank, size) for rank in range(size)]
    assert len({len(share) for share in shares}) == 1
    assert list(chain(*shares))[:count] == list(range(count))


@given(num_kv_heads=st.integers(1, 8), per_key=st.integers(1, 6), size=sizes)
def test_heads_are_split_with_their_keys(num_kv_heads: int, per_key: int, size: int) -> None:
    num_heads = num_kv_heads * per_key
    try:
        shards = [split_heads(num_heads, num_kv_heads, rank, size) for rank in range(size)]
    except ConfigError:
        assert size > num_kv_heads and size > num_heads // 2
        return
    assert list(chain(*(shard.queries for shard in shards))) == list(range(num_heads))
    for shard in shards:
        assert len(shard.queries) % len(shard.keys) == 0 and len(shard.queries) > 0
        local_group = len(shard.queries) // len(shard.keys)
        for local, query in enumerate(shard.queries):
            assert query // per_key == shard.keys[local // local_group]


def test_more_ranks_than_heads_are_refused() -> None:
    with pytest.raises(ConfigError, match="lower tp-size"):
        split_heads(4, 2, 0, 5)
    with pytest.raises(ConfigError, match="lower tp-size"):
        [split_heads(6, 5 - 2, rank, 7) for rank in range(7)]
