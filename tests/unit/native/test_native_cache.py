"""Packed weights on disk: the same bits come back, and what was not written for them, or has changed, is never used."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sapwood.kernels.native._native", reason="the native module is not built; see csrc/README.md")

from native_model import CONFIG, LIMITS, LoudCheckpoint

from sapwood.core.plan import EngineLimits
from sapwood.engine.native_cache import WeightFile
from sapwood.engine.native_lifecycle import NativeTypes, create_native_engine
from sapwood.kernels.native import _native

POOL = _native.ThreadPool(2, pin=False)


def matrices(seed: int = 0) -> dict[str, _native.Weight]:
    rng = np.random.default_rng(seed)
    made = {}
    for name, shape in (("a", (40, 96)), ("b", (7, 300)), ("c", (1, 50))):
        values = rng.normal(size=shape).astype(np.float32)
        made[f"{name}.q8"] = _native.Weight.quantise(POOL, "q8_0", values)
        made[f"{name}.f32"] = _native.Weight.pack(POOL, "f32", values.view(np.uint8).reshape(-1), *shape)
    return made


def cache(folder: Path, identity: str = "these weights", limit_bytes: int = 1 << 30) -> WeightFile:
    return WeightFile(folder, identity, limit_bytes, smallest_bytes=0)


def test_the_same_bits_come_back(tmp_path: Path) -> None:
    saved = matrices()
    cache(tmp_path).save(saved, POOL)
    found = cache(tmp_path).load(POOL)
    assert found.keys() == saved.keys()
    for name, weight in found.items():
        assert (weight.rows, weight.k, weight.format) == (saved[name].rows, saved[name].k, saved[name].format)
        assert np.array_equal(weight.packed, saved[name].packed)
        assert np.array_equal(weight.dequantise(0, weight.rows), saved[name].dequantise(0, weight.rows))
    assert [path.name for path in cache(tmp_path).path.parent.iterdir()] == [cache(tmp_path).path.name]


def test_nothing_is_found_where_nothing_was_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert cache(tmp_path).load(POOL) == {}
    cache(tmp_path).save(matrices(), POOL)
    assert cache(tmp_path, "other weights").load(POOL) == {}
    assert caplog.text == ""


@pytest.mark.parametrize("at", [0, 9, 13, 40, -1, -3000])
def test_one_changed_byte_is_found_and_the_file_replaced(tmp_path: Path, at: int, caplog: pytest.LogCaptureFixture) -> None:
    mine = cache(tmp_path)
    mine.save(matrices(), POOL)
    content = bytearray(mine.path.read_bytes())
    content[at] ^= 4
    mine.path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert mine.load(POOL) == {}
    assert "made anew" in caplog.text
    mine.save(matrices(), POOL)
    assert len(mine.load(POOL)) == 6


@pytest.mark.parametrize("size", [0, 3, 20, 4096, 30_000])
def test_a_short_file_is_found(tmp_path: Path, size: int, caplog: pytest.LogCaptureFixture) -> None:
    mine = cache(tmp_path)
    mine.save(matrices(), POOL)
    assert mine.path.stat().st_size > size
    os.truncate(mine.path, size)
    with caplog.at_level(logging.WARNING):
        assert mine.load(POOL) == {}
    assert "not used" in caplog.text


def test_a_file_of_other_weights_under_this_name_is_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mine, other = cache(tmp_path), cache(tmp_path, "other weights")
    other.save(matrices(), POOL)
    mine.path.parent.mkdir()
    other.path.rename(mine.path)
    assert mine.load(POOL) == {}
    assert "belongs to other weights" in caplog.text


def test_the_least_recently_used_file_makes_room(tmp_path: Path) -> None:
    size = sum(weight.size_bytes for weight in matrices().values())
    files = [cache(tmp_path, f"weights {n}", limit_bytes=3 * size) for n in range(3)]
    for age, file in enumerate(files[:2]):
        file.save(matrices(), POOL)
        os.utime(file.path, (1000 + age, 1000 + age))
    assert files[0].load(POOL)  # now the second one is the oldest
    files[2].save(matrices(), POOL)
    assert [file.path.exists() for file in files] == [True, False, True]
    cache(tmp_path, "too large", limit_bytes=size - 1).save(matrices(), POOL)
    assert [file.path.exists() for file in files] == [True, False, True]


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    cache(tmp_path / "file").save(matrices(), POOL)
    assert "--disable-weight-cache" in caplog.text


def test_sums_do_not_depend_on_threads_and_every_byte_counts() -> None:
    weight = _native.Weight.quantise(POOL, "q8_0", np.random.default_rng(1).normal(size=(64, 320)).astype(np.float32))
    sums = {weight.checksum(_native.ThreadPool(threads, pin=False)) for threads in (1, 2, 3)}
    for at in range(0, weight.size_bytes, 97):
        packed = weight.packed.copy()
        packed[at] ^= 1
        sums.add(_native.Weight.from_packed(POOL, "q8_0", packed, 64, 320).checksum(POOL))
    assert len(sums) == 1 + len(range(0, weight.size_bytes, 97))


def test_packed_bytes_of_another_size_are_refused() -> None:
    weight = _native.Weight.quantise(POOL, "q4_1", np.ones((20, 70), np.float32))
    packed = weight.packed
    assert np.array_equal(_native.Weight.from_packed(POOL, "q4_1", packed, 20, 70).packed, packed)
    for name, wrong, rows, k in [
        ("q4_1", packed[:-1], 20, 70),
        ("q4_1", packed, 40, 70),
        ("q4_1", packed, 20, 128),
        ("q8_0", packed, 20, 70),
        ("q4_0", packed, 20, 70),
        ("q4_1", packed, 0, 70),
        ("q4_1", packed, -20, 70),
        ("q4_1", packed, 2**40, 2**40),
        ("iq2_xs", packed, 20, 70),
    ]:
        with pytest.raises(_native.NativeError):
            _native.Weight.from_packed(POOL, name, wrong, rows, k)
    with pytest.raises(ValueError):
        packed[0] = 1


class Unreadable(LoudCheckpoint):
    """Gives vectors only: matrices must come from the cache."""

    def tensor(self, name: str, rows: slice | None = None, cols: slice | None = None):
        assert len(self.shape(name)) == 1, f"{name} is packed already"
        return super().tensor(name, rows, cols)


def test_a_second_engine_packs_nothing_and_checks_shapes(tmp_path: Path) -> None:
    def engine(checkpoint: LoudCheckpoint):
        limits = EngineLimits(2, 64, 16, 16, LIMITS.vocab_size, LIMITS.eos_token_ids)
        create_native_engine(checkpoint, limits, max_rows=64, types=NativeTypes(), threads=1, cache=cache(tmp_path)).close()

    engine(LoudCheckpoint(CONFIG))
    first = cache(tmp_path).path.stat().st_ino
    engine(Unreadable(CONFIG))
    assert cache(tmp_path).path.stat().st_ino == first
    cache(tmp_path).save({"model.embed_tokens.weight": matrices()["a.f32"]}, POOL)
    engine(LoudCheckpoint(CONFIG))  # a matrix of another shape under its name, and others missing: made anew
    engine(Unreadable(CONFIG))
