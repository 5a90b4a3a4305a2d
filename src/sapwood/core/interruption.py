"""Python's threads, kept from interrupting those that compute on the same cores.

Compute lanes never pause while there is work, so whatever wakes up beside them takes a core in the middle of a product, and all
lanes wait for the one that was interrupted. Threads of the batch class do not interrupt: they run when a lane offers its core,
between two parts that other lanes can take over (`csrc/core/offer.h`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def interrupting_nobody() -> Iterator[None]:
    """Put the calling thread, and the threads and processes that it starts meanwhile, into the batch class; one that somebody has
    put into another class stays there, and where there is no such class nothing happens."""
    if not hasattr(os, "SCHED_BATCH") or os.sched_getscheduler(0) != os.SCHED_OTHER:
        yield
        return
    with suppress(PermissionError):  # forbidden here: only speed is lost
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        yield
    finally:
        with suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
