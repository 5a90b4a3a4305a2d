"""The laws of the radix tree, checked by walking all of it.

Owns the checks; changes nothing. Invariant proved: user counts equal the users there are, counters equal the sums, keys cover
pages, siblings are sorted and differ within their first page, unlocked leaves can be evicted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Protocol

from sapwood.core.request import ID_BYTES
from sapwood.kvcache.eviction import is_evictable_leaf
from sapwood.kvcache.radix_node import RadixNode


class Tree(Protocol):
    """What the checks look at."""

    num_pages: int
    num_evictable: int

    def nodes(self) -> Iterator[RadixNode]:
        """Every node, roots included."""
        ...


def tree_violations(tree: Tree, page_bytes: int, handles: Sequence[RadixNode]) -> list[str]:
    """One line per broken law; empty when all hold."""
    users = Counter(id(node) for handle in handles for node in handle.path())
    nodes = list(tree.nodes())
    problems = [problem for node in nodes for problem in _node_violations(node, page_bytes, users[id(node)])]
    lost = set(users) - {id(node) for node in nodes}
    if lost:
        problems.append(f"{len(lost)} nodes on users' paths are not in the tree")
    num_pages = sum(len(node.pages) for node in nodes)
    num_evictable = sum(len(node.pages) for node in nodes if not node.num_users)
    if (tree.num_pages, tree.num_evictable) != (num_pages, num_evictable):
        problems.append(
            f"counters say {tree.num_pages} pages, {tree.num_evictable} evictable; it is {num_pages}, {num_evictable}"
        )
    return problems


def _node_violations(node: RadixNode, page_bytes: int, num_users: int) -> Iterator[str]:
    where = f"node of pages {node.pages[:4]}"
    if node.num_users != num_users:
        yield f"{where}: counts {node.num_users} users, has {num_users}"
    if node.parent is not None:
        num_tokens = len(node.key) // ID_BYTES
        is_tail = len(node.pages) == 1 and 0 < len(node.key) < page_bytes and not node.children
        if not node.pages or (len(node.key) != len(node.pages) * page_bytes and not is_tail):
            yield f"{where}: {num_tokens} tokens in {len(node.pages)} pages"
        if is_evictable_leaf(node) and not node.is_queued:
            yield f"{where}: unlocked leaf that can never be evicted"
    if node.child_keys != sorted(set(node.child_keys)):
        yield f"{where}: children are not sorted or begin alike"
    for child, key in zip(node.children, node.child_keys, strict=True):
        if child.parent is not node or bytes(child.key[:page_bytes]) != key:
            yield f"{where}: a child is filed under the wrong key or does not know its parent"
    for shorter, longer in zip(node.children, node.child_keys[1:], strict=False):
        if longer.startswith(bytes(shorter.key)) and len(shorter.key) < len(longer) and not shorter.is_superseded:
            yield f"{where}: a tail is covered by a longer sibling but not superseded"
