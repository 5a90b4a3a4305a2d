"""Tiers below the native engine's pages: what comes back from the host or from files computes the same, to the bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sapwood.kernels.native._native", reason="the native module is not built; see csrc/README.md")

from native_model import EOS, MAX_LEN, VOCAB_SIZE, Hand, Heard, ask, make_native

from sapwood.core.plan import EngineLimits, RowRun, SlotStart, StepPlan, TableWrite, as_ids, no_copies
from sapwood.core.sampling import LogprobOptions, SamplingParams
from sapwood.engine import native_lifecycle
from sapwood.engine.native_lifecycle import NativeTypes
from sapwood.engine.native_runner import NativeEngine
from sapwood.errors import EngineFailed
from sapwood.kvcache.storage import StorageOptions
from sapwood.kvcache.storage_file import FileStorage
from sapwood.kvcache.tiers import WRITE_POLICIES, TierOptions
from sapwood.messages.types import Submit
from sapwood.worker.transfers import StorageTransfers

FINGERPRINT = b"n" * 32


def limits(num_pages: int, num_host_pages: int, page_size: int = 16) -> EngineLimits:
    return EngineLimits(8, MAX_LEN, num_pages, page_size, VOCAB_SIZE, (EOS,), num_host_pages)


def requests(first: int, count: int = 10) -> list[Submit]:
    """The same prompts whatever `first` number they are given; greedy and drawn ones, every log-probability that there is."""
    rng = np.random.default_rng(5)
    common = rng.integers(3, VOCAB_SIZE, 70).tolist()
    made = []
    for index in range(count):
        ids = (common if index % 2 else []) + rng.integers(3, VOCAB_SIZE, 40 + 9 * index).tolist()
        params = SamplingParams(temperature=0.8 * (index % 3), seed=index, max_new_tokens=12, ignore_eos=True)
        made.append(ask(first + index, ids, params, LogprobOptions(output=True, top_n=3)))
    return made


def in_turn(hand: Hand, submits: list[Submit]) -> list[Heard]:
    """One after the other, so that each finds what the others left."""
    return [hand.run([submit])[submit.number] for submit in submits]


def contents(heard: list[Heard]) -> list[object]:
    return [one.content for one in heard]


def files(engine: NativeEngine, folder: Path) -> StorageTransfers:
    pages = engine.host_pages
    return StorageTransfers(FileStorage(StorageOptions(str(folder), FINGERPRINT, pages.shape[1], 1 << 28)), pages)


@pytest.fixture(scope="module", params=["f16", "f32", "i8"])
def truth(request: pytest.FixtureRequest) -> tuple[str, list[object]]:
    """KV type, and what each request gets alone without any cache or tier."""
    engine = make_native(types=NativeTypes(request.param))
    alone = [Hand(engine).run([submit])[submit.number].content for submit in requests(0)]
    engine.close()
    return request.param, alone


@pytest.mark.parametrize("page_size", [16, 32])
def test_the_host_tier_gives_the_same_bits(truth: tuple[str, list[object]], page_size: int) -> None:
    kv_dtype, alone = truth
    engine = make_native(limits=limits(224 // page_size, 2400 // page_size, page_size), types=NativeTypes(kv_dtype))
    hand = Hand(engine)
    assert contents(in_turn(hand, requests(0))) == alone
    again = in_turn(hand, requests(100))
    assert contents(again) == alone
    assert hand.stats().cached_host_tokens_total > 500
    assert contents(list(hand.run(requests(200)).values())) == alone  # all at once, over one another's loads and saves
    hand.leave()


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("policy", WRITE_POLICIES)
def test_files_give_the_same_bits_now_and_after_a_restart(
    truth: tuple[str, list[object]], policy: str, overlap: bool, tmp_path: Path
) -> None:
    kv_dtype, alone = truth
    tiers = TierOptions(write_policy=policy, has_storage=True, prefetch="wait_complete")
    for life in range(3):
        engine = make_native(limits=limits(14, 5), types=NativeTypes(kv_dtype), threads=1 + life % 2)
        hand = Hand(engine, overlap=overlap, transfers=files(engine, tmp_path), tiers=tiers)
        first = in_turn(hand, requests(0))
        assert contents(first) == alone
        if life and policy != "write_through_selective":
            assert (
                sum(one.num_cached for one in first) > 300
            )  # how many depends on how fast the disk takes what few host pages hold
            assert hand.stats().cached_storage_tokens_total > 300
        assert contents(list(hand.run(requests(100)).values())) == alone
        hand.leave()


def test_write_back_stores_at_the_end_what_fits_the_pool(tmp_path: Path) -> None:
    """Nothing is evicted here, so without the farewell nothing would be stored."""
    tiers = TierOptions(write_policy="write_back", has_storage=True, prefetch="wait_complete")
    engine = make_native(limits=limits(200, 8))
    hand = Hand(engine, transfers=files(engine, tmp_path), tiers=tiers)
    in_turn(hand, requests(0))
    assert hand.stats().stored_pages_total == 0
    hand.leave()
    engine = make_native(limits=limits(200, 8))
    hand = Hand(engine, transfers=files(engine, tmp_path), tiers=tiers)
    (first,) = in_turn(hand, requests(0, 2)[1:])
    assert first.num_cached >= 96
    hand.leave()


def pairs(*moves: tuple[int, int]) -> np.ndarray:
    return np.array(moves, dtype=np.int32)


def test_moves_take_effect_in_the_order_of_plans() -> None:
    """Launched without waiting: compute pages 0 to 2, save two of them, overwrite them, load them elsewhere, compute on."""
    engine = make_native(limits=limits(40, 3))
    ids = np.random.default_rng(3).integers(3, VOCAB_SIZE, 40).tolist()
    params = SamplingParams(temperature=0.0, seed=0)

    def start(slot: int, token_ids: list[int]) -> SlotStart:
        return SlotStart(slot, as_ids(token_ids), len(token_ids), params, LogprobOptions(), 0)

    def rows_of(slot: int, *pages: int) -> TableWrite:
        return TableWrite(slot, 0, np.concatenate([np.arange(16 * page, 16 * page + 16, dtype=np.int32) for page in pages]))

    whole, other = RowRun(0, 0, 40, True), RowRun(1, 0, 40, True)
    plans = [
        StepPlan(1, (start(0, ids),), (rows_of(0, 0, 1, 2),), no_copies(), (whole,)),
        StepPlan(2, (start(1, ids[::-1]),), (rows_of(1, 0, 1, 3),), no_copies(), (other,), saves=pairs((0, 2), (1, 0))),
        StepPlan(
            3, (start(0, ids),), (rows_of(0, 8, 9, 10),), no_copies(), (RowRun(0, 32, 8, True),), loads=pairs((2, 8), (0, 9))
        ),
    ]
    results = [pending.wait().token_ids for pending in [engine.launch(plan) for plan in plans]]
    assert results[0] == results[2]
    with pytest.raises(EngineFailed, match="host page 3 does not exist"):
        engine.launch(StepPlan(4, (), (), no_copies(), (), saves=pairs((0, 3))))
    with pytest.raises(EngineFailed, match="page 40 is outside"):
        engine.launch(StepPlan(5, (), (), no_copies(), (), loads=pairs((0, 40))))
    assert engine.launch(StepPlan(6, (), (), no_copies(), ())).wait().token_ids == []
    engine.close()


def test_host_pages_outlive_the_engine_and_are_writable() -> None:
    engine = make_native(limits=limits(8, 3, 32))
    pages = engine.host_pages
    assert pages.shape == (3, 2 * 2 * 2 * 32 * 16 * 2) and pages.dtype == np.uint8  # layers, heads, K and V, tokens, dims, f16
    pages[:] = 7
    engine.close()
    del engine
    assert (pages == 7).all()
    assert make_native(limits=limits(8, 0)).host_pages.shape[0] == 0


def test_the_arithmetic_names_isa_and_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name = native_lifecycle.arithmetic()
    assert name.split()[0] == native_lifecycle._native.isa()
    other = tmp_path / "other.so"
    other.write_bytes(b"another build")
    monkeypatch.setattr(native_lifecycle._native, "__file__", str(other))
    assert native_lifecycle.arithmetic() != name
