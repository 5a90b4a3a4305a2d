"""Drives any `Engine` by hand, without a scheduler: requests on scattered pages, greedy generation, teacher-forced scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sapwood.core.plan import Engine, RowRun, SlotStart, StepPlan, StepResult, TableWrite, as_ids, no_copies
from sapwood.core.sampling import LogprobOptions, SamplingParams

GREEDY = SamplingParams(temperature=0.0, seed=0, ignore_eos=True)


class Score(NamedTuple):
    """At one position: the id with the largest logit, and its distance to the second largest."""

    argmax: int
    gap: float


class EngineDriver:
    """Gives each slot its own pages, drawn at random from the engine's pool, and numbers the steps."""

    def __init__(self, engine: Engine, seed: int = 0) -> None:
        self._engine = engine
        self._step = 0
        limits = engine.limits
        self._pages = np.random.default_rng(seed).permutation(limits.num_pages)
        self._pages_each = limits.num_pages // limits.num_slots

    def begin(self, slot: int, token_ids: Sequence[int], room: int, logprobs: LogprobOptions) -> tuple[SlotStart, TableWrite]:
        """What starts a greedy request of `token_ids` that may grow by `room` tokens."""
        page_size, length = self._engine.limits.page_size, len(token_ids) + room
        assert length <= self._pages_each * page_size, "the engine has too few pages for this test"
        positions = np.arange(length)
        pages = self._pages[slot * self._pages_each + positions // page_size]
        locations = (pages * page_size + positions % page_size).astype(np.int32)
        start = SlotStart(slot, as_ids(token_ids), len(token_ids), GREEDY, logprobs, 0)
        return start, TableWrite(slot, 0, locations)

    def run(self, rows: Sequence[RowRun], begun: Sequence[tuple[SlotStart, TableWrite]] = ()) -> StepResult:
        """One step, waited for."""
        self._step += 1
        starts, writes = tuple(start for start, _ in begun), tuple(write for _, write in begun)
        return self._engine.launch(StepPlan(self._step, starts, writes, no_copies(), tuple(rows))).wait()

    def generate(self, prompts: Sequence[Sequence[int]], num_new: int) -> list[list[int]]:
        """`num_new` greedy ids after each prompt: prompts one by one, then all of them as one decode batch."""
        outputs: list[list[int]] = []
        for slot, prompt in enumerate(prompts):
            begun = self.begin(slot, prompt, num_new, LogprobOptions())
            outputs.append(self.run([RowRun(slot, 0, len(prompt), True)], [begun]).token_ids)
        for done in range(num_new - 1):
            rows = [RowRun(slot, len(prompt) + done, 1, True) for slot, prompt in enumerate(prompts)]
            for output, token_id in zip(outputs, self.run(rows).token_ids, strict=True):
                output.append(token_id)
        return outputs

    def score(self, token_ids: Sequence[int], first: int = 1) -> list[Score]:
        """Teacher-forced: what the model would have chosen at each position from `first` on, given all ids before it."""
        begun = self.begin(0, token_ids, 0, LogprobOptions(prompt_start=first, top_n=2))
        position, entries = self.run([RowRun(0, 0, len(token_ids), False)], [begun]).prompt_logprobs[0]
        assert position == first
        return [Score(entry.top_ids[0], entry.top_logprobs[0] - entry.top_logprobs[1]) for entry in entries]

    def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """Teacher-forced: of each id from the second on, given those before it."""
        begun = self.begin(0, token_ids, 0, LogprobOptions(prompt_start=1))
        _, entries = self.run([RowRun(0, 0, len(token_ids), False)], [begun]).prompt_logprobs[0]
        return [entry.logprob for entry in entries]


def score_tokens(engine: Engine, token_ids: Sequence[int], first: int = 1) -> list[Score]:
    """See EngineDriver.score."""
    return EngineDriver(engine).score(token_ids, first)
