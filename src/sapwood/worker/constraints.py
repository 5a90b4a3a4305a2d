"""The engine as the loop sees it where requests may be constrained: masks are filled while the forward pass runs.

Owns a follower for each constrained slot and the moment at which a step's masks are released; does not know how anything is
sampled. Invariant: the masks of a step are released exactly once, as soon as every id before it is on the host: at its launch, or
when the step before it has been waited for; also when the engine is closed.

    launch k ── forward k ─────────────┐ sample k
    wait k-1 ── take ids, fill masks ──┘
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import msgspec
import numpy as np

from sapwood.core.plan import Engine, EngineLimits, Pending, SlotStart, StepPlan, StepResult, UInt32Array
from sapwood.core.units import div_ceil
from sapwood.grammar.api import Matcher
from sapwood.grammar.follower import Follower
from sapwood.worker.grammars import GrammarLibrary


@dataclass(frozen=True, slots=True)
class Followed:
    """A constrained row: its place in the plan, who follows its request, how many completion ids come before what it samples."""

    row: int
    follower: Follower
    num_before: int


class ConstrainedPending:
    """A launched step; waiting for it releases the next one."""

    __slots__ = ("inner", "rows", "is_waited_for", "_engine")

    def __init__(self, engine: ConstrainedEngine, pending: Pending, rows: list[Followed]) -> None:
        self.inner = pending
        self.rows = rows
        self.is_waited_for = False
        self._engine = engine

    def done(self) -> bool:
        """Whether the step has finished."""
        return self.inner.done()

    def wait(self) -> StepResult:
        """The step's result, with what the constraints say of it."""
        result = self.inner.wait()
        return result if self.is_waited_for else self._engine.took(self, result)

    def release(self, masks: UInt32Array) -> None:
        """The engine does this by itself."""


class ConstrainedEngine:
    """Wraps rank 0's engine. `jumps`: whether ids that a grammar forces may be appended without being sampled."""

    def __init__(self, engine: Engine, library: GrammarLibrary, *, jumps: bool) -> None:
        self._engine = engine
        self._library = library
        self._jumps = jumps
        self._followers: dict[int, tuple[Follower, int]] = {}
        self._latest: ConstrainedPending | None = None
        self._unreleased: ConstrainedPending | None = None
        limits = engine.limits
        self._masks = np.zeros((limits.num_slots, div_ceil(limits.vocab_size, 32)), dtype=np.uint32)

    @property
    def inner(self) -> Engine:
        """The engine that computes."""
        return self._engine

    @property
    def limits(self) -> EngineLimits:
        """The engine's."""
        return self._engine.limits

    def launch(self, plan: StepPlan) -> ConstrainedPending:
        """Queue one step; its masks follow as soon as they can be known."""
        if plan.starts:
            plan = msgspec.structs.replace(plan, starts=tuple(self._start(start) for start in plan.starts))
        rows = []
        for index in plan.constrained:
            row = plan.rows[index]
            follower, num_prompt = self._followers[row.slot]
            rows.append(Followed(index, follower, row.first + row.count - num_prompt))
        before, pending = self._latest, ConstrainedPending(self, self._engine.launch(plan), rows)
        self._latest = pending
        if rows:
            self._unreleased = pending
            if before is None or before.is_waited_for:
                self._release()
        return pending

    def took(self, pending: ConstrainedPending, result: StepResult) -> StepResult:
        """Pass on a finished step's ids to the followers, release the step after it, say what the constraints said."""
        pending.is_waited_for = True
        for row in pending.rows:
            row.follower.take(result.token_ids[row.row], row.num_before)
        if self._unreleased is not None:
            self._release()
        if not pending.rows:
            return result
        steering = {row.row: news for row in pending.rows if (news := row.follower.steering()) is not None}
        return msgspec.structs.replace(result, steering=steering) if steering else result

    def close(self) -> None:
        """Let every step end, then close the engine."""
        if self._unreleased is not None:
            pending, self._unreleased = self._unreleased, None
            pending.inner.release(np.full_like(self._masks[: len(pending.rows)], 0xFFFFFFFF))
        self._engine.close()

    def _start(self, start: SlotStart) -> SlotStart:
        """A request takes a slot; what ends it is kept back by masks, so the sampler need not."""
        self._followers.pop(start.slot, None)
        constraint = start.params.constraint
        if constraint is None:
            return start
        matcher = self._library.grammar(constraint).start()
        follower = Follower(matcher, start.params, self.limits.eos_token_ids, jumps=self._jumps and not start.logprobs.output)
        for index, token_id in enumerate(start.token_ids[start.num_prompt :].tolist()):
            follower.take(token_id, index)
        self._followers[start.slot] = (follower, start.num_prompt)
        return dataclasses.replace(start, params=msgspec.structs.replace(start.params, min_new_tokens=0))

    def _release(self) -> None:
        assert self._unreleased is not None
        pending, self._unreleased = self._unreleased, None
        masks = self._masks[: len(pending.rows)]
        filled: list[tuple[Matcher, int]] = []
        asked = []
        for index, row in enumerate(pending.rows):
            if row.follower.needs_fill(row.num_before):
                filled.append((row.follower.matcher, index))
                asked.append((row, index))
            else:
                row.follower.prepare(row.num_before, masks[index])
        if filled:
            self._library.backend.fill(filled, masks)
        for row, index in asked:
            row.follower.finish(row.num_before, masks[index])
        pending.inner.release(masks)
