"""The free list."""

from __future__ import annotations

import pytest

from sapwood.kvcache.pages import PagePool


def test_pages_are_taken_in_order_and_the_last_freed_first() -> None:
    pool = PagePool(4, 16)
    assert pool.take(3) == [0, 1, 2]
    pool.give_back([1, 2])
    assert pool.take(2) == [1, 2]
    assert pool.num_free == 1
    assert pool.take(0) == []


def test_taking_more_than_is_free_is_an_error() -> None:
    pool = PagePool(2, 1)
    with pytest.raises(RuntimeError, match="evict before taking"):
        pool.take(3)
    assert pool.num_free == 2
