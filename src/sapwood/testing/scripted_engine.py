"""An engine that says what a script says, byte by byte: everything above it is real.

Implements `core.plan.Engine`; computes nothing. Invariant: a request's ids depend on its script alone, so that retraction,
batching and caching cannot change them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from sapwood.core.plan import EngineLimits, RowRun, SlotStart, StepPlan, StepResult, UInt32Array
from sapwood.core.sampling import LogprobOptions, TokenLogprobs

MAX_REMEMBERED = 4096
CHOSEN_LOGPROB, NEXT_LOGPROB, OTHER_LOGPROB, PROMPT_LOGPROB = -0.1, -3.0, -9.0, -1.0
FILLER = b" "[0]
"""What follows an answer when its end is to be ignored."""


@dataclass(frozen=True, slots=True)
class ScriptedPending:
    """A launched step, which is done at once."""

    result: StepResult

    def done(self) -> bool:
        """Always."""
        return True

    def wait(self) -> StepResult:
        """What it says."""
        return self.result

    def release(self, masks: UInt32Array) -> None:
        """A script says what it says, whatever a constraint allows."""


class ScriptedEngine:
    """`answer` maps a prompt's ids to the ids of its completion."""

    def __init__(self, limits: EngineLimits, answer: Callable[[list[int]], list[int]]) -> None:
        self._limits = limits
        self._answer = answer
        self._starts: dict[int, SlotStart] = {}
        self._answers: OrderedDict[tuple[int | None, int, bytes], list[int]] = OrderedDict()

    @property
    def limits(self) -> EngineLimits:
        """What the scheduler has to know."""
        return self._limits

    def launch(self, plan: StepPlan) -> ScriptedPending:
        """See `core.plan.Engine`."""
        self._starts |= {start.slot: start for start in plan.starts}
        token_ids: list[int] = []
        logprobs: dict[int, TokenLogprobs] = {}
        prompts: dict[int, tuple[int, list[TokenLogprobs]]] = {}
        for index, row in enumerate(plan.rows):
            start = self._starts[row.slot]
            token_ids.append(self._next(row, start) if row.samples else -1)
            if row.samples and start.logprobs.output:
                logprobs[index] = self._logprobs(token_ids[-1], start.logprobs, CHOSEN_LOGPROB)
            report = self._report_prompt(row, start)
            if report is not None:
                prompts[index] = report
        return ScriptedPending(StepResult(plan.step, token_ids, logprobs, prompts))

    def close(self) -> None:
        """Nothing runs."""

    def _next(self, row: RowRun, start: SlotStart) -> int:
        answer = self._whole(start)
        index = row.first + row.count - start.num_prompt
        if index < len(answer):
            return answer[index]
        return FILLER if start.params.ignore_eos else self._limits.eos_token_ids[0]

    def _whole(self, start: SlotStart) -> list[int]:
        """The request's answer, also when it starts again after a retraction."""
        prompt = start.token_ids[: start.num_prompt]
        key = (start.params.seed, start.sample_index, prompt.tobytes())
        if key not in self._answers:
            self._answers[key] = self._answer(prompt.tolist())
            if len(self._answers) > MAX_REMEMBERED:
                self._answers.popitem(last=False)
        return self._answers[key]

    def _logprobs(self, token_id: int, options: LogprobOptions, value: float) -> TokenLogprobs:
        others = [(token_id + step) % self._limits.vocab_size for step in range(options.top_n)]
        top = [value, *(NEXT_LOGPROB - step for step in range(options.top_n - 1))][: options.top_n]
        asked = [value if asked_id == token_id else OTHER_LOGPROB for asked_id in options.token_ids]
        return TokenLogprobs(token_id, value, others, top, asked)

    def _report_prompt(self, row: RowRun, start: SlotStart) -> tuple[int, list[TokenLogprobs]] | None:
        if start.logprobs.prompt_start is None:
            return None
        first = max(row.first + 1, start.logprobs.prompt_start)
        ids = start.token_ids[first : min(row.first + row.count + 1, start.num_prompt)].tolist()
        return (first, [self._logprobs(token_id, start.logprobs, PROMPT_LOGPROB) for token_id in ids]) if ids else None
