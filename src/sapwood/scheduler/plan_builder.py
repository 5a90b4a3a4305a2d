"""Collects what one step does and freezes it into a StepPlan.

Owns the arrays of a plan under construction; does not decide. Invariant: whatever a row of the plan reads was written to the page
table by this plan or an earlier one.
"""

from __future__ import annotations

import numpy as np

from sapwood.core.plan import EngineLimits, Int32Array, RowRun, SlotStart, StepPlan, TableWrite, TokenWrite, no_copies
from sapwood.scheduler.resident import Resident


class PlanBuilder:
    """One plan in the making. `residents[i]` is the request behind `rows[i]`; these compute `num_tokens` positions."""

    def __init__(self, step: int, limits: EngineLimits) -> None:
        self.step = step
        self.rows: list[RowRun] = []
        self.residents: list[Resident] = []
        self.num_tokens = 0
        self._limits = limits
        self._starts: list[SlotStart] = []
        self._writes: list[TableWrite] = []
        self._tokens: list[TokenWrite] = []
        self._constrained: list[int] = []
        self._copies: list[Int32Array] = []
        self._window_copies: list[Int32Array] = []
        self._saves = self._loads = no_copies()

    @property
    def is_empty(self) -> bool:
        """Whether the step would neither compute nor move anything."""
        return not (self.rows or self._writes or len(self._saves))

    def start(self, resident: Resident) -> None:
        """The resident takes its slot, with all its pages."""
        request = resident.request
        logprobs = request.engine_logprobs()
        self._starts.append(
            SlotStart(
                resident.slot,
                request.ids(),
                request.num_prompt,
                request.params,
                logprobs,
                request.sample_index,
                request.pooling,
            )
        )
        request.unwritten = None
        self.write_pages(resident, 0, len(resident.pages))

    def write_pages(self, resident: Resident, first: int, end: int) -> None:
        """Point the resident's row to its pages [first, end)."""
        self._write(resident.slot, first, resident.pages[first:end], is_window=False)

    def write_window(self, resident: Resident, first: int, pages: list[int]) -> None:
        """Point the row of the layers with a window to `pages`, from the resident's page number `first` on."""
        self._write(resident.slot, first, pages, is_window=True)

    def _write(self, slot: int, first: int, page_list: list[int], *, is_window: bool) -> None:
        size = self._limits.page_size
        position = first * size
        if len(page_list) == 1:  # a request that decodes takes one page after the other
            locations = np.arange(page_list[0] * size, (page_list[0] + 1) * size, dtype=np.int32)
        else:
            pages = np.array(page_list, dtype=np.int32)
            locations = np.add.outer(pages * np.int32(size), np.arange(size, dtype=np.int32)).ravel()
        self._writes.append(TableWrite(slot, position, locations[: self._limits.max_len - position], is_window))

    def copy_rows(self, source_page: int, resident: Resident, page_index: int, num_rows: int) -> None:
        """Copy the first `num_rows` rows of a page into one of the resident's own."""
        self._copies.append(self._rows(source_page, resident.pages[page_index], num_rows))

    def copy_window_rows(self, source_page: int, page: int, num_rows: int) -> None:
        """Copy the first `num_rows` rows of a window page into another."""
        self._window_copies.append(self._rows(source_page, page, num_rows))

    def _rows(self, source_page: int, page: int, num_rows: int) -> Int32Array:
        ends = np.array([source_page, page], dtype=np.int32) * np.int32(self._limits.page_size)
        return ends + np.arange(num_rows, dtype=np.int32)[:, None]

    def move_pages(self, saves: Int32Array, loads: Int32Array) -> None:
        """Carry pages between the tiers; see `StepPlan`."""
        self._saves, self._loads = saves, loads

    def run(self, resident: Resident, count: int) -> None:
        """Compute the resident's next `count` positions."""
        request = resident.request  # this runs for every row
        first = request.num_computed
        if request.unwritten is not None:
            self._tokens.append(TokenWrite(resident.slot, request.unwritten, request.ids()[request.unwritten :]))
            request.unwritten = None
        samples = request.launch(count)
        self.rows.append(RowRun(resident.slot, first, count, samples))
        self.residents.append(resident)
        self.num_tokens += count
        resident.last_step = self.step
        if samples and request.params.constraint is not None:
            self._constrained.append(len(self.rows) - 1)

    def build(self) -> StepPlan:
        """The finished plan."""
        return StepPlan(
            step=self.step,
            starts=tuple(self._starts),
            writes=tuple(self._writes),
            copies=np.concatenate(self._copies) if self._copies else no_copies(),
            rows=tuple(self.rows),
            saves=self._saves,
            loads=self._loads,
            window_copies=np.concatenate(self._window_copies) if self._window_copies else no_copies(),
            tokens=tuple(self._tokens),
            constrained=tuple(self._constrained),
        )
