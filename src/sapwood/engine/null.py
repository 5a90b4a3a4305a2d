"""The null engine: the seam's whole contract without a model, in numpy, with a memory that notices every mistake.

Owns a token table, and for each kind of attention a page table and a KV store of one 64-bit hash per location; does not decide.
Invariant: before a row computes, every KV row it attends to (in each kind) must be the one that its own prefix produced; anything
else is a violation, and changes the output too.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sapwood.core.plan import EngineLimits, RowRun, SlotStart, StepPlan, StepResult, TableWrite, UInt32Array
from sapwood.core.sampling import TokenLogprobs
from sapwood.engine.null_model import NullModel, UInt64Array, make_draw
from sapwood.errors import EngineFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class NullOptions:
    """How the null engine behaves.

    `eos_probability`: chance that a prefix ends. `step_time_s` and `token_time_s`: how long a step takes, and each of its tokens.
    `is_racy`: apply starts, table writes and copies at launch, ahead of earlier steps that are still to compute, as an engine
    with a second stream may; a plan that reuses what a launched step still touches then does damage, or is a violation where it
    would compute into it. `is_strict`: a violation raises EngineFailed (otherwise it is only recorded in `violations`).
    """

    eos_probability: float = 0.02
    step_time_s: float = 0.0
    token_time_s: float = 0.0
    is_racy: bool = False
    is_strict: bool = True


class NullPending:
    """A launched step; it computes when it, or a later one, is waited for (in order), never earlier."""

    def __init__(self, engine: NullEngine, plan: StepPlan, ready_at_s: float) -> None:
        self.plan = plan
        self.result: StepResult | None = None
        self.masks: UInt32Array | None = None
        self.touched: tuple[set[int], set[int]] = (set(), set())
        self._engine = engine
        self._ready_at_s = ready_at_s

    def done(self) -> bool:
        """Whether its (virtual) time has passed."""
        return self.result is not None or time.monotonic() >= self._ready_at_s

    def wait(self) -> StepResult:
        """Sleep until its time, compute what was launched up to here, return what it produced."""
        delay_s = self._ready_at_s - time.monotonic()
        if self.result is None and delay_s > 0.0:
            time.sleep(delay_s)
        self._engine.run_until(self)
        assert self.result is not None
        return self.result

    def release(self, masks: UInt32Array) -> None:
        """Keep a copy for when the step computes."""
        self.masks = masks.copy()


class NullStore:
    """One kind of attention: a page table, and a KV row per location. `window`: how many positions a row sees (0: all)."""

    def __init__(self, limits: EngineLimits, num_pages: int, window: int) -> None:
        self.num_locations = num_pages * limits.page_size
        self.window = window
        self.table = np.full((limits.num_slots, limits.max_len), self.num_locations, dtype=np.int32)
        self.kv = np.zeros(self.num_locations + 1, dtype=np.uint64)  # the last row is where an unwritten table entry points

    def write(self, write: TableWrite) -> bool:
        """Point a row to locations; False when these, or the row, reach outside."""
        end = write.position + len(write.locations)
        is_inside = end <= self.table.shape[1] and bool(((write.locations >= 0) & (write.locations < self.num_locations)).all())
        self.table[write.slot, write.position : end] = write.locations
        return is_inside

    def touched(self, rows: Iterable[RowRun], *, written: bool) -> set[int]:
        """The locations that rows write, or read as well."""
        found: set[int] = set()
        for row in rows:
            first = row.first if written else self.oldest(row)
            found.update(self.table[row.slot, first : row.first + row.count].tolist())
        return found

    def oldest(self, row: RowRun) -> int:
        """The first position that a row sees."""
        return max(row.first - self.window + 1, 0) if self.window else 0

    def store(self, row: RowRun, truth: UInt64Array) -> Iterator[str]:
        """Keep the KV of a row's positions; what is wrong where the row does not see `truth` before them, or has no room."""
        end = row.first + row.count
        oldest = self.oldest(row)
        locations = self.table[row.slot, oldest:end]
        num_past = row.first - oldest
        wrong = self.kv[locations[:num_past]] != truth[oldest : row.first]
        self.kv[locations[num_past:]] = truth[row.first : end]
        kind = f" (window {self.window})" if self.window else ""
        if wrong.any():
            bad = int(np.flatnonzero(wrong)[0])
            yield (
                f"attends to position {oldest + bad} of {row.first} at location {int(locations[bad])}{kind},"
                " whose KV is not that of its prefix"
            )
        if int(locations[num_past:].max()) == self.num_locations:
            yield f"computes positions {row.first}..{end} without pages for them{kind}"


