"""Ranks in processes of their own: collectives, bitwise agreement, the control link, and what a lost peer looks like."""

from __future__ import annotations

import multiprocessing
import os
import random
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from sapwood.distributed import Ranks, SoloGroup, SoloLink, connect
from sapwood.distributed.rendezvous import _own_address, open_store
from sapwood.errors import ConfigError, EngineFailed

Scenario = Callable[[Ranks], Any]
MESSAGES = [b"", b"short", *(random.Random(length).randbytes(length) for length in (4087, 4088, 4089, 100_000))]


def _run_rank(scenario: Scenario, rank: int, size: int, address: str, answers: Any) -> None:
    torch.set_num_threads(1)
    ranks = connect(rank, size, address, timeout_s=60.0)
    try:
        answers.put((rank, scenario(ranks)))
    finally:
        ranks.close()


def run_ranks(scenario: Scenario, size: int, address: str) -> dict[int, Any]:
    """Run `scenario` on every rank; its results by rank."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    children = [context.Process(target=_run_rank, args=(scenario, r, size, address, answers), daemon=True) for r in range(size)]
    for child in children:
        child.start()
    try:
        return dict(answers.get(timeout=100) for _ in children)
    finally:
        for child in children:
            child.join(10)
            child.kill()


def _everything(ranks: Ranks) -> dict[str, Any]:
    """All collectives and a few messages in one visit, since starting processes is what costs time."""
    group, rank = ranks.group, ranks.group.rank
    noise = torch.randn(5, 33, generator=torch.Generator().manual_seed(rank))
    half = torch.full((3,), 1.0 + rank, dtype=torch.bfloat16)
    chosen = torch.arange(6).view(2, 3).t() if rank == 1 else torch.zeros(3, 2, dtype=torch.int64)
    heard = [ranks.control.share(message if rank == 0 else None) for message in MESSAGES]
    group.barrier()
    return {
        "sum": group.all_reduce_(noise.clone()).numpy().tobytes(),
        "strided": group.all_reduce_(torch.full((4, 4), 1.0)[:, :2]).tolist(),
        "bfloat16": group.all_reduce_(half).tolist(),
        "columns": group.all_gather(torch.full((2, 1), rank)).tolist(),
        "rows": group.all_gather(torch.full((1, 2), rank), dim=0).tolist(),
        "from_one": group.broadcast_(chosen, src=1).tolist(),
        "messages": heard,
    }


def test_every_rank_holds_the_same(tmp_path: Path) -> None:
    size = 3
    results = run_ranks(_everything, size, f"file://{tmp_path}/store")
    assert sorted(results) == list(range(size))
    assert all(result == results[0] for result in results.values())
    noise = [torch.randn(5, 33, generator=torch.Generator().manual_seed(r)) for r in range(size)]
    total = noise[0]
    for part in noise[1:]:
        total = total + part
    assert results[0]["sum"] == total.numpy().tobytes()
    assert results[0]["strided"] == [[float(size)] * 2] * 4
    assert results[0]["bfloat16"] == [sum(range(1, size + 1))] * 3
    assert results[0]["columns"] == [list(range(size))] * 2
    assert results[0]["rows"] == [[r] * 2 for r in range(size)]
    assert results[0]["from_one"] == [[0, 3], [1, 4], [2, 5]]
    assert results[0]["messages"] == MESSAGES


def _die(ranks: Ranks) -> Any:
    """Rank 0 is killed while rank 1 waits for it, first in a collective, then on the control link."""
    ranks.group.barrier()
    if ranks.group.rank == 0:
        time.sleep(0.2)
        os.kill(os.getpid(), 9)
    failures = []
    started = time.monotonic()
    for wait in (lambda: ranks.group.all_reduce_(torch.ones(4)), ranks.control.share):
        with pytest.raises(EngineFailed) as caught:
            wait()
        failures.append(caught.value.message)
    return failures, time.monotonic() - started


def test_a_killed_peer_is_an_engine_failure_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    address = f"file://{tmp_path}/store"
    children = [context.Process(target=_run_rank, args=(_die, r, 2, address, answers), daemon=True) for r in range(2)]
    for child in children:
        child.start()
    rank, (failures, waited_s) = answers.get(timeout=100)
    for child in children:
        child.join(10)
    assert rank == 1
    assert len(failures) == 2 and all("lost its peers" in message for message in failures)
    assert waited_s < 20  # the timeout would be 60
    assert children[0].exitcode == -9


def _leave(ranks: Ranks) -> Any:
    """Rank 0 closes while rank 1 waits on the control link."""
    ranks.group.barrier()
    if ranks.group.rank == 0:
        ranks.close()
        with pytest.raises(EngineFailed, match="closed"):
            ranks.group.barrier()
        return "left"
    with pytest.raises(EngineFailed, match="lost its peers"):
        ranks.control.share()
    return "noticed"


def test_closing_wakes_the_others_over_tcp() -> None:
    results = run_ranks(_leave, 2, f"tcp://127.0.0.1:{_free_port()}")
    assert results == {0: "left", 1: "noticed"}


def _free_port() -> int:

    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_missing_ranks_are_an_engine_failure_that_names_the_place(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match="could not meet"):
        connect(0, 2, f"file://{tmp_path}/store", timeout_s=0.3)


def test_one_rank_needs_no_address() -> None:
    ranks = connect(0, 1)
    tensor = torch.arange(3.0)
    assert isinstance(ranks.group, SoloGroup) and isinstance(ranks.control, SoloLink)
    assert ranks.group.all_reduce_(tensor) is tensor and ranks.group.all_gather(tensor) is tensor
    assert ranks.group.broadcast_(tensor) is tensor and ranks.control.share(b"inputs") == b"inputs"
    assert (ranks.group.rank, ranks.group.size) == (0, 1)
    ranks.group.barrier()
    ranks.close()


@pytest.mark.parametrize("address", ["", "udp://127.0.0.1:1", "tcp://127.0.0.1", "file://"])
def test_a_bad_address_is_refused(address: str) -> None:

    with pytest.raises(ConfigError, match="tcp://host:port"):
        open_store(address, 0, 2, timedelta(seconds=1))


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ConfigError, match="gloo, nccl"):
        connect(0, 2, "file:///nowhere", backend="mpi")


def test_ranks_of_one_host_stay_on_loopback() -> None:
    assert {_own_address(host) for host in (None, "localhost", "127.0.0.1", "127.0.0.2")} == {"127.0.0.1"}
