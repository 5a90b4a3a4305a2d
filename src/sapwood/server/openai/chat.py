"""`/v1/chat/completions`, whole and streamed.

Turns messages into a call and records into chat answers; runs nothing. Invariant: the role travels in the same chunk as the first
piece, so that the time to the first chunk is the time to the first token; a chunk holds one piece.
"""

from __future__ import annotations

import dataclasses

from fastapi import APIRouter, Request, Response
from msgspec import UNSET, UnsetType

from sapwood.core.sampling import LogprobOptions, TokenLogprobs
from sapwood.errors import InvalidRequest
from sapwood.parsing.pieces import Content
from sapwood.server.answers import Answers, Reading
from sapwood.server.backend import Vocabulary
from sapwood.server.body import Decoder
from sapwood.server.context import ServerContext
from sapwood.server.failures import raise_failure
from sapwood.server.openai.call import Call, open_call, read_call
from sapwood.server.openai.chunks import chunk_events
from sapwood.server.openai.prompt import chat_options, chat_prompt, check_messages
from sapwood.server.openai.replies import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatLogprob,
    ChatLogprobs,
    Delta,
    TopLogprob,
    Usage,
    assistant_message,
    delta_of,
    finish_reason,
    matched_stop,
    usage_of,
)
from sapwood.server.openai.schema import ChatFields
from sapwood.server.record import Update
from sapwood.server.sse import EventStream, collect, event, json_response
from sapwood.server.stream import Stream
from sapwood.server.tooling import openai_tool_use

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
        tool_use = openai_tool_use(fields.tools, fields.tool_choice, fields.parallel_tool_calls)
        prompt = await chat_prompt(context, fields.messages, chat_options(fields, tool_use.definitions))
        reading = Reading(
            context.model.output,
            tool_use,
            prompt.end,
            separates=fields.separate_reasoning is not False,
            streams_reasoning=fields.stream_reasoning is not False,
            wanted=call.params.constraint,
        )
        call = dataclasses.replace(call, params=await context.shape(reading, call.params))
        stream = await open_call(context, call, [prompt.token_ids], options, None, NAMES)
        answers = Answers(reading, vocabulary)
        if call.fields.stream:
            return EventStream(stream, chunk_events(stream, ChatWriter(call, stream, answers, context.model.name, vocabulary)))
        await collect(stream, request)
        return json_response(_whole(call, stream, answers, context.model.name, vocabulary))

    router.add_api_route("/v1/chat/completions", chat, methods=["POST"], summary="Answer a chat")
    return router


class ChatWriter:
    """Makes the chunks of one chat stream."""

    def __init__(self, call: Call, stream: Stream, answers: Answers, model: str, vocabulary: Vocabulary) -> None:
        self._call = call
        self._wants_usage = call.wants_usage
        self._stream = stream
        self._answers = answers
        self._model = model
        self._vocabulary = vocabulary
        self._begun: set[int] = set()
        self._held: dict[int, list[TokenLogprobs]] = {}

    def write(self, update: Update) -> list[bytes]:
        """Pieces as they come (log-probabilities of tokens without one wait for it), then the finish in a chunk of its own."""
        record = update.record
        held = list[TokenLogprobs]()
        if record.prompt.logprobs.output:
            held = self._held.setdefault(record.index, [])
            held += update.logprobs
        events = []
        pieces = self._answers.take(update)
        if not pieces and update.finish is not None and (held or record.index not in self._begun):
            pieces = [Content("")]
        for piece in pieces:
            role: str | UnsetType = UNSET if record.index in self._begun else "assistant"
            self._begun.add(record.index)
            logprobs = chat_logprobs(held, self._vocabulary) if held else None
            held.clear()
            events.append(self._chunk(ChatChunkChoice(index=record.index, delta=delta_of(piece, role), logprobs=logprobs)))
        if update.finish is not None:
            reason = finish_reason(record, self._answers.has_called(record))
            choice = ChatChunkChoice(index=record.index, delta=Delta(), finish_reason=reason, matched_stop=matched_stop(record))
            events.append(self._chunk(choice))
        return events

    def last(self) -> list[bytes]:
        """The usage, if it was asked for."""
        return [self._event([], self._usage())] if self._wants_usage else []

    def _usage(self) -> Usage:
        return usage_of(self._stream.records, self._answers)

    def _chunk(self, choice: ChatChunkChoice) -> bytes:
        if not self._wants_usage:
            return self._event([choice], UNSET)
        return self._event([choice], self._usage() if self._call.wants_running_usage else None)

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


def _whole(call: Call, stream: Stream, answers: Answers, model: str, vocabulary: Vocabulary) -> ChatCompletion:
    choices = []
    for record in stream.records:
        raise_failure(record.finish)
        choices.append(
            ChatChoice(
                index=record.index,
                message=assistant_message(answers.whole(record)),
                logprobs=chat_logprobs(record.logprobs, vocabulary) if record.prompt.logprobs.output else None,
                finish_reason=finish_reason(record, answers.has_called(record)),
                matched_stop=matched_stop(record),
            )
        )
    usage = usage_of(stream.records, answers)
    return ChatCompletion(id=call.id, created=call.created, model=model, choices=choices, usage=usage)
