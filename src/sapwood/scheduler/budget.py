"""How many tokens one step may compute.

Owns the split between decodes and prompt chunks; does not know requests. Invariant: decodes are never cut, and prompts never get
less than a floor, so neither side starves the other.
"""

from __future__ import annotations

from typing import Protocol

from sapwood.messages.types import StepInputs

UNLIMITED = 2**62


class TokenBudget(Protocol):
    """The seam for budgets that follow measured step times; they may look at inputs only, never at a clock."""

    def observe(self, inputs: StepInputs) -> None:
        """Learn from what arrived with this step."""
        ...

    def prompt_tokens(self, num_decodes: int) -> int:
        """Prompt tokens that may ride along with `num_decodes` decode rows."""
        ...


class FixedBudget:
    """The same number of tokens in every step (None: no limit)."""

    def __init__(self, step_tokens: int | None, page_size: int) -> None:
        self._step_tokens = UNLIMITED if step_tokens is None else step_tokens
        self._floor = min(page_size, self._step_tokens)

    def observe(self, inputs: StepInputs) -> None:
        """A fixed budget learns nothing."""

    def prompt_tokens(self, num_decodes: int) -> int:
        """What decodes leave over, at least one page (or the whole budget where that is smaller)."""
        return max(self._step_tokens - num_decodes, self._floor)
