"""An `LLM` in this process as a backend: prompts stay ids, and what a model wrote is never tokenised again.

Owns the way from runs of text to ids and back; the LLM runs them. Invariant: ids that a generation produced are the ids with
which the text goes on, so a program finds everything that it has said in the prefix cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from sapwood.core.constraint import ConstraintKind
from sapwood.core.sampling import LogprobOptions, SamplingParams
from sapwood.errors import InvalidRequest
from sapwood.lang.backends.base import Generation, Job, OnText
from sapwood.lang.backends.futures import chained, mapped
from sapwood.lang.backends.healing import ONE_TOKEN, Border, find_border, heal
from sapwood.lang.backends.scoring import ChoicePlan, plan_choices
from sapwood.lang.choices import ChoiceScores, Triple
from sapwood.lang.roles import RoleMarks, named_marks, read_marks
from sapwood.lang.settings import GenSettings, as_list
from sapwood.lang.transcript import Prompt, Run
from sapwood.server.constraints import only_one, want
from sapwood.server.native.reply import ReplyShape, reply
from sapwood.server.record import Update
from sapwood.tokenizer.chat import ChatOptions

if TYPE_CHECKING:
    from sapwood.llm import LLM
    from sapwood.pump import Ticket

B = TypeVar("B")
MAX_PROGRAMS = 256
REMEMBERED_RUNS = 64
CONSTRAINTS: tuple[ConstraintKind, ...] = ("regex", "json_schema", "ebnf")
SCORE_ONLY = SamplingParams(max_new_tokens=0)


class LocalBackend:
    """Programs on an `LLM`; make it once and use it from anywhere.

    With `token_healing` a generation may finish the token in which the program's text ends.
    """

    def __init__(self, llm: LLM, chat_template_name: str | None = None, *, token_healing: bool = True) -> None:
        self._llm = llm
        self._heals = token_healing
        self._name = chat_template_name
        self._tokenizer = llm.prompts.tokenizer
        self._encode = lru_cache(REMEMBERED_RUNS)(self._encode_run)
        self._begin = self._tokenizer.encode_pieces([], True)

    takes_messages = False

    @property
    def num_programs(self) -> int:
        """Twice what can run, so that a slot is never empty for want of a program."""
        return min(2 * self._llm.num_slots, MAX_PROGRAMS)

    @cached_property
    def marks(self) -> RoleMarks:
        """The model's own, unless another template was asked for."""
        if self._name is not None or not self._llm.has_chat_template:
            return named_marks(self._name or "default")
        return read_marks(self._render)

    def generate(self, prompt: Prompt, settings: GenSettings, on_text: OnText | None) -> Job[list[Generation]]:
        """See `Backend`. Parameters are checked here: raises InvalidRequest."""
        ids = self.ids(prompt)
        border = find_border(self._tokenizer, prompt, ids, settings) if self._heals else None
        return self._continue(ids, settings, on_text) if border is None else self._heal(border, settings, on_text)

    def _continue(self, ids: list[int], settings: GenSettings, on_text: OnText | None) -> Job[list[Generation]]:
        follow = None if on_text is None else _follower(on_text)
        ticket = self._llm.submit([ids], to_params(settings), logprobs=_logprob_options(settings), on_update=follow)
        shape = ReplyShape(self._tokenizer, False, bool(settings.return_text_in_logprobs))
        return self._job(ticket, lambda updates: [self._generation(shape, update) for update in updates])

    def _heal(self, border: Border, settings: GenSettings, on_text: OnText | None) -> Job[list[Generation]]:
        """Choose the token at the border first, then go on from it."""

        def go_on(updates: list[Update]) -> Job[list[Generation]]:
            healed = heal(self._tokenizer, border, updates[0].record.logprobs[0], settings)
            if not healed.text:
                return self._continue(healed.ids, settings, on_text)
            if on_text is not None:
                on_text(healed.text)
            fewer = GenSettings(max_new_tokens=(settings.max_new_tokens or 2) - 1).over(settings)
            job = self._continue(healed.ids, fewer, on_text)
            return Job(mapped(job.future, lambda samples: [_after(healed.text, sample) for sample in samples]), job.cancel)

        ticket = self._llm.submit([border.before], ONE_TOKEN, logprobs=border.logprobs)
        return chained(self._job(ticket, lambda updates: updates), go_on)

    def score(self, prompt: Prompt, choices: Sequence[str], unconditional: bool) -> Job[ChoiceScores]:
        """See `Backend`. All choices, with the text and without, are one submission; the text is computed once."""
        plan = self._plan(prompt, choices)
        if unconditional and not plan.alone:
            raise InvalidRequest("the model has no token that begins a text; take another choices_method", param="choices_method")
        prompts = plan.prompts + (plan.alone if unconditional else [])
        starts = [plan.start] * len(plan.prompts) + [1] * len(plan.alone if unconditional else [])
        params = [SCORE_ONLY] * len(prompts)
        ticket = self._llm.submit(prompts, params, logprobs=[LogprobOptions(prompt_start=start) for start in starts])
        return self._job(ticket, lambda updates: self._scores(plan, updates))

    def cache_prefix(self, prompt: Prompt) -> None:
        """See `Backend`."""
        if ids := self.ids(prompt):
            self._llm.submit([ids], SCORE_ONLY).future.result()

    def flush_cache(self) -> bool:
        """See `Backend`."""
        self._llm.flush_cache()
        return True

    def get_server_info(self) -> dict[str, Any]:
        """The configuration."""
        info: dict[str, Any] = msgspec.to_builtins(self._llm.config, enc_hook=str)
        return info

    def ids(self, prompt: Prompt) -> list[int]:
        """The prompt as the model sees it."""
        return self._with_begin([token for index, run in enumerate(prompt.merged()) for token in self._ids_of(run, index == 0)])

    def _ids_of(self, run: Run, is_first: bool) -> Sequence[int]:
        return run.ids or self._encode(run.text, run.is_special, is_first)

    def _encode_run(self, text: str, is_special: bool, is_first: bool) -> tuple[int, ...]:
        before = [] if is_first else [("", True)]
        return tuple(self._tokenizer.encode_pieces([*before, (text, is_special)], False))

    def _with_begin(self, ids: list[int]) -> list[int]:
        return ids if ids[: len(self._begin)] == self._begin else [*self._begin, *ids]

    def _plan(self, prompt: Prompt, choices: Sequence[str]) -> ChoicePlan:
        runs = prompt.merged()
        is_special = prompt.role is None
        last = Run("", is_special)
        if runs and not runs[-1].ids and runs[-1].is_special == is_special:
            last = runs.pop()
        head = [token for index, run in enumerate(runs) for token in self._ids_of(run, index == 0)]
        tail, *tails = [self._encode_run(last.text + choice, is_special, not runs) for choice in ("", *choices)]
        with_begin = self._with_begin([*head, *tail])
        head = with_begin[: len(with_begin) - len(tail)]
        begin_id = self._tokenizer.bos_token_id
        return plan_choices(head, tail, tails, next(iter(self._tokenizer.eos_token_ids), None) if begin_id is None else begin_id)

    def _scores(self, plan: ChoicePlan, updates: list[Update]) -> ChoiceScores:
        with_text, alone = updates[: len(plan.prompts)], updates[len(plan.prompts) :]
        tokens = [
            [self._triple(entry.logprob, entry.token_id) for entry in update.record.prompt_logprobs] for update in with_text
        ]
        return ChoiceScores(tokens, [[entry.logprob for entry in update.record.prompt_logprobs] for update in alone])

    def _triple(self, logprob: float | None, token_id: int) -> Triple:
        return logprob, token_id, self._tokenizer.token_text(token_id)

    def _generation(self, shape: ReplyShape, update: Update) -> Generation:
        answer = reply(shape, update, incremental=False, in_stream=False)
        meta = msgspec.to_builtins(answer.meta_info)
        return Generation(answer.text, self._spelling(answer.text, answer.output_ids), meta)

    def _spelling(self, text: str, ids: Sequence[int]) -> tuple[int, ...]:
        """The ids without what ended them, if they then spell the text exactly; else none."""
        wanted = text.encode()
        pieces = [
            self._tokenizer.pieces.piece(token)
            for token in takewhile(lambda token: token not in self._tokenizer.special_ids, ids)
        ]
        ends = list(accumulate(map(len, pieces)))
        count = ends.index(len(wanted)) + 1 if len(wanted) in ends else 0
        return tuple(ids[:count]) if b"".join(pieces[:count]) == wanted else ()

    def _job(self, ticket: Ticket, make: Callable[[list[Update]], B]) -> Job[B]:
        return Job(mapped(ticket.future, make), lambda: self._llm.cancel(ticket))

    def _render(self, messages: Sequence[Mapping[str, str]], is_asked: bool) -> str:
        pieces = self._llm.prompts.chat.render(messages, ChatOptions(add_generation_prompt=is_asked))
        return "".join(text for text, _ in pieces)


