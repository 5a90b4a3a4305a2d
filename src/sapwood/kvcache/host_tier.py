"""The second tier's pages: which host page holds what, in order of use.

Owns the free list and the entries by key; does not know why pages are saved or when plans run. Invariant: a host page is free,
under exactly one key, or retired (dropped while in use, free once its users are done); a page in use is never given away.
"""

from __future__ import annotations

from collections import OrderedDict

from sapwood.kvcache.prefix import HostPage


class HostTier:
    """A pool of host pages that forgets the least recently used first. All operations are O(1)."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, -1, -1))
        self._entries: dict[bytes, HostPage] = {}
        self._idle: OrderedDict[bytes, HostPage] = OrderedDict()
        self._retired: dict[int, HostPage] = {}

    @property
    def num_held(self) -> int:
        """Pages under a key."""
        return len(self._entries)

    def get(self, key: bytes) -> HostPage | None:
        """The entry under `key`; its recency does not change."""
        return self._entries.get(key)

    def touch(self, entry: HostPage) -> None:
        """Make an entry the most recently used one."""
        if entry.key in self._idle:
            self._idle.move_to_end(entry.key)

    def reserve(self, key: bytes) -> HostPage | None:
        """A page to be filled, with one user and not yet found by `get`; None when every page is in use."""
        if not self._free:
            if not self._idle:
                return None
            _, oldest = self._idle.popitem(last=False)
            del self._entries[oldest.key]
            self._free.append(oldest.page)
        entry = HostPage(key, self._free.pop(), num_users=1)
        self._retired[entry.page] = entry
        return entry

    def enter(self, entry: HostPage) -> None:
        """A reserved page is filled (or will be before anyone reads it): let it be found, unless its key is here already."""
        if entry.key not in self._entries:
            del self._retired[entry.page]
            self._entries[entry.key] = entry

    def hold(self, entry: HostPage) -> None:
        """Count a user of a page that was found and is still here."""
        if not entry.num_users and self._idle.pop(entry.key, None) is not entry:
            raise RuntimeError("a host page was held after it was given away; match again")
        entry.num_users += 1

    def release(self, entry: HostPage) -> None:
        """Drop a user."""
        entry.num_users -= 1
        if entry.num_users:
            return
        if self._retired.pop(entry.page, None) is None:
            self._idle[entry.key] = entry
        else:
            self._free.append(entry.page)

    def clear(self) -> None:
        """Forget everything; pages in use become free as their users are done."""
        for entry in self._entries.values():
            if entry.num_users:
                self._retired[entry.page] = entry
            else:
                self._free.append(entry.page)
        self._entries.clear()
        self._idle.clear()

    def violations(self) -> list[str]:
        """What is wrong with the host pages."""
        problems = []
        pages = [*self._free, *(entry.page for entry in self._entries.values()), *self._retired]
        if sorted(pages) != list(range(self.num_pages)):
            problems.append(f"{len(pages)} holders of {self.num_pages} host pages: one has two holders or none")
        idle = {key for key, entry in self._entries.items() if not entry.num_users}
        if idle != self._idle.keys() or not all(entry.num_users > 0 for entry in self._retired.values()):
            problems.append("host pages that nobody uses are not those that may be given away")
        return problems
