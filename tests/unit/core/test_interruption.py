"""Python's threads do not interrupt those that compute, which are of the normal class whoever starts them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

if not hasattr(os, "SCHED_BATCH"):
    pytest.skip("this system has no batch class", allow_module_level=True)

from sapwood.core.interruption import interrupting_nobody

POLICY = 38  # of the fields of /proc/*/stat behind the name
T = TypeVar("T")


def in_a_thread(ask: Callable[[], T]) -> T:
    """What it answers on a thread of its own, whose class goes with it."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(ask).result()


def own_class() -> int:
    return os.sched_getscheduler(0)


def classes() -> dict[str, int]:
    """The class of every thread of this process, by its id."""
    tasks = Path("/proc/self/task").iterdir()
    return {task.name: int((task / "stat").read_text().rpartition(")")[2].split()[POLICY]) for task in tasks}


def test_the_thread_and_those_it_starts_are_of_the_batch_class() -> None:
    def ask() -> list[int]:
        with interrupting_nobody():
            inside = [own_class(), in_a_thread(own_class)]
        return [*inside, own_class()]

    assert in_a_thread(ask) == [os.SCHED_BATCH, os.SCHED_BATCH, os.SCHED_OTHER]


def test_a_class_that_was_chosen_is_kept() -> None:
    def ask() -> int:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        with interrupting_nobody():
            return own_class()

    assert in_a_thread(ask) == os.SCHED_IDLE


def test_compute_threads_are_of_the_normal_class() -> None:
    native = pytest.importorskip("sapwood.kernels.native._native", reason="the native module is not built; see csrc/README.md")

    def ask() -> list[int]:
        with interrupting_nobody():
            before = classes()
            pool = native.ThreadPool(3, pin=False)
            stream = native.ComputeStream(pool)
            started = [name for name in classes() if name not in before]
            for _ in range(100):  # they set their class when they begin to run
                found = [classes()[name] for name in started]
                if set(found) == {os.SCHED_OTHER}:
                    break
                time.sleep(0.05)
            del stream, pool
        return found

    assert in_a_thread(ask) == [os.SCHED_OTHER] * 3  # two workers and the stream
