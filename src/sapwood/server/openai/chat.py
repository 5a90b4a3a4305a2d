"""`/v1/chat/completions`, whole and streamed.

Turns messages into a call and records into chat answers; runs nothing. Invariant: the role travels in the same chunk as the first
text, so that the time to the first chunk is the time to the first token.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from msgspec import UNSET, UnsetType

from sapwood.core.sampling import LogprobOptions, TokenLogprobs
from sapwood.errors import InvalidRequest
from sapwood.server.backend import Vocabulary
from sapwood.server.body import Decoder
from sapwood.server.context import ServerContext
from sapwood.server.failures import raise_failure
from sapwood.server.openai.call import Call, open_call, read_call
from sapwood.server.openai.chunks import chunk_events
from sapwood.server.openai.prompt import chat_options, chat_prompt_ids, check_messages
from sapwood.server.openai.replies import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatLogprob,
    ChatLogprobs,
    Delta,
    TopLogprob,
    Usage,
    finish_reason,
    matched_stop,
    usage_of,
)
from sapwood.server.openai.schema import ChatFields
from sapwood.server.record import Update
from sapwood.server.sse import EventStream, collect, event, json_response
from sapwood.server.stream import Stream

_fields: Decoder[ChatFields] = Decoder(ChatFields)
NAMES = {"prompt": "messages"}


def chat_routes(context: ServerContext) -> APIRouter:
    """The router of this family."""
    router = APIRouter(tags=["openai"])
    vocabulary = context.model.vocabulary

    async def chat(request: Request) -> Response:
        call, data = await read_call(context, request, "chatcmpl-")
        fields = _fields.decode(data)
        options = _logprob_options(fields)
        check_messages(context, fields.messages, call.params.n)
        token_ids = await chat_prompt_ids(context, fields.messages, chat_options(fields))
        stream = open_call(context, call, [token_ids], options, None, NAMES)
        if call.fields.stream:
            return EventStream(stream, chunk_events(stream, ChatWriter(call, stream, context.model.name, vocabulary)))
        await collect(stream, request)
        return json_response(_whole(call, stream, context.model.name, vocabulary))

    router.add_api_route("/v1/chat/completions", chat, methods=["POST"], summary="Answer a chat")
    return router


class ChatWriter:
    """Makes the chunks of one chat stream."""

    def __init__(self, call: Call, stream: Stream, model: str, vocabulary: Vocabulary) -> None:
        self._call = call
        self._stream = stream
        self._model = model
        self._vocabulary = vocabulary
        self._begun: set[int] = set()
        self._held: dict[int, list[TokenLogprobs]] = {}

    def write(self, update: Update) -> list[bytes]:
        """Text as it comes (log-probabilities of tokens without text wait for it), then the finish in a chunk of its own."""
        record = update.record
        held = self._held.setdefault(record.index, []) if record.prompt.logprobs.output else []
        held += update.logprobs
        events = []
        if update.text or (update.finish is not None and (held or record.index not in self._begun)):
            role: str | UnsetType = UNSET if record.index in self._begun else "assistant"
            self._begun.add(record.index)
            logprobs = chat_logprobs(held, self._vocabulary) if held else None
            held.clear()
            events.append(self._chunk(ChatChunkChoice(index=record.index, delta=Delta(role, update.text), logprobs=logprobs)))
        if update.finish is not None:
            choice = ChatChunkChoice(
                index=record.index, delta=Delta(), finish_reason=finish_reason(record), matched_stop=matched_stop(record)
            )
            events.append(self._chunk(choice))
        return events

    def last(self) -> list[bytes]:
        """The usage, if it was asked for."""
        return [self._event([], usage_of(self._stream.records))] if self._call.wants_usage else []

    def _chunk(self, choice: ChatChunkChoice) -> bytes:
        if not self._call.wants_usage:
            return self._event([choice], UNSET)
        return self._event([choice], usage_of(self._stream.records) if self._call.wants_running_usage else None)

    def _event(self, choices: list[ChatChunkChoice], usage: Usage | None | UnsetType) -> bytes:
        return event(ChatChunk(id=self._call.id, created=self._call.created, model=self._model, choices=choices, usage=usage))


def chat_logprobs(entries: list[TokenLogprobs], vocabulary: Vocabulary) -> ChatLogprobs:
    """Log-probabilities in the chat routes' shape."""
    return ChatLogprobs([_chat_logprob(entry, vocabulary) for entry in entries])


def _chat_logprob(entry: TokenLogprobs, vocabulary: Vocabulary) -> ChatLogprob:
    def candidate(token_id: int, logprob: float) -> TopLogprob:
        return TopLogprob(vocabulary.token_text(token_id), logprob, list(vocabulary.token_bytes(token_id)))

    top = [candidate(token_id, logprob) for token_id, logprob in zip(entry.top_ids, entry.top_logprobs, strict=True)]
    chosen = candidate(entry.token_id, entry.logprob if entry.logprob is not None else 0.0)
    return ChatLogprob(chosen.token, chosen.logprob, chosen.bytes, top)


def _logprob_options(fields: ChatFields) -> LogprobOptions:
    if fields.top_logprobs and not fields.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
    return LogprobOptions(output=True, top_n=fields.top_logprobs or 0) if fields.logprobs else LogprobOptions()


def _whole(call: Call, stream: Stream, model: str, vocabulary: Vocabulary) -> ChatCompletion:
    choices = []
    for record in stream.records:
        raise_failure(record.finish)
        choices.append(
            ChatChoice(
                index=record.index,
                message=AssistantMessage(record.text),
                logprobs=chat_logprobs(record.logprobs, vocabulary) if record.prompt.logprobs.output else None,
                finish_reason=finish_reason(record),
                matched_stop=matched_stop(record),
            )
        )
    return ChatCompletion(id=call.id, created=call.created, model=model, choices=choices, usage=usage_of(stream.records))
