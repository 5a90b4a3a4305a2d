"""The worker process of a real model: joins the other ranks and loads the weights.

Composes; what the process then does is `process`'s.
"""

from __future__ import annotations

import sys

from sapwood.distributed.group import connect
from sapwood.observability.progress import reporting
from sapwood.worker.build import build_worker
from sapwood.worker.process import Rank, WorkerOrders, work

COLLECTIVE_TIMEOUT_S = 600.0
"""Bounds the wait for a rank that hangs: longer than any step, and than loading times differ. A dead rank shows at once."""


def open_rank(orders: WorkerOrders) -> Rank:
    """This rank, connected and built."""
    backend = "nccl" if orders.engine.device == "cuda" else "gloo"
    ranks = connect(orders.rank, orders.engine.tp_size, f"file://{orders.topology.ranks}", backend, COLLECTIVE_TIMEOUT_S)
    with reporting(orders.rank == 0) as progress:
        built = build_worker(orders.model, orders.engine, orders.scheduler, orders.model_path, ranks.group, progress)
    return Rank(built, ranks.control, ranks.close)


if __name__ == "__main__":
    sys.exit(work(open_rank))
