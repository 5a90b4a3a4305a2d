"""Any server that speaks OpenAI's completions or chat completions, as a backend.

Owns the two ways of asking; the official client does the rest (the extra `lang`). Invariant: what such a server cannot do is
refused with what to do instead, never done in another way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sapwood.errors import InvalidRequest
from sapwood.lang.backends.base import Generation, Job, OnText
from sapwood.lang.backends.http import optional, raise_for
from sapwood.lang.backends.workers import Cancellation, Workers
from sapwood.lang.choices import ChoiceScores, Triple
from sapwood.lang.roles import RoleMarks, named_marks
from sapwood.lang.settings import GenSettings
from sapwood.lang.transcript import Prompt

NUM_CALLS = 32
INSTRUCT_MODELS = ("gpt-3.5-turbo-instruct",)
_NAMES = {"max_new_tokens": "max_tokens", "sampling_seed": "seed", "n": "n", "stop": "stop", "temperature": "temperature"} | {
    name: name for name in ("top_p", "frequency_penalty", "presence_penalty")
}
_EXTRA = {"min_new_tokens": "min_tokens"}
"""Settings that OpenAI does not have go into the body as they are, for servers that do."""


class OpenAI:
    """`model_name` at OpenAI or, with `base_url`, elsewhere; further options are the official client's.

    `continues_messages`: the server goes on with an assistant's message that has begun (vLLM, SGLang and Sapwood do).
    """

    num_programs = NUM_CALLS

    def __init__(
        self,
        model_name: str,
        is_chat_model: bool | None = None,
        chat_template_name: str = "chatml",
        *,
        continues_messages: bool = False,
        **client_options: Any,
    ) -> None:
        self.model_name = model_name
        self.takes_messages = model_name not in INSTRUCT_MODELS if is_chat_model is None else is_chat_model
        self.marks: RoleMarks = named_marks(chat_template_name)
        self._continues = continues_messages
        self._library = optional("openai")
        self._client = self._library.OpenAI(**client_options)
        self._workers = Workers(NUM_CALLS)

    def generate(self, prompt: Prompt, settings: GenSettings, on_text: OnText | None) -> Job[list[Generation]]:
        """See `Backend`."""
        body = {"model": self.model_name, **self._prompt(prompt), **_body(settings)}
        create = self._client.chat.completions.create if self.takes_messages else self._client.completions.create
        return self._workers.run(lambda cancellation: self._generate(create, body, on_text, cancellation))

    def score(self, prompt: Prompt, choices: Sequence[str], unconditional: bool) -> Job[ChoiceScores]:
        """See `Backend`; needs a completions route with `echo` and `logprobs`."""
        if self.takes_messages:
            raise InvalidRequest(
                "a chat model's choices have no log-probabilities; use a model with completions", param="choices"
            )
        if unconditional:
            raise InvalidRequest(
                "choices without the text cannot be scored here; take another choices_method", param="choices_method"
            )
        return self._workers.run(lambda cancellation: self._score(prompt.text, choices))

    def cache_prefix(self, prompt: Prompt) -> None:
        """Nothing: such a server keeps its cache to itself."""

    def flush_cache(self) -> bool:
        """There is none to empty."""
        return False

    def get_server_info(self) -> dict[str, Any]:
        """The models."""
        return {"models": [model.id for model in self._client.models.list().data]}

    def _prompt(self, prompt: Prompt) -> dict[str, Any]:
        if not self.takes_messages:
            return {"prompt": prompt.text}
        messages = [dict(message) for message in prompt.messages]
        if prompt.role not in (None, "assistant"):
            raise InvalidRequest(f"a chat model writes messages of the assistant, not of {prompt.role}", param="role")
        if not prompt.partial.strip():
            return {"messages": messages}
        if prompt.role is None or not self._continues:
            raise InvalidRequest(
                "a chat model answers whole messages: begin the assistant's message with gen, give num_api_spec_tokens, "
                "or say continues_messages=True if the server can go on with a message",
                param="messages",
            )
        extra = {"continue_final_message": True, "add_generation_prompt": False}
        return {"messages": [*messages, {"role": "assistant", "content": prompt.partial}], "extra_body": extra}

    def _generate(
        self, create: Any, body: Mapping[str, Any], on_text: OnText | None, cancellation: Cancellation
    ) -> list[Generation]:
        with ClientErrors(self._library):
            if on_text is None:
                answer = create(**body)
                return [_generation(choice, answer.usage) for choice in answer.choices]
            texts, reasons = dict[int, str](), dict[int, str | None]()
            with create(**body, stream=True) as chunks:
                for chunk in chunks:
                    cancellation.check()
                    for choice in chunk.choices:
                        text = _text_of(choice)
                        texts[choice.index] = texts.get(choice.index, "") + text
                        reasons[choice.index] = choice.finish_reason or reasons.get(choice.index)
                        if text and choice.index == 0:
                            on_text(text)
        return [Generation(texts[index], meta=_meta(reasons[index], None)) for index in sorted(texts)]

    def _score(self, text: str, choices: Sequence[str]) -> ChoiceScores:
        body = {"model": self.model_name, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
        with ClientErrors(self._library):
            answer = self._client.completions.create(prompt=[text + choice for choice in choices], **body)
        found = [choice.logprobs for choice in sorted(answer.choices, key=lambda choice: choice.index)]
        if any(logprobs is None or not logprobs.text_offset for logprobs in found):
            raise InvalidRequest("the server reports no log-probabilities of a prompt (echo); select needs them", param="choices")
        ends = [len(text + choice) for choice in choices]
        start = min(_first_beyond(logprobs, len(text)) for logprobs in found)
        return ChoiceScores([_tokens(logprobs, start, end) for logprobs, end in zip(found, ends, strict=True)])


class ClientErrors:
    """Errors of the client library as ours."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, self._library.APIStatusError):
            raise_for(error.status_code, error.response.text)
        if isinstance(error, self._library.APIConnectionError):
            raise_for(503, str(error))


def _body(settings: GenSettings) -> dict[str, Any]:
    values = settings.sampling()
    body: dict[str, Any] = {_NAMES[name]: value for name, value in values.items() if name in _NAMES}
    extra = {_EXTRA.get(name, name): value for name, value in values.items() if name not in _NAMES}
    return {**body, "extra_body": extra} if extra else body


def _text_of(choice: Any) -> str:
    if hasattr(choice, "text"):
        return choice.text or ""
    part = getattr(choice, "delta", None) or choice.message
    return part.content or ""


def _meta(reason: str | None, usage: Any) -> dict[str, Any]:
    counts = {} if usage is None else {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
    return {"finish_reason": {"type": reason}, **counts}


def _generation(choice: Any, usage: Any) -> Generation:
    return Generation(_text_of(choice), meta=_meta(choice.finish_reason, usage))


def _first_beyond(logprobs: Any, position: int) -> int:
    """The first token that reaches beyond a character of the text."""
    ends = [offset + len(token) for offset, token in zip(logprobs.text_offset, logprobs.tokens, strict=True)]
    return next(index for index, end in enumerate(ends) if end > position)


def _tokens(logprobs: Any, start: int, end: int) -> list[Triple]:
    rows = zip(logprobs.token_logprobs, logprobs.tokens, logprobs.text_offset, strict=True)
    return [(logprob, -1, token) for logprob, token, offset in list(rows)[start:] if offset < end]
