"""Paged attention of the torch backend against a per-query loop in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from sapwood.core.plan import RowRun
from sapwood.kernels.api import AttentionShape, KVLayer, StepGeometry
from sapwood.kernels.reference import ReferenceKernels
from sapwood.kernels.reference import attention as tiles_module
from sapwood.kernels.reference.attention import plan_tiles

NUM_LOCATIONS, MAX_LEN = 2000, 400
SHAPES = [
    AttentionShape(num_heads=6, num_kv_heads=2, head_dim=8, scale=0.4, softcap=0.0, window=0),
    AttentionShape(num_heads=4, num_kv_heads=4, head_dim=16, scale=0.3, softcap=0.0, window=7),
    AttentionShape(num_heads=3, num_kv_heads=1, head_dim=4, scale=2.0, softcap=1.5, window=1),
    AttentionShape(num_heads=8, num_kv_heads=2, head_dim=8, scale=0.7, softcap=2.0, window=150),
]
ROWS = {
    "decode": [(0, 5, 1), (1, 0, 1), (2, 399, 1), (3, 130, 1)],
    "prefill": [(0, 0, 20), (2, 0, 301)],
    "chunk": [(1, 100, 37)],
    "mixed": [(3, 64, 1), (0, 390, 1), (2, 0, 11), (1, 200, 150)],
}


def scattered_geometry(rows: list[tuple[int, int, int]]) -> StepGeometry:
    """Four slots whose contexts lie on scattered locations."""
    locations = np.random.default_rng(0).permutation(NUM_LOCATIONS)[: 4 * MAX_LEN].reshape(4, MAX_LEN)
    page_table = torch.tensor(locations, dtype=torch.int32)
    slots = torch.tensor([slot for slot, _, count in rows for _ in range(count)])
    positions = torch.cat([torch.arange(first, first + count) for _, first, count in rows])
    runs = tuple(RowRun(slot, first, count, False) for slot, first, count in rows)
    return StepGeometry(runs, positions, page_table[slots, positions].long(), page_table)


def store_with_stale_nan(geometry: StepGeometry, shape: AttentionShape) -> KVLayer:
    """Random rows where some request of the step has written, NaN everywhere else."""
    generator = torch.Generator().manual_seed(1)
    k, v = (torch.full((NUM_LOCATIONS, shape.num_kv_heads, shape.head_dim), torch.nan) for _ in range(2))
    for row in geometry.rows:
        written = geometry.page_table[row.slot, : row.first + row.count].long()
        for tensor in (k, v):
            tensor[written] = torch.randn(len(written), shape.num_kv_heads, shape.head_dim, generator=generator)
    return KVLayer(k, v)


def attend_slowly(q: Tensor, kv: KVLayer, shape: AttentionShape, geometry: StepGeometry) -> Tensor:
    """One query and one head at a time, in float64."""
    outputs, token = [], 0
    for row in geometry.rows:
        for position in range(row.first, row.first + row.count):
            oldest = max(0, position - shape.window + 1) if shape.window else 0
            seen = geometry.page_table[row.slot, oldest : position + 1].long()
            for head in range(shape.num_heads):
                group = head * shape.num_kv_heads // shape.num_heads
                scores = kv.k[seen, group].double() @ q[token, head].double() * shape.scale
                if shape.softcap:
                    scores = shape.softcap * (scores / shape.softcap).tanh()
                outputs.append(scores.softmax(0) @ kv.v[seen, group].double())
            token += 1
    return torch.stack(outputs).view(len(q), -1)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"window{shape.window}")
@pytest.mark.parametrize("name", ROWS)
def test_agrees_with_a_loop_over_queries(name: str, shape: AttentionShape) -> None:
    geometry = scattered_geometry(ROWS[name])
    kv = store_with_stale_nan(geometry, shape)
    q = torch.randn(len(geometry.positions), shape.num_heads, shape.head_dim, generator=torch.Generator().manual_seed(2))
    kernels = ReferenceKernels()
    output = kernels.attend(q, kv, shape, kernels.begin_step(geometry, [shape]))
    assert output.shape == (len(q), shape.num_heads * shape.head_dim)
    torch.testing.assert_close(output.double(), attend_slowly(q, kv, shape, geometry), rtol=1e-4, atol=1e-5)


def test_every_query_is_in_one_tile_and_padding_is_bounded() -> None:
    rng = np.random.default_rng(3)
    rows = [(slot % 4, int(rng.integers(0, MAX_LEN)), 1) for slot in range(60)] + [(0, 3, 390)]
    geometry = scattered_geometry(rows)
    tiles = plan_tiles(geometry, SHAPES[0])
    tokens = [
        token for tile in tiles for token in (range(450)[tile.tokens] if isinstance(tile.tokens, slice) else tile.tokens.tolist())
    ]
    assert sorted(tokens) == list(range(450))
    singles = [tile for tile in tiles if not isinstance(tile.tokens, slice)]
    assert len(singles) <= 1 + math.ceil(math.log2(MAX_LEN / tiles_module.SHORT_CONTEXT))
    padded = sum(tile.is_hidden.numel() for tile in singles)
    needed = sum(first + 1 for _, first, count in rows if count == 1)
    assert padded <= 2 * needed + 60 * tiles_module.SHORT_CONTEXT


def test_tiles_stay_small_when_contexts_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles_module, "MAX_TILE_SCORES", 4000)
    rows = [*((slot, 390 + slot, 1) for slot in range(4)), *((slot, 389 - slot, 1) for slot in range(4)), *[(0, 0, 400)]]
    rows = [*rows[:8] * 3, rows[8]]
    geometry = scattered_geometry(rows)
    for shape in SHAPES:
        assert all(tile.is_hidden.numel() <= 16 * 400 for tile in plan_tiles(geometry, shape))
        kv = store_with_stale_nan(geometry, shape)
        q = torch.randn(len(geometry.positions), shape.num_heads, shape.head_dim)
        kernels = ReferenceKernels()
        output = kernels.attend(q, kv, shape, kernels.begin_step(geometry, [shape]))
        torch.testing.assert_close(output.double(), attend_slowly(q, kv, shape, geometry), rtol=1e-4, atol=1e-5)


def test_keys_and_values_are_read_after_rounding_to_the_stores_type() -> None:
    shape, geometry = SHAPES[0], scattered_geometry(ROWS["mixed"])
    exact = store_with_stale_nan(geometry, shape)
    rounded = KVLayer(exact.k.half(), exact.v.half())
    q = torch.randn(len(geometry.positions), shape.num_heads, shape.head_dim)
    kernels = ReferenceKernels()
    step = kernels.begin_step(geometry, [shape])
    widened = KVLayer(rounded.k.float(), rounded.v.float())
    assert torch.equal(kernels.attend(q, rounded, shape, step), kernels.attend(q, widened, shape, step))
