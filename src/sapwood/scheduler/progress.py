"""How far the scheduler has come: the only clocks that its parts may read.

Advanced by `Scheduler.step` from its inputs, read by everyone else. Invariant: equal inputs give equal progress on every rank.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Progress:
    """`now_s` is rank 0's monotonic clock as the latest inputs told it; steps and tokens count what was launched."""

    now_s: float = 0.0
    num_steps: int = 0
    confirmed_step: int = 0
    num_computed_tokens: int = 0
