"""The law of pages: every page has exactly one holder.

Owns the proof; changes nothing. Invariant proved: free + private + indexed + draining == total, each page once, and the index's
own laws (lock counts equal the number of users).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sapwood.kvcache.pages import PagePool
from sapwood.kvcache.prefix import PrefixIndex


def page_violations(
    pool: PagePool, index: PrefixIndex[Any], holders: Mapping[str, Iterable[int]], handles: Sequence[Any]
) -> list[str]:
    """One line per broken law; empty when all hold.

    `holders` names who holds pages beside the pool and the index ("request 7", "draining duplicates", ...); `handles` are the
    index paths in use, once per user.
    """
    problems = []
    holder_of: dict[int, str] = {}
    everyone = {"the free list": pool.free_pages, "the prefix index": index.held_pages(), **holders}
    for holder, pages in everyone.items():
        for page in pages:
            if not 0 <= page < pool.num_pages:
                problems.append(f"page {page} of {holder} is not in the pool of {pool.num_pages}")
            elif page in holder_of:
                problems.append(f"page {page} belongs to {holder_of[page]} and to {holder}")
            holder_of.setdefault(page, holder)
    if len(holder_of) < pool.num_pages:
        lost = sorted(set(range(pool.num_pages)) - set(holder_of))
        problems.append(f"{len(lost)} pages have no holder: {lost[:8]}")
    return problems + index.violations(handles)
