"""Host pages of the torch engine: pages go down and come back bit for bit, also through plans and through storage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from random_model import make_engine

from sapwood.core.plan import RowRun, SlotStart, StepPlan, TableWrite, as_ids, no_copies
from sapwood.core.sampling import LogprobOptions, SamplingParams
from sapwood.core.transfer import Fetch, Probe, Store, TransferDone
from sapwood.kvcache.storage import StorageOptions
from sapwood.kvcache.storage_file import FileStorage
from sapwood.worker.transfers import NoTransfers, StorageTransfers

IDS = [3, 1, 4, 1, 5, 9, 2, 6]


def pairs(*moves: tuple[int, int]) -> np.ndarray:
    return np.array(moves, dtype=np.int32)


def start(slot: int) -> SlotStart:
    return SlotStart(slot, as_ids([*IDS, 7]), 9, SamplingParams(temperature=0.0, seed=0), LogprobOptions(), 0)


def rows_of(*pages: int) -> TableWrite:
    return TableWrite(0, 0, np.concatenate([np.arange(page * 4, page * 4 + 4, dtype=np.int32) for page in pages]))


def test_what_is_saved_and_loaded_computes_the_same() -> None:
    """Pages 0 and 1 are computed, saved, overwritten; loaded into 8 and 9 they serve as if they were computed there."""
    engine = make_engine(num_host_pages=3)
    first = StepPlan(1, (start(0),), (rows_of(0, 1, 2),), no_copies(), (RowRun(0, 0, 9, True),))
    expected = engine.launch(first).wait().token_ids
    saved = StepPlan(2, (), (), no_copies(), (), saves=pairs((0, 2), (1, 0)))
    assert engine.launch(saved).wait().token_ids == []
    for layer in engine._store.layers:
        layer.k[:12], layer.v[:12] = torch.nan, torch.nan
    loaded = StepPlan(3, (start(0),), (rows_of(8, 9, 10),), no_copies(), (RowRun(0, 8, 1, True),), loads=pairs((2, 8), (0, 9)))
    assert engine.launch(loaded).wait().token_ids == expected
    engine.close()


def test_saves_come_before_loads_and_the_forward_pass() -> None:
    engine = make_engine(num_host_pages=2)
    for layer in engine._store.layers:
        layer.k[:4], layer.v[:4] = 1.5, 2.5
    plan = StepPlan(1, (start(0),), (rows_of(0, 1, 2),), no_copies(), (RowRun(0, 0, 9, True),), pairs((0, 1)), pairs((1, 7)))
    engine.launch(plan).wait()
    for layer in engine._store.layers:
        assert (layer.k[28:32] == 1.5).all() and (layer.v[28:32] == 2.5).all() and not (layer.k[:4] == 1.5).any()
    engine.close()


def test_pages_go_through_storage_bit_for_bit(tmp_path: Path) -> None:
    engine = make_engine(num_host_pages=4)
    pages = engine.host_pages
    pages[:] = np.random.default_rng(1).integers(0, 256, pages.shape, dtype=np.uint8)
    truth = pages.copy()
    keys = [bytes([number]) * 32 for number in range(4)]
    transfers = StorageTransfers(FileStorage(StorageOptions(str(tmp_path), b"x" * 32, pages.shape[1], 1 << 24)), pages)
    assert waited(transfers, Store(1, keys[:3], [0, 1, 2])) == TransferDone(1, 3)
    pages[:] = 0
    assert waited(transfers, Probe(2, keys)) == TransferDone(2, 3)
    assert waited(transfers, Fetch(3, keys, [3, 2, 1, 0])) == TransferDone(3, 3)
    assert (pages[[3, 2, 1]] == truth[:3]).all()
    transfers.close()
    engine.close()


def waited(transfers: StorageTransfers, order: Store | Probe | Fetch) -> TransferDone:
    transfers.submit([order])
    done: list[TransferDone] = []
    while not done:
        done = transfers.collect()
    assert not transfers.is_busy
    return done[0]


def test_a_storage_that_fails_is_a_miss_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def count_leading(self, keys: object) -> int:
            return 1

        def read(self, key: bytes, into: memoryview) -> bool:
            raise OSError("the disk is gone")

        def write(self, key: bytes, data: memoryview) -> None:
            raise OSError("the disk is gone")

        def close(self) -> None:
            pass

    transfers = StorageTransfers(Broken(), np.zeros((2, 8), dtype=np.uint8))
    assert waited(transfers, Fetch(1, [b"k"], [0])) == TransferDone(1, 0)
    assert waited(transfers, Store(2, [b"k"], [0])) == TransferDone(2, 0)
    assert caplog.text.count("the disk is gone") == 1
    transfers.close()
    assert NoTransfers().collect() == []
