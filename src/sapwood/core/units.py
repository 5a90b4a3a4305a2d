"""Integer helpers for pages and budgets. Pure functions, no state."""

from __future__ import annotations


def div_ceil(value: int, divisor: int) -> int:
    """The smallest integer >= value / divisor (divisor > 0)."""
    return -(-value // divisor)


def align_down(value: int, step: int) -> int:
    """The largest multiple of `step` that is <= value."""
    return value - value % step


def align_up(value: int, step: int) -> int:
    """The smallest multiple of `step` that is >= value."""
    return div_ceil(value, step) * step
