"""A fuzz target: strategies and what must hold for whatever they make, run for a number of examples that a seed decides."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hypothesis
from hypothesis.strategies import SearchStrategy

BATCH = 500


@dataclass(frozen=True)
class Target:
    """`check` takes what the strategies make, and raises when something is wrong."""

    check: Callable[..., None]
    positional: tuple[SearchStrategy[Any], ...]
    named: dict[str, SearchStrategy[Any]]

    def run(self, num_examples: int, seed: int) -> None:
        """Raises what `check` raises for the smallest example that makes it do so."""
        settings = hypothesis.settings(
            max_examples=num_examples,
            deadline=None,
            database=None,
            derandomize=False,
            suppress_health_check=list(hypothesis.HealthCheck),
            print_blob=True,
        )
        hypothesis.seed(seed)(settings(hypothesis.given(*self.positional, **self.named)(self.check)))()

    def run_for(self, seconds: float, seed: int) -> int:
        """Batches, each with a seed of its own, until the time is over; how many examples that were."""
        end_s, num_batches = time.monotonic() + seconds, 0
        while time.monotonic() < end_s:
            self.run(BATCH, seed + num_batches)
            num_batches += 1
        return num_batches * BATCH


def fuzzed(*positional: SearchStrategy[Any], **named: SearchStrategy[Any]) -> Callable[[Callable[..., None]], Target]:
    """Makes a target of a check."""
    return lambda check: Target(check, positional, named)
