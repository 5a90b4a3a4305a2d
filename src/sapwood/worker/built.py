"""What every way of building a rank ends in.

Owns the result and what is told of any engine; builds nothing, and needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sapwood.core.plan import Engine, EngineLimits
from sapwood.core.pooling import Task
from sapwood.scheduler.options import SchedulerOptions
from sapwood.scheduler.scheduler import Scheduler
from sapwood.weights.catalog import cache_folder
from sapwood.worker.grammars import Grammars
from sapwood.worker.overhaul import Steward
from sapwood.worker.transfers import Transfers


@dataclass(frozen=True, slots=True)
class BuiltWorker:
    """A rank that can run, and what is worth telling about it."""

    scheduler: Scheduler
    engine: Engine
    steward: Steward
    options: SchedulerOptions
    info: dict[str, Any]
    transfers: Transfers
    grammars: Grammars


def profile_folder() -> Path:
    """Where records of steps are written."""
    return cache_folder() / "profiles"


def engine_info(limits: EngineLimits) -> dict[str, Any]:
    """What the server has to know of an engine that makes text."""
    return {
        "task": Task.GENERATE.value,
        "vocab_size": limits.vocab_size,
        "context_length": limits.max_len,
        "max_running_requests": limits.num_slots,
        "max_total_num_tokens": limits.num_pages * limits.page_size,
        "page_size": limits.page_size,
        "num_host_pages": limits.num_host_pages,
        "sliding_window": limits.window,
        "max_window_tokens": limits.num_window_pages * limits.page_size,
        "eos_token_ids": list(limits.eos_token_ids),
    }
