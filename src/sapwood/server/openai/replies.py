"""The answers of the OpenAI routes, as they go over the wire.

Types and JSON names only. Invariant: a field that OpenAI's clients require is always present; null, never an empty text, where
there is nothing.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from sapwood.server.record import RequestRecord


class PromptDetails(msgspec.Struct, frozen=True):
    """How much of the prompt needed no computing."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Token counts of a call; a prompt is counted once however many samples were made of it."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


def usage_of(records: list[RequestRecord]) -> Usage:
    """The usage so far."""
    firsts = [record for record in records if record.sample_index == 0]
    prompt = sum(record.num_prompt for record in firsts)
    completion = sum(len(record.token_ids) for record in records)
    return Usage(prompt, completion, prompt + completion, PromptDetails(sum(record.num_cached for record in firsts)))


def finish_reason(record: RequestRecord) -> str | None:
    """OpenAI's word for how a request ended: stop or length (errors never get here); None while it runs."""
    return record.finish.kind if record.finish is not None else None


def matched_stop(record: RequestRecord) -> int | str | None:
    """What ended the request: the stop id or text."""
    return record.finish.matched if record.finish is not None else None


# ------------------------------------------------------------------------------------------------------- chat
class TopLogprob(msgspec.Struct, frozen=True):
    """One candidate at a position."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(msgspec.Struct, frozen=True):
    """The chosen token at a position, and the best candidates."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """`logprobs` of a chat choice."""

    content: list[ChatLogprob]


class AssistantMessage(msgspec.Struct, frozen=True):
    """The answer."""

    content: str
    role: str = "assistant"


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One sample, whole."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    matched_stop: int | str | None


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer to a chat call."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class Delta(msgspec.Struct, frozen=True):
    """What is new in a message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What is new in one sample."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    matched_stop: int | str | None | UnsetType = UNSET


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a chat stream."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None | UnsetType = UNSET


# ------------------------------------------------------------------------------------------------- completions
class CompletionLogprobs(msgspec.Struct, frozen=True):
    """`logprobs` of a completion choice: parallel lists over tokens. `text_offset` counts characters of the choice's text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One sample, whole or what is new in it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    matched_stop: int | str | None | UnsetType = UNSET


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a completions call, whole or one event of a stream."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None | UnsetType = UNSET


# ------------------------------------------------------------------------------------------------------ models
class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can be asked for."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "sapwood"
    root: str
    max_model_len: int


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """All of them."""

    object: str = "list"
    data: list[ModelCard]
