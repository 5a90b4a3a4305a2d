"""A record of steps for trace viewers: what each held, when it was launched, how long it took.

Owns what was recorded and the file; does not know requests. Invariant: an engine that is not recorded pays one comparison per
step, and a record is bounded.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from sapwood.core.plan import Pending, StepPlan, StepResult, UInt32Array
from sapwood.errors import InvalidRequest

MAX_STEPS = 100_000


@dataclass(slots=True)
class TracedPending:
    """A launched step whose end is noted."""

    pending: Pending
    trace: StepTrace
    plan: StepPlan
    launched_s: float

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        return self.pending.done()

    def wait(self) -> StepResult:
        """The step's result."""
        result = self.pending.wait()
        self.trace.note(self.plan, self.launched_s)
        return result

    def release(self, masks: UInt32Array) -> None:
        """Pass the masks on."""
        self.pending.release(masks)


class StepTrace:
    """Recorded steps on their way to a file in `folder`, in the JSON form that chrome://tracing and Perfetto read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.is_on = False
        self._events: list[dict[str, Any]] = []
        self._num_left = 0
        self._last_end_s = 0.0

    def start(self, num_steps: int) -> None:
        """Record the next `num_steps` steps (0: until stopped); raises InvalidRequest when that is going on already."""
        if self.is_on:
            raise InvalidRequest("steps are being recorded already; stop that first")
        self._events, self._num_left = [], min(num_steps or MAX_STEPS, MAX_STEPS)
        self.is_on = True

    def stop(self) -> Path:
        """Write what was recorded; raises InvalidRequest when nothing was asked for."""
        if not self.is_on and not self._events:
            raise InvalidRequest("no steps are being recorded; start that first")
        self.is_on = False
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"steps-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{time.monotonic_ns()}.json"
        path.write_bytes(msgspec.json.encode({"traceEvents": self._events, "displayTimeUnit": "ms"}))
        self._events = []
        return path

    def watch(self, plan: StepPlan, pending: Pending) -> TracedPending:
        """Note the step when it ends."""
        return TracedPending(pending, self, plan, time.perf_counter())

    def note(self, plan: StepPlan, launched_s: float) -> None:
        """The step of `plan` has ended."""
        end_s = time.perf_counter()
        began_s, self._last_end_s = max(launched_s, self._last_end_s), end_s
        if self._num_left <= 0:
            return
        self._num_left -= 1
        self.is_on = self._num_left > 0
        num_decodes = sum(row.count == 1 and row.samples for row in plan.rows)
        counts = {"tokens": plan.num_tokens, "rows": len(plan.rows), "decodes": num_decodes, "copies": len(plan.copies)}
        common = {"pid": os.getpid(), "tid": 0, "ph": "X"}
        name = f"step {plan.step}: {num_decodes} decodes, {plan.num_tokens - num_decodes} prompt tokens"
        self._events.append({"name": name, "ts": began_s * 1e6, "dur": (end_s - began_s) * 1e6, "args": counts, **common})
        if began_s > launched_s:
            waited = {"name": "queued", "ts": launched_s * 1e6, "dur": (began_s - launched_s) * 1e6, **common}
            self._events.append({**waited, "tid": 1, "args": {"step": plan.step}})