class NullEngine:
    """An `Engine` of numpy arrays."""

    def __init__(self, limits: EngineLimits, options: NullOptions | None = None) -> None:
        self._limits = limits
        self._options = options or NullOptions()
        self.model = NullModel(limits.max_len, limits.vocab_size, self._options.eos_probability)
        self.violations: list[str] = []
        self._tokens = np.zeros((limits.num_slots, limits.max_len), dtype=np.int32)
        self._whole = NullStore(limits, limits.num_pages, 0)
        self._window = NullStore(limits, limits.num_window_pages, limits.window)
        self._stores = (self._whole, self._window) if limits.window else (self._whole,)
        self._host = np.zeros((limits.num_host_pages, limits.page_size), dtype=np.uint64)
        self._starts: dict[int, SlotStart] = {}
        self._launched: deque[NullPending] = deque()
        self._ready_at_s = 0.0
        self._last_step = 0

    @property
    def limits(self) -> EngineLimits:
        """The facts that scheduling works with."""
        return self._limits

    @property
    def host_pages(self) -> NDArray[np.uint8]:
        """The host pages as storage sees them, uint8 [num_host_pages, bytes]."""
        return self._host.view(np.uint8)

    def launch(self, plan: StepPlan) -> NullPending:
        """Queue one step."""
        if plan.step <= self._last_step:
            self._report(f"step {plan.step} was launched after step {self._last_step}")
        self._last_step = plan.step
        duration_s = self._options.step_time_s + self._options.token_time_s * plan.num_tokens
        self._ready_at_s = max(self._ready_at_s, time.monotonic()) + duration_s
        pending = NullPending(self, plan, self._ready_at_s if duration_s else 0.0)
        if self._options.is_racy:
            self._move_state(plan)
            self._race(pending)
        self._launched.append(pending)
        return pending

    def _race(self, pending: NullPending) -> None:
        """Nothing that launched steps touch may be computed into; remember what this one touches."""
        rows, step = pending.plan.rows, pending.plan.step
        for store, touched in zip(self._stores, pending.touched, strict=False):
            touched |= store.touched(rows, written=False)
        for earlier in self._launched:
            for store, touched in zip(self._stores, earlier.touched, strict=False):
                if common := touched & store.touched(rows, written=True):
                    self._report(f"step {step} writes to locations {sorted(common)[:4]}, which step {earlier.plan.step} touches")

    def run_until(self, pending: NullPending) -> None:
        """Compute launched steps, oldest first, up to `pending`."""
        while pending.result is None:
            oldest = self._launched.popleft()
            if not self._options.is_racy:
                self._move_state(oldest.plan)
            oldest.result = self._compute(oldest.plan, oldest.masks)

    def close(self) -> None:
        """Compute what is still queued."""
        while self._launched:
            self.run_until(self._launched[-1])

    # ------------------------------------------------------------------------------------------------- state
    def _move_state(self, plan: StepPlan) -> None:
        for start in plan.starts:
            self._starts[start.slot] = start
            self._tokens[start.slot, : len(start.token_ids)] = start.token_ids
            for store in self._stores:
                store.table[start.slot] = store.num_locations
        for token_write in plan.tokens:
            end = token_write.position + len(token_write.token_ids)
            self._tokens[token_write.slot, token_write.position : end] = token_write.token_ids
        for write in plan.writes:
            if not (self._window if write.is_window else self._whole).write(write):
                self._report(f"step {plan.step}: a table write of slot {write.slot} reaches outside the table or the pool")
        pages = self._whole.kv[:-1].reshape(-1, self._limits.page_size)
        self._host[plan.saves[:, 1]] = pages[plan.saves[:, 0]]
        pages[plan.loads[:, 1]] = self._host[plan.loads[:, 0]]
        for store, copies in ((self._whole, plan.copies), (self._window, plan.window_copies)):
            store.kv[copies[:, 1]] = store.kv[copies[:, 0]]

    def _compute(self, plan: StepPlan, masks: UInt32Array | None) -> StepResult:
        if plan.constrained and (masks is None or len(masks) != len(plan.constrained)):
            raise EngineFailed(f"step {plan.step} computes before its masks were released; report this as a bug")
        allowed = {} if masks is None else dict(zip(plan.constrained, masks, strict=True))
        token_ids: list[int] = []
        logprobs: dict[int, TokenLogprobs] = {}
        prompt_logprobs: dict[int, tuple[int, list[TokenLogprobs]]] = {}
        vectors: dict[int, bytes] = {}
        for index, row in enumerate(plan.rows):
            start = self._starts[row.slot]
            if row.count < 1:
                raise EngineFailed(f"step {plan.step}: the row of slot {row.slot} computes nothing; report this as a bug")
            contexts = self._forward(plan.step, row, start)
            token_ids.append(self._sample(row, start, contexts[-1], allowed.get(index)) if row.samples else -1)
            if row.samples and start.logprobs.output:
                logprobs[index] = self.model.logprobs(contexts[-1], token_ids[-1], start.logprobs)
            if start.pooling is not None and row.first + row.count == start.num_prompt:
                vectors[index] = self.model.vector(contexts[-1], start.pooling)
            report = self._report_prompt(row, start, contexts)
            if report is not None:
                prompt_logprobs[index] = report
        return StepResult(plan.step, token_ids, logprobs, prompt_logprobs, vectors=vectors)

    def _forward(self, step: int, row: RowRun, start: SlotStart) -> list[int]:
        """Store the KV of the row's positions and attend; the context value of each, or of the last only when that is enough."""
        end = row.first + row.count
        truth = self.model.content(self._tokens[row.slot, :end])
        damage = [problem for store in self._stores for problem in store.store(row, truth)]
        for problem in damage:
            self._report(f"step {step}: slot {row.slot} {problem}")
        seen = self._whole.kv[self._whole.table[row.slot, :end]] ^ np.uint64(len(damage))
        wants_all = start.logprobs.prompt_start is not None and row.first + 1 < len(start.token_ids)
        return self.model.contexts(seen, row.first if wants_all else end - 1)

    def _sample(self, row: RowRun, start: SlotStart, context: int, mask: UInt32Array | None) -> int:
        position = row.first + row.count
        draw = make_draw(start.params, start.sample_index, position)
        token_id = self.model.choose(context, start.params, draw, position - start.num_prompt, mask)
        self._tokens[row.slot, position] = token_id
        return token_id

    def _report_prompt(self, row: RowRun, start: SlotStart, contexts: list[int]) -> tuple[int, list[TokenLogprobs]] | None:
        """Log-probabilities of the prompt positions that this row's positions predict."""
        if start.logprobs.prompt_start is None:
            return None
        first = max(row.first + 1, start.logprobs.prompt_start)
        end = min(row.first + row.count + 1, start.num_prompt)
        if first >= end:
            return None
        tokens = self._tokens[row.slot]
        entries = [
            self.model.logprobs(contexts[position - 1 - row.first], int(tokens[position]), start.logprobs)
            for position in range(first, end)
        ]
        return first, entries

    def _report(self, violation: str) -> None:
        self.violations.append(violation)
        if self._options.is_strict:
            raise EngineFailed(f"the null engine found damage: {violation}")
