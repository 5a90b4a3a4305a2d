"""Flattening rows to tokens, and which positions a row reports."""

from __future__ import annotations

import torch

from sapwood.core.plan import RowRun, SlotStart, as_ids
from sapwood.core.sampling import LogprobOptions, SamplingParams
from sapwood.engine.batch import build_batch, prompt_reports, sample_rows

ROWS = (RowRun(2, 7, 1, True), RowRun(0, 3, 4, False), RowRun(1, 0, 2, True))


def test_tokens_are_read_from_the_tables_in_row_order() -> None:
    token_table = torch.arange(30, dtype=torch.int32).view(3, 10)
    batch = build_batch(ROWS, token_table, token_table + 100)
    assert batch.token_ids.tolist() == [27, 3, 4, 5, 6, 10, 11]
    assert batch.geometries[0].positions.tolist() == [7, 3, 4, 5, 6, 0, 1]
    assert batch.geometries[0].locations.tolist() == [127, 103, 104, 105, 106, 110, 111]
    assert batch.geometries[0].rows == ROWS


def test_sampling_rows_point_at_their_last_token() -> None:
    chosen = sample_rows(ROWS)
    assert (chosen.rows, chosen.slots, chosen.positions, chosen.tokens) == ([0, 2], [2, 1], [8, 2], [0, 6])
    assert sample_rows(()).rows == []


def test_a_row_reports_the_prompt_positions_that_its_tokens_predict() -> None:
    ids = as_ids(range(50, 60))
    scored = {0: SlotStart(0, ids, 6, SamplingParams(seed=0), LogprobOptions(prompt_start=2), 0)}
    reports = list(prompt_reports(ROWS, scored))
    assert [(r.row, r.slot, r.position, r.target_ids.tolist(), r.token) for r in reports] == [(1, 0, 4, [54, 55], 1)]
    early = list(prompt_reports((RowRun(0, 0, 4, False),), scored))
    assert [(r.position, r.target_ids.tolist(), r.token) for r in early] == [(2, [52, 53, 54], 1)]
    assert list(prompt_reports((RowRun(0, 5, 3, False),), scored)) == []
