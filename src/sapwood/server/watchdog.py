"""Whether the step that rank 0 is computing takes longer than any step should.

Reads the flight record; ends nothing itself. Invariant: no step is called hung before `floor_s`, nor before ten times what the
measured steps make likely for one of its size (five times the floor while nothing was measured).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from sapwood.messages.flight import StepRecord, read_steps

CHECK_INTERVAL_S = 0.5
PATIENCE = 10.0
UNMEASURED_PATIENCE = 5.0


def overdue(steps: Sequence[StepRecord], now_s: float, floor_s: float) -> str:
    """What hangs and since when, in words; nothing when all is well."""
    index = next((index for index, step in enumerate(steps) if not step.ended_s), None)
    if index is None:
        return ""
    step, began_s = steps[index], max(steps[index].launched_s, steps[index - 1].ended_s if index else 0.0)
    if now_s - began_s <= floor_s:
        return ""
    likely_s = _likely_s(steps[:index], step.num_tokens)
    deadline_s = max(floor_s, PATIENCE * likely_s) if likely_s else UNMEASURED_PATIENCE * floor_s
    if now_s - began_s <= deadline_s:
        return ""
    what = f"step {step.step} ({step.num_rows} rows, {step.num_tokens} tokens)"
    return f"{what} has run for {now_s - began_s:.1f} s, more than the {deadline_s:.1f} s that it may take"


def _likely_s(steps: Sequence[StepRecord], size: int) -> float:
    """What a step of `size` tokens may well take, by these that have ended."""
    likely_s, last_end_s = 0.0, 0.0
    for step in steps:
        took_s = step.ended_s - max(step.launched_s, last_end_s)
        likely_s, last_end_s = max(likely_s, took_s * max(1.0, size / max(1, step.num_tokens))), step.ended_s
    return likely_s


class StepWatchdog:
    """Looks at the record now and then; `on_hang` hears, once per record, what hangs."""

    def __init__(self, flight_path: Callable[[], str], on_hang: Callable[[str], None], floor_s: float) -> None:
        self._flight_path = flight_path
        self._on_hang = on_hang
        self._floor_s = floor_s
        self._told = ""

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            path = self._flight_path()
            if path == self._told:
                continue
            what = overdue(read_steps(path), time.monotonic(), self._floor_s)
            if what:
                self._told = path
                self._on_hang(what)
