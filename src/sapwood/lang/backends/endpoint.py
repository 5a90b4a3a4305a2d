"""A Sapwood or SGLang server as a backend, through `/generate` and the routes around it.

Owns the way from prompts to bodies and from answers to samples; the server runs them. Invariant: what a program says inside a
message never becomes a control token: where it looks like one, ids are sent instead of text.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

from sapwood.errors import Aborted, EngineFailed, InvalidRequest, SapwoodError
from sapwood.lang.backends.base import Generation, Job, OnText
from sapwood.lang.backends.healing import Healed, is_healable
from sapwood.lang.backends.http import JsonClient
from sapwood.lang.backends.remote_healing import LOOKS_LIKE_CONTROL, border_question, heal_remotely
from sapwood.lang.backends.scoring import ChoicePlan, plan_choices
from sapwood.lang.backends.workers import Cancellation, Workers
from sapwood.lang.choices import ChoiceScores, Triple
from sapwood.lang.roles import RoleMarks, named_marks, read_marks
from sapwood.lang.settings import GenSettings
from sapwood.lang.transcript import Prompt, Run

NUM_CALLS = 64
TAIL_CHARS = 200
_BORDER = re.compile(r"(?<=\S) (?=\S)")


class RuntimeEndpoint:
    """The server at `base_url`. `chat_template_name` replaces the marks of the server's own chat template. With `token_healing` a
    generation on a Sapwood server may finish the token in which the program's text ends."""

    takes_messages = False
    num_programs = NUM_CALLS

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        verify: Any = None,
        chat_template_name: str | None = None,
        *,
        token_healing: bool = True,
    ) -> None:
        self.base_url = base_url
        self._heals = token_healing
        self._name = chat_template_name
        self._workers = Workers(NUM_CALLS)
        self._client = JsonClient(base_url, api_key, verify, NUM_CALLS + 8)

    @cached_property
    def marks(self) -> RoleMarks:
        """Read off the server's template, which it renders itself."""
        if self._name is not None:
            return named_marks(self._name)
        try:
            return read_marks(self._render)
        except InvalidRequest:  # the model has none
            return named_marks("default")

    def generate(self, prompt: Prompt, settings: GenSettings, on_text: OnText | None) -> Job[list[Generation]]:
        """See `Backend`."""
        return self._workers.run(lambda cancellation: self._generate(prompt, settings, on_text, cancellation))

    def score(self, prompt: Prompt, choices: Sequence[str], unconditional: bool) -> Job[ChoiceScores]:
        """See `Backend`. The text is sent once, to be tokenised; all choices are one request, the ids of the text once in it."""
        return self._workers.run(lambda cancellation: self._score(prompt, choices, unconditional))

    def cache_prefix(self, prompt: Prompt) -> None:
        """See `Backend`."""
        self._client.post("/generate", {**self._input(prompt), "sampling_params": {"max_new_tokens": 0}})

    def flush_cache(self) -> bool:
        """See `Backend`."""
        self._client.post("/flush_cache", {})
        return True

    def get_server_info(self) -> dict[str, Any]:
        """The server's `/server_info`."""
        return dict(self._client.get("/server_info"))

    def ids_of_text(self, text: str) -> list[int]:
        """The server's ids of a text that is part of a prompt."""
        return self._tokenize([text], True, is_first=False)[0]

    def _generate(
        self, prompt: Prompt, settings: GenSettings, on_text: OnText | None, cancellation: Cancellation
    ) -> list[Generation]:
        rid = uuid.uuid4().hex
        cancellation.on_cancel(lambda: self._abort(rid))
        healed = self._heal(prompt, settings, rid)
        if healed is None:
            return self._ask({**self._input(prompt), "rid": rid}, settings, on_text)
        cancellation.check()
        body = {"input_ids": healed.ids, "rid": rid}
        if not healed.text:
            return self._ask(body, settings, on_text)
        if on_text is not None:
            on_text(healed.text)
        samples = self._ask(body, GenSettings(max_new_tokens=(settings.max_new_tokens or 2) - 1).over(settings), on_text)
        return [Generation(healed.text + each.text, meta={**each.meta, "healed": healed.text}) for each in samples]

    def _heal(self, prompt: Prompt, settings: GenSettings, rid: str) -> Healed | None:
        """The prompt with the token at its border chosen anew; None where it stays as it is."""
        if not (self._heals and is_healable(prompt, settings) and self._is_sapwood):
            return None
        ids = self._ids(prompt.runs)
        if len(ids) < 2:
            return None
        answer = self._client.post("/generate", {**border_question(ids), "rid": f"{rid}-border"})
        return heal_remotely(prompt, ids, settings, answer)

    def _ask(self, body: Mapping[str, Any], settings: GenSettings, on_text: OnText | None) -> list[Generation]:
        body = {**body, "sampling_params": settings.sampling(), **settings.reporting()}
        if on_text is not None:
            return self._stream(body, on_text)
        answer = self._client.post("/generate", body)
        return [_generation(sample) for sample in (answer if isinstance(answer, list) else [answer])]

    def _stream(self, body: Mapping[str, Any], on_text: OnText) -> list[Generation]:
        texts, samples = dict[int, str](), dict[int, Any]()
        for event in self._client.events("/generate", {**body, "stream": True}):
            index = event.get("index", 0)
            known = texts.get(index, "")
            texts[index] = known + event["text"] if self._is_incremental else event["text"]
            samples[index] = event
            if index == 0 and len(texts[0]) > len(known):
                on_text(texts[0][len(known) :])
        return [_generation({**samples[index], "text": texts[index]}) for index in sorted(samples)]

    def _score(self, prompt: Prompt, choices: Sequence[str], unconditional: bool) -> ChoiceScores:
        plan = self._plan(prompt, choices)
        prefix = plan.prompts[0][: plan.start] if self._is_sapwood else []
        tokens = self._prompt_logprobs(prefix, [ids[len(prefix) :] for ids in plan.prompts], plan.start - 1)
        alone = self._prompt_logprobs([], plan.alone, 0) if unconditional else []
        return ChoiceScores(tokens, [[entry[0] for entry in entries] for entries in alone])

    def _prompt_logprobs(self, prefix: list[int], prompts: list[list[int]], start: int) -> list[list[Triple]]:
        """The entries of each prompt after position `start`; `prefix` stands before all."""
        body = {
            "input_ids": prompts,
            "sampling_params": {"max_new_tokens": 0},
            "return_logprob": True,
            "logprob_start_len": start,
            "return_text_in_logprobs": True,
        }
        answers = self._client.post("/generate", {**body, "prefix_ids": prefix} if prefix else body)
        return [_logprobs(answer)[1:] for answer in answers]

    def _plan(self, prompt: Prompt, choices: Sequence[str]) -> ChoicePlan:
        """The text is cut before its last words, so that only those are tokenised once for each choice."""
        runs, is_special = prompt.merged(), prompt.role is None
        last = runs.pop().text if runs and runs[-1].is_special == is_special else ""
        borders = [match.start() for match in _BORDER.finditer(last, max(0, len(last) - TAIL_CHARS))]
        border = borders[-1] if borders else 0
        head = self._ids([*runs, Run(last[:border], is_special)])
        tail, *tails = self._tokenize([last[border:] + choice for choice in ("", *choices)], is_special, is_first=not head)
        return plan_choices(head, tail, tails, self._begin_id)

    def _input(self, prompt: Prompt) -> dict[str, Any]:
        """The prompt's field of a body."""
        if any(not run.is_special and LOOKS_LIKE_CONTROL.search(run.text) for run in prompt.runs):
            return {"input_ids": self._ids(prompt.runs)}
        return {"text": prompt.text}

    def _ids(self, runs: Sequence[Run]) -> list[int]:
        """The ids of runs, each kind tokenised by itself, as one where nothing could be taken for a control token."""
        if not any(not run.is_special and LOOKS_LIKE_CONTROL.search(run.text) for run in runs):
            text = "".join(run.text for run in runs)
            return self._tokenize([text], True, is_first=True)[0] if text else []
        ids: list[int] = []
        for is_special, group in groupby((run for run in runs if run.text), key=lambda run: run.is_special):
            ids += self._tokenize(["".join(run.text for run in group)], is_special, is_first=not ids)[0]
        return ids

    def _tokenize(self, texts: list[str], is_special: bool, *, is_first: bool) -> list[list[int]]:
        body = {"prompt": texts, "add_special_tokens": is_first, "parse_special": is_special}
        tokens: list[list[int]] = self._client.post("/tokenize", body)["tokens"]
        return tokens

    def _render(self, messages: Sequence[Mapping[str, str]], is_asked: bool) -> str:
        tokens = self._client.post("/tokenize", {"messages": list(messages), "add_generation_prompt": is_asked})["tokens"]
        answer = self._client.post("/detokenize", {"tokens": tokens, "skip_special_tokens": False})
        return str(answer["text"])

    @cached_property
    def _is_sapwood(self) -> bool:
        """Whether the server has what only ours has."""
        return self.get_server_info().get("engine") == "sapwood"

    @cached_property
    def _is_incremental(self) -> bool:
        """Whether the server's streams bring only what is new."""
        return bool(self.get_server_info().get("incremental_streaming_output"))

    @cached_property
    def _begin_id(self) -> int | None:
        """What stands before a text that has nothing before it; None where the server does not tell."""
        try:
            facts = self._client.get("/tokenizer_info")
        except SapwoodError:
            return None
        text = facts.get("bos_token") or facts.get("eos_token") or ""
        ids = self._tokenize([text], True, is_first=False)[0] if text else []
        return ids[0] if len(ids) == 1 else None

    def _abort(self, rid: str) -> None:
        with contextlib.suppress(SapwoodError):  # the server is gone, and the request with it
            self._client.post("/abort_request", {"rid": rid})


def _generation(answer: Mapping[str, Any]) -> Generation:
    meta = dict(answer["meta_info"])
    reason = meta.get("finish_reason") or {}
    if reason.get("type") == "abort":
        raise Aborted(str(reason.get("message") or "the server ended the request"))
    return Generation(str(answer["text"]), meta=meta)


def _logprobs(answer: Mapping[str, Any]) -> list[Triple]:
    entries = answer["meta_info"].get("input_token_logprobs")
    if not entries:
        raise EngineFailed("the server reports no log-probabilities of a prompt; select needs them")
    return [(logprob, token_id, text) for logprob, token_id, text in entries]
