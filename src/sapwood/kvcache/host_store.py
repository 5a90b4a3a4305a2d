"""Pages of KV in the host's memory: what the pool gave up, or what is on its way to and from storage.

Knows pages of a KV store and host pages; does not know what they hold. Invariant: a host page is one stretch of bytes (layer by
layer, keys before values), so that storage can keep it as it is; it changes only on the compute stream and by storage's reads.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sapwood.kvcache.store import KVStore


class HostStore:
    """`num_pages` host pages for a KV store of pages of `page_size` rows; pinned where the store is on a GPU."""

    def __init__(self, store: KVStore, num_pages: int, page_size: int) -> None:
        self._parts = [tensor for layer in store.layers for tensor in (layer.k, layer.v)]
        self._page_size = page_size
        num_elements = sum(page_size * part[0].numel() for part in self._parts)
        is_pinned = store.device.type == "cuda"
        self._on_device = is_pinned
        self._pages = torch.empty(num_pages, num_elements, dtype=self._parts[0].dtype, pin_memory=is_pinned)

    @property
    def host_pages(self) -> NDArray[np.uint8]:
        """All host pages as storage sees them, uint8 [num_pages, bytes]."""
        pages: NDArray[np.uint8] = self._pages.view(torch.uint8).numpy()
        return pages

    def save(self, pages: Tensor, host_pages: list[int]) -> None:
        """Copy pages of the store (int64 [S], on its device) into host pages."""
        if not self._on_device:
            target = torch.tensor(host_pages)
            for part, columns in self._columns():
                self._pages[target, columns] = part[pages]
            return
        staged = torch.cat([part[pages] for part, _ in self._columns()], dim=1)
        for host_page, row in zip(host_pages, staged, strict=True):
            self._pages[host_page].copy_(row, non_blocking=True)

    def load(self, host_pages: list[int], pages: Tensor) -> None:
        """Copy host pages into pages of the store (int64 [L], on its device)."""
        if self._on_device:
            staged = torch.empty(len(host_pages), self._pages.shape[1], dtype=self._pages.dtype, device=pages.device)
            for row, host_page in zip(staged, host_pages, strict=True):
                row.copy_(self._pages[host_page], non_blocking=True)
        else:
            staged = self._pages[torch.tensor(host_pages)]
        for part, columns in self._columns():
            part[pages] = staged[:, columns]

    def _columns(self) -> Iterator[tuple[Tensor, slice]]:
        """Every tensor of the store by pages [pages, elements], and where its elements lie in a host page."""
        start = 0
        for part in self._parts:
            by_page = part.view(-1, self._page_size * part[0].numel())
            yield by_page, slice(start, start + by_page.shape[1])
            start += by_page.shape[1]
