"""Paged attention of the torch backend, cut into dense tiles: requests x queries x keys.

Single queries (decode) of requests with contexts of similar length share a padded tile, so a decode batch takes a few torch
calls rather than one per request; a prompt chunk becomes blocks of consecutive queries. Tiles are planned once per step and
serve every layer of one kind. Invariant: a hidden lane never adds to a result, and a padded lane reads a row that its own
request wrote, so stale rows (which may hold NaN) are never read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from sapwood.core.plan import RowRun
from sapwood.kernels.api import AttentionShape, KVLayer, StepGeometry
from sapwood.kernels.reference.elementwise import soft_cap

MAX_TILE_SCORES = 1 << 20
"""Queries x keys per tile and head; bounds the score matrix."""
MAX_BLOCK_QUERIES = 256
SHORT_CONTEXT = 128
"""Contexts up to this many keys share a tile however much their lengths differ."""


@dataclass(frozen=True, slots=True)
class Tile:
    """B requests x Q queries x C keys. `tokens` selects the B*Q queries among the step's tokens, request by request.

    `lanes` (int64 [B, G, C]) are the keys' rows in a KV layer viewed as [L*G, D]; `is_hidden` (bool [B, 1, Q, C]) masks.
    """

    tokens: slice | Tensor
    lanes: Tensor
    is_hidden: Tensor


def plan_tiles(geometry: StepGeometry, shape: AttentionShape) -> list[Tile]:
    """Tiles that together hold every query of the step exactly once."""
    tiles: list[Tile] = []
    singles: list[tuple[int, RowRun]] = []
    token = 0
    for row in geometry.rows:
        if row.count == 1:
            singles.append((token, row))
        else:
            tiles.extend(_block_tiles(geometry, shape, row, token))
        token += row.count
    tiles.extend(_single_tile(geometry, shape, group) for group in _similar(singles, shape.window))
    return tiles


def attend_tile(q: Tensor, kv: KVLayer, shape: AttentionShape, tile: Tile) -> Tensor:
    """Softmax attention of q [B*Q, H, D] over the tile's keys, float32, in the shape of q."""
    num_requests, num_kv_heads, num_keys = tile.lanes.shape
    num_queries, head_dim = q.shape[0] // num_requests, shape.head_dim
    k = F.embedding(tile.lanes, kv.k.view(-1, head_dim)).float()
    v = F.embedding(tile.lanes, kv.v.view(-1, head_dim)).float()
    # Query heads that share a key/value head are rows of one product: [B, G, Q * H/G, D] against [B, G, C, D].
    grouped = q.view(num_requests, num_queries, num_kv_heads, -1, head_dim).transpose(1, 2)
    group_size = grouped.shape[3]
    rows = grouped.reshape(num_requests, num_kv_heads, num_queries * group_size, head_dim)
    scores = soft_cap((rows * shape.scale) @ k.transpose(-1, -2), shape.softcap)
    scores = scores.view(num_requests, num_kv_heads, num_queries, group_size, num_keys)
    scores.masked_fill_(tile.is_hidden[:, :, :, None], float("-inf"))
    mixed = scores.softmax(dim=-1).view(num_requests, num_kv_heads, -1, num_keys) @ v
    return mixed.view(num_requests, num_kv_heads, num_queries, group_size, head_dim).transpose(1, 2).reshape(q.shape)


def _first_key(position: int, window: int) -> int:
    """The first key position that a query at `position` sees."""
    return max(0, position - window + 1) if window else 0


def _lanes(locations: Tensor, num_kv_heads: int) -> Tensor:
    """Rows in the [L*G, D] view for locations [B, C], for every key/value head: [B, G, C]."""
    heads = torch.arange(num_kv_heads, device=locations.device)
    return locations[:, None].long() * num_kv_heads + heads[:, None]


def _similar(singles: list[tuple[int, RowRun]], window: int) -> Iterator[list[tuple[int, RowRun]]]:
    """Cut single queries into groups whose padded size is at most twice their real size (short contexts apart)."""
    ordered = sorted(singles, key=lambda item: item[1].first)
    group: list[tuple[int, RowRun]] = []
    limit = 0
    for item in ordered:
        position = item[1].first
        num_keys = position + 1 - _first_key(position, window)
        if group and (num_keys > limit or (len(group) + 1) * num_keys > MAX_TILE_SCORES):
            yield group
            group = []
        if not group:
            limit = max(2 * num_keys, SHORT_CONTEXT)
        group.append(item)
    if group:
        yield group


def _single_tile(geometry: StepGeometry, shape: AttentionShape, group: list[tuple[int, RowRun]]) -> Tile:
    """One query per request; shorter contexts are padded with lanes that repeat their last key and are hidden."""
    device = geometry.page_table.device
    facts = [(token, row.slot, row.first, _first_key(row.first, shape.window)) for token, row in group]
    tokens, slots, last, first = torch.tensor(facts, dtype=torch.int64, device=device).unbind(1)
    num_keys = max(end + 1 - start for _, _, end, start in facts)
    positions = first[:, None] + torch.arange(num_keys, device=device)
    locations = geometry.page_table[slots[:, None], torch.minimum(positions, last[:, None])]
    is_hidden = positions > last[:, None]
    return Tile(tokens, _lanes(locations, shape.num_kv_heads), is_hidden[:, None, None])


def _block_tiles(geometry: StepGeometry, shape: AttentionShape, row: RowRun, token: int) -> Iterator[Tile]:
    """A prompt chunk as blocks of consecutive queries, each against the keys that its queries see."""
    end = row.first + row.count
    block = min(MAX_BLOCK_QUERIES, max(16, MAX_TILE_SCORES // end))
    borders = [*range(row.first, end, block), end]
    oldest = _first_key(row.first, shape.window)
    lanes = _lanes(geometry.page_table[row.slot, oldest:end][None], shape.num_kv_heads)
    positions = torch.arange(end, device=lanes.device)
    for start, stop in pairwise(borders):
        first = _first_key(start, shape.window)
        queries, keys = positions[start:stop, None], positions[first:stop]
        is_hidden = keys > queries
        if shape.window:
            is_hidden |= keys <= queries - shape.window
        tokens = slice(token + start - row.first, token + stop - row.first)
        yield Tile(tokens, lanes[:, :, first - oldest : stop - oldest], is_hidden[None, None])
