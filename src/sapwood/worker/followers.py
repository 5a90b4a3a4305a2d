"""The further ranks of an engine whose rank 0 lives in the calling process: children that are told by it what to do.

Owns those processes and the connections to them; does not know requests. Invariant: `close` leaves no process and no file behind,
and a caller that dies takes the ranks with it (their standard input closes).
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable

import msgspec

from sapwood.config.sections import Config
from sapwood.distributed.group import Group, connect
from sapwood.messages.topology import Topology, create_topology
from sapwood.messages.types import StepInputs
from sapwood.worker.main import COLLECTIVE_TIMEOUT_S
from sapwood.worker.ports import share_with_ranks
from sapwood.worker.process import WorkerOrders

GRACE_S = 5.0


class Followers:
    """Ranks 1 and up, started and connected; with a `tp_size` of 1 there are none."""

    def __init__(self, config: Config, model_path: str) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        size = config.engine.tp_size
        self._topology = create_topology() if size > 1 else Topology("")
        try:
            for rank in range(1, size):
                self._start(rank, config, model_path)
            backend = "nccl" if config.engine.device == "cuda" else "gloo"
            self._ranks = connect(0, size, f"file://{self._topology.ranks}", backend, COLLECTIVE_TIMEOUT_S)
        except BaseException:
            self._end(grace_s=0.0)
            raise

    @property
    def group(self) -> Group:
        """The compute group, as rank 0 sees it."""
        return self._ranks.group

    @property
    def share(self) -> Callable[[StepInputs], None]:
        """Passes one step's inputs on to all ranks."""
        return share_with_ranks(self._ranks.control, self._ranks.group.size)

    def close(self) -> None:
        """End the ranks, which may have been told to drain: they get a moment to do so."""
        self._ranks.close()
        self._end(GRACE_S)

    def _start(self, rank: int, config: Config, model_path: str) -> None:
        orders = WorkerOrders(
            name=f"worker {rank}",
            rank=rank,
            topology=self._topology,
            model_path=model_path,
            model=config.model,
            engine=config.engine,
            scheduler=config.scheduler,
            inline_detokenizer=True,
            log_level="warning",
        )
        # a process group of its own, so that Ctrl-C reaches rank 0 alone, from the first moment on
        process = subprocess.Popen([sys.executable, "-m", "sapwood.worker.main"], stdin=subprocess.PIPE, process_group=0)
        self._processes.append(process)
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(orders) + b"\n")
        process.stdin.flush()

    def _end(self, grace_s: float) -> None:
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(grace_s)
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
        if self._topology.folder:
            self._topology.close()
