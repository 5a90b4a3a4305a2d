"""One node of the radix index, and how token runs are compared.

Owns the sorted children of a node; does not know locks' meaning or eviction order. Invariant: a node's key covers its pages
wholly, except for a tail (one partly filled page, a leaf); siblings differ within their first page and are sorted by it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

import numpy as np

from sapwood.core.request import ID_BYTES


def num_common_tokens(key: bytes | bytearray, run: bytes, start: int = 0) -> int:
    """How many leading tokens `key` shares with `run[start:]` (`start` in bytes)."""
    if run.startswith(key, start):
        return len(key) // ID_BYTES
    count = min(len(key), len(run) - start) // ID_BYTES
    if count <= 0:
        return 0
    differs = np.frombuffer(key, "<i4", count) != np.frombuffer(run, "<i4", count, start)
    first = int(differs.argmax())
    return first if differs[first] else count


class RadixNode:
    """A run of tokens below `parent`: `key` bytes, the `pages` that hold them, `num_users` requests on paths through
    here. `namespace` is set on roots only; a dead node was flushed while in use, a superseded tail was while copied from."""

    __slots__ = (
        "key",
        "pages",
        "parent",
        "namespace",
        "child_keys",
        "children",
        "num_users",
        "last_used",
        "is_queued",
        "is_dead",
        "is_superseded",
    )

    def __init__(self, key: bytes | bytearray, pages: list[int], parent: RadixNode | None) -> None:
        self.key = bytearray(key)
        self.pages = pages
        self.parent = parent
        self.namespace = ""
        self.child_keys: list[bytes] = []
        self.children: list[RadixNode] = []
        self.num_users = 0
        self.last_used = 0
        self.is_queued = False
        self.is_dead: bool = parent.is_dead if parent is not None else False
        self.is_superseded = False

    def child_at(self, page_run: bytes) -> RadixNode | None:
        """The child that begins with exactly this page (or tail) of tokens."""
        index = bisect_left(self.child_keys, page_run)
        if index < len(self.child_keys) and self.child_keys[index] == page_run:
            return self.children[index]
        return None

    def closest_child(self, page_run: bytes) -> tuple[RadixNode | None, int]:
        """The child that shares the most leading tokens with `page_run`, and how many (None, 0 when none shares any).

        In sorted order the longest common prefix is next to where the run itself would stand.
        """
        best, best_count = None, 0
        index = bisect_left(self.child_keys, page_run)
        for neighbour in (index, index - 1):
            if 0 <= neighbour < len(self.child_keys):
                count = num_common_tokens(self.child_keys[neighbour], page_run)
                if count > best_count:
                    best, best_count = self.children[neighbour], count
        return best, best_count

    def superseded_by(self, page_run: bytes) -> RadixNode | None:
        """The tail whose tokens all begin `page_run` as well, if there is one."""
        index = bisect_left(self.child_keys, page_run) - 1
        if index >= 0 and len(self.child_keys[index]) < len(page_run) and page_run.startswith(self.child_keys[index]):
            return self.children[index]
        return None

    def add_child(self, child: RadixNode, page_bytes: int) -> None:
        """File `child` under its first page."""
        page_run = bytes(child.key[:page_bytes])
        index = bisect_left(self.child_keys, page_run)
        self.child_keys.insert(index, page_run)
        self.children.insert(index, child)

    def replace_child(self, old: RadixNode, new: RadixNode, page_bytes: int) -> None:
        """Put `new`, which begins with the same page, where `old` was."""
        self.children[bisect_left(self.child_keys, bytes(old.key[:page_bytes]))] = new

    def remove_child(self, child: RadixNode, page_bytes: int) -> None:
        """Forget `child`."""
        index = bisect_left(self.child_keys, bytes(child.key[:page_bytes]))
        del self.child_keys[index], self.children[index]

    def path(self) -> Iterator[RadixNode]:
        """This node and its ancestors, the root last."""
        node: RadixNode | None = self
        while node is not None:
            yield node
            node = node.parent

    def subtree(self) -> Iterator[RadixNode]:
        """This node and everything below it, parents before children."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children)