def _after(text: str, sample: Generation) -> Generation:
    """The sample with what the healed token brought before it."""
    return Generation(text + sample.text, meta={**sample.meta, "healed": text})


def to_params(settings: GenSettings) -> SamplingParams:
    """The parameters behind SGLang's names; not yet checked for ranges, nor whether a constraint compiles."""
    values = settings.sampling()
    for name in ("stop", "stop_regex"):
        values[name] = tuple(as_list(values.get(name)))
    values["stop_token_ids"] = tuple(values.get("stop_token_ids") or ())
    values["seed"] = values.pop("sampling_seed", None)
    wanted = only_one([want(kind, kind, values.pop(kind)) for kind in CONSTRAINTS if kind in values])
    return SamplingParams(**values, constraint=wanted.constraint if wanted is not None else None)


def _logprob_options(settings: GenSettings) -> LogprobOptions:
    if not settings.return_logprob:
        return LogprobOptions()
    start = settings.logprob_start_len
    return LogprobOptions(
        output=True, top_n=settings.top_logprobs_num or 0, prompt_start=None if start is None or start < 0 else start
    )


def _follower(on_text: OnText) -> Callable[[Update], None]:
    def on_update(update: Update) -> None:
        if update.record.sample_index == 0 and update.text:
            on_text(update.text)

    return on_update
