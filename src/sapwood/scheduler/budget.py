"""How many prompt tokens one step may compute.

Owns the split between decodes and prompt chunks; does not know requests. Invariant: decodes are never cut, and prompts never get
less than a floor, so neither side starves the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sapwood.core.plan import RowRun, StepPlan
from sapwood.scheduler.options import SchedulerOptions
from sapwood.scheduler.step_cost import StepCost

UNLIMITED = 2**62
EARLY, STRETCH_STEP, MAX_STRETCH = 0.95, 0.01, 2.0
"""A step that ended before this share of the target lets the next one take that much more, up to so many times the target."""


class Allowance(Protocol):
    """What is left for prompts in one step."""

    @property
    def is_spent(self) -> bool:
        """Whether nothing more should be computed."""
        ...

    def grant(self, first: int, wanted: int) -> int:
        """How many of the `wanted` positions from `first` on may be computed; at least one unless spent. Counted as computed."""
        ...


class TokenBudget(Protocol):
    """Decides from plans and measured step times alone, never from a clock of its own."""

    def observe(self, plan: StepPlan, duration_s: float) -> None:
        """Learn how long a step took (0.0: nobody measured)."""
        ...

    def open(self, decodes: Sequence[RowRun]) -> Allowance:
        """What prompts may have beside these decode rows."""
        ...


class TokenAllowance:
    """So many tokens."""

    def __init__(self, num_tokens: int) -> None:
        self._num_left = num_tokens

    @property
    def is_spent(self) -> bool:
        """Whether no token is left."""
        return self._num_left <= 0

    def grant(self, first: int, wanted: int) -> int:
        """As many as are left."""
        count = min(wanted, self._num_left)
        self._num_left -= count
        return count


class WholeAllowance:
    """So many tokens, but no prompt is cut: the last one may go beyond."""

    def __init__(self, num_tokens: int) -> None:
        self._num_left = num_tokens

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left to begin another prompt with."""
        return self._num_left <= 0

    def grant(self, first: int, wanted: int) -> int:
        """All of it."""
        self._num_left -= wanted
        return wanted


class WholeBudget:
    """For models whose positions see each other both ways, so that a prompt is computed in one step or not at all."""

    def __init__(self, step_tokens: int | None) -> None:
        self._step_tokens = UNLIMITED if step_tokens is None else step_tokens

    def observe(self, plan: StepPlan, duration_s: float) -> None:
        """Nothing to learn."""

    def open(self, decodes: Sequence[RowRun]) -> WholeAllowance:
        """The same in every step; such models do not decode."""
        return WholeAllowance(self._step_tokens)


class FixedBudget:
    """The same number of tokens in every step (None: no limit)."""

    def __init__(self, step_tokens: int | None, page_size: int) -> None:
        self._step_tokens = UNLIMITED if step_tokens is None else step_tokens
        self._floor = min(page_size, self._step_tokens)

    def observe(self, plan: StepPlan, duration_s: float) -> None:
        """A fixed budget learns nothing."""

    def open(self, decodes: Sequence[RowRun]) -> TokenAllowance:
        """What decodes leave over, at least one page (or the whole budget where that is smaller)."""
        return TokenAllowance(max(self._step_tokens - sum([row.count for row in decodes]), self._floor))


class TimeAllowance:
    """So many seconds by the cost model, within a number of tokens; the first `floor` tokens are free of charge."""

    def __init__(self, cost: StepCost, seconds: float, num_tokens: int, floor: int) -> None:
        self._cost = cost
        self._seconds_left = seconds
        self._num_left = num_tokens
        self._floor = min(floor, num_tokens)

    @property
    def is_spent(self) -> bool:
        """Whether the floor is used up and time or tokens are, too."""
        return self._num_left <= 0 or (self._floor <= 0 and self._seconds_left <= 0.0)

    def grant(self, first: int, wanted: int) -> int:
        """What the time that is left is good for at this depth of context, at least what is left of the floor."""
        affordable = max(self._cost.affordable(self._seconds_left, first), self._floor, 1)
        count = min(wanted, affordable, self._num_left)
        self._num_left -= count
        self._floor -= count
        self._seconds_left = 0.0 if count == affordable else self._seconds_left - self._cost.of_row(first, count)
        return count


class AutoBudget:
    """Sizes each step from measured step times, so that a typical gap between a stream's tokens is `target_itl_s` at most, and
    of a hundred gaps no more than one is longer than one and a half times that.

    A step without decodes keeps nobody waiting and may have the whole fixed budget. Beside decodes, prompts get what the target
    leaves, never more than twice the largest chunk that was measured lately (a guess is not stretched far beyond what it comes
    from), and at least one token; a whole page where decodes alone take longer than the target, which is lost then, whatever
    prompts get. When the model says that decodes leave nothing but has not seen them alone for a while, prompts wait for one
    step, so that it does.
    """

    def __init__(self, target_itl_s: float, step_tokens: int | None, page_size: int) -> None:
        self._target_s = target_itl_s
        self._most = UNLIMITED if step_tokens is None else step_tokens
        self._page = min(page_size, self._most)
        self._cost = StepCost()
        self._stretch = 1.0

    def observe(self, plan: StepPlan, duration_s: float) -> None:
        """One more measured step."""
        if duration_s > 0.0 and plan.rows:
            self._try_more(plan.rows, duration_s)
            self._cost.learn(plan.rows, duration_s)

    def _try_more(self, rows: Sequence[RowRun], duration_s: float) -> None:
        """Where the model cut a prompt beside decodes, and all the same the step ended well before the target, the next may be
        larger: a model that saw only small chunks cannot know that larger ones cost hardly more."""
        num_decodes = sum(row.samples and row.count == 1 for row in rows)
        is_cut, num_prompt = any(not row.samples for row in rows), sum(row.count for row in rows) - num_decodes
        if not num_decodes or not is_cut or num_prompt > self._cost.largest_prompt:
            return  # nobody waited, there was no more to compute, or the chunk was as large as any may become at once
        if duration_s < EARLY * self._aim_s:
            self._stretch = min(self._stretch * (1.0 + STRETCH_STEP), MAX_STRETCH)
        elif duration_s > self._aim_s:
            self._stretch = max(self._stretch * (1.0 - STRETCH_STEP), 1.0)

    @property
    def _aim_s(self) -> float:
        return self._target_s / self._cost.margin

    def open(self, decodes: Sequence[RowRun]) -> TimeAllowance | TokenAllowance:
        """What the target leaves beside these decodes."""
        if not decodes:
            return TokenAllowance(self._most)
        self._cost.fit()
        decodes_s = self._cost.of_step(decodes)
        aim_s = self._aim_s * self._stretch
        if decodes_s > aim_s and not self._cost.knows_decodes:
            return TokenAllowance(0)
        most = min(self._most, max(2 * self._cost.largest_prompt, self._page))
        floor = self._page if decodes_s > self._target_s else 1
        return TimeAllowance(self._cost, aim_s - decodes_s, most, floor)


def make_budget(options: SchedulerOptions, page_size: int) -> TokenBudget:
    """The budget that the options ask for."""
    if options.whole_prompts:
        return WholeBudget(options.step_token_budget)
    if options.target_itl_s is None:
        return FixedBudget(options.step_token_budget, page_size)
    return AutoBudget(options.target_itl_s, options.step_token_budget, page_size)
