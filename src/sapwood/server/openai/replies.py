"""The answers of the OpenAI routes, as they go over the wire.

Types and JSON names only. Invariant: a field that OpenAI's clients require is always present; null, never an empty text, where
there is nothing.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from sapwood.parsing.pieces import Answer, CallArguments, CallStart, Content, Piece, Reasoning
from sapwood.server.answers import Answers
from sapwood.server.record import RequestRecord


class PromptDetails(msgspec.Struct, frozen=True):
    """How much of the prompt needed no computing."""

    cached_tokens: int


class CompletionDetails(msgspec.Struct, frozen=True):
    """How much of the completion is reasoning."""

    reasoning_tokens: int = 0


class Usage(msgspec.Struct, frozen=True):
    """Token counts of a call; a prompt is counted once however many samples were made of it."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails = CompletionDetails()


def usage_of(records: list[RequestRecord], answers: Answers | None = None) -> Usage:
    """The usage so far; `answers` know what of it is reasoning."""
    firsts = [record for record in records if record.sample_index == 0]
    prompt = sum(record.num_prompt for record in firsts)
    completion = sum(len(record.token_ids) for record in records)
    reasoning = sum(map(answers.num_reasoning_tokens, records)) if answers is not None else 0
    cached = sum(record.num_cached for record in firsts)
    return Usage(prompt, completion, prompt + completion, PromptDetails(cached), CompletionDetails(reasoning))


def finish_reason(record: RequestRecord, has_called: bool = False) -> str | None:
    """OpenAI's word for how a request ended: stop, length or tool_calls (errors never get here); None while it runs."""
    if record.finish is None:
        return None
    return "tool_calls" if has_called and record.finish.kind == "stop" else record.finish.kind


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


class CalledFunction(msgspec.Struct, frozen=True):
    """What is called, with its arguments as JSON text."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a tool."""

    id: str
    type: str = "function"
    function: CalledFunction


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. The content is null when there is something else in its place."""

    role: str = "assistant"
    content: str | None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


def assistant_message(answer: Answer) -> AssistantMessage:
    """The answer in OpenAI's shape."""
    calls = [ToolCall(id=call.id, function=CalledFunction(call.name, call.arguments)) for call in answer.calls]
    return AssistantMessage(
        content=answer.content if answer.content or not (calls or answer.reasoning) else None,
        reasoning_content=answer.reasoning or UNSET,
        tool_calls=calls or UNSET,
    )


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


class FunctionDelta(msgspec.Struct, frozen=True):
    """What is new in a call: the name comes first, once."""

    name: str | UnsetType = UNSET
    arguments: str = ""


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What is new in the call of that index; id and type come with the name."""

    index: int
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionDelta


class Delta(msgspec.Struct, frozen=True):
    """What is new in a message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


def delta_of(piece: Piece, role: str | UnsetType) -> Delta:
    """A piece in OpenAI's shape."""
    match piece:
        case Content(text):
            return Delta(role, text)
        case Reasoning(text):
            return Delta(role, UNSET, text)
        case CallStart(index, id, name):
            call = ToolCallDelta(index=index, id=id, type="function", function=FunctionDelta(name))
        case CallArguments(index, text):
            call = ToolCallDelta(index=index, function=FunctionDelta(UNSET, text))
    return Delta(role, tool_calls=[call])


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
