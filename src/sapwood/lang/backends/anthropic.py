"""Anthropic's messages, or a server that speaks them, as a backend.

Owns the shape of what is asked; the official client does the rest (the extra `lang`). Invariant: what the API cannot do is
refused with what to do instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sapwood.errors import InvalidRequest
from sapwood.lang.backends.base import Generation, Job, OnText
from sapwood.lang.backends.http import optional, raise_for
from sapwood.lang.backends.workers import Cancellation, Workers
from sapwood.lang.choices import ChoiceScores
from sapwood.lang.roles import RoleMarks, named_marks
from sapwood.lang.settings import GenSettings
from sapwood.lang.transcript import Prompt

NUM_CALLS = 16
_SAMPLING = ("temperature", "top_p", "top_k")


class Anthropic:
    """`model_name` at Anthropic or, with `base_url`, elsewhere; further options are the official client's."""

    takes_messages = True
    num_programs = NUM_CALLS

    def __init__(self, model_name: str, **client_options: Any) -> None:
        self.model_name = model_name
        self.marks: RoleMarks = named_marks("chatml")
        self._library = optional("anthropic")
        self._client = self._library.Anthropic(**client_options)
        self._workers = Workers(NUM_CALLS)

    def generate(self, prompt: Prompt, settings: GenSettings, on_text: OnText | None) -> Job[list[Generation]]:
        """See `Backend`."""
        body = {"model": self.model_name, **_prompt(prompt), **_body(settings)}
        return self._workers.run(lambda cancellation: self._generate(body, settings.n or 1, on_text, cancellation))

    def score(self, prompt: Prompt, choices: Sequence[str], unconditional: bool) -> Job[ChoiceScores]:
        """Refused: the API tells no log-probabilities."""
        raise InvalidRequest("this API tells no log-probabilities, as select needs; let gen write the choice", param="choices")

    def cache_prefix(self, prompt: Prompt) -> None:
        """Nothing: the server keeps its cache to itself."""

    def flush_cache(self) -> bool:
        """There is none to empty."""
        return False

    def get_server_info(self) -> dict[str, Any]:
        """The model."""
        return {"model": self.model_name}

    def _generate(self, body: dict[str, Any], count: int, on_text: OnText | None, cancellation: Cancellation) -> list[Generation]:
        samples = [self._one(body, on_text, cancellation)]
        return samples + [self._one(body, None, cancellation) for _ in range(count - 1)]

    def _one(self, body: dict[str, Any], on_text: OnText | None, cancellation: Cancellation) -> Generation:
        try:
            with self._client.messages.stream(**body) as stream:
                for text in stream.text_stream:
                    cancellation.check()
                    if on_text is not None:
                        on_text(text)
                message = stream.get_final_message()
        except self._library.APIStatusError as error:
            raise_for(error.status_code, error.response.text)
            raise
        except self._library.APIConnectionError as error:
            raise_for(503, str(error))
            raise
        text = "".join(block.text for block in message.content if block.type == "text")
        reason = "length" if message.stop_reason == "max_tokens" else "stop"
        usage = {"prompt_tokens": message.usage.input_tokens, "completion_tokens": message.usage.output_tokens}
        return Generation(text, meta={"finish_reason": {"type": reason, "matched": message.stop_sequence}, **usage})


def _prompt(prompt: Prompt) -> dict[str, Any]:
    """System messages apart, an assistant's message that has begun as the last one."""
    if prompt.role not in (None, "assistant") or (prompt.role is None and prompt.partial.strip()):
        raise InvalidRequest("gen belongs into a message of the assistant here", param="role")
    system = "\n\n".join(message["content"] for message in prompt.messages if message["role"] == "system")
    messages = [dict(message) for message in prompt.messages if message["role"] != "system"]
    if prompt.partial.strip():
        messages.append({"role": "assistant", "content": prompt.partial.rstrip()})
    return {"messages": messages, **({"system": system} if system else {})}


def _body(settings: GenSettings) -> dict[str, Any]:
    if settings.is_constrained:
        raise InvalidRequest("this API takes no grammar; ask for the format in the prompt", param="regex")
    values = settings.given()
    body: dict[str, Any] = {"max_tokens": values["max_new_tokens"]}
    if settings.stops:
        body["stop_sequences"] = list(settings.stops)
    sampling = {name: values[name] for name in _SAMPLING if name in values}
    return {**body, "extra_body": sampling} if sampling else body  # some clients know these for some models only
