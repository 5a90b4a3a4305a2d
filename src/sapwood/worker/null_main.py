"""The worker process of the null model. It imports no torch, so that it starts in a moment.

Composes; what the process then does is `process`'s.
"""

from __future__ import annotations

import sys

from sapwood.messages.control import SoloLink
from sapwood.worker.null_build import build_null
from sapwood.worker.process import Rank, WorkerOrders, work


def open_rank(orders: WorkerOrders) -> Rank:
    """The only rank."""
    return Rank(build_null(orders.model, orders.engine, orders.scheduler, orders.rank), SoloLink())


if __name__ == "__main__":
    sys.exit(work(open_rank))
