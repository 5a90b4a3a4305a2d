"""`/v1/messages`, whole and streamed, and `/v1/messages/count_tokens`.

Turns a body into the internal request and its record into a message; runs nothing. Invariant: a stream is message_start, blocks
(start, deltas, stop) one after another, message_delta with the stop reason and the counts, message_stop, in this order; one that
fails in between tells the counts, without a stop reason, before the error.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from sapwood.core.sampling import SamplingParams
from sapwood.errors import InvalidRequest, SapwoodError
from sapwood.parsing.partial import partial_object
from sapwood.parsing.pieces import CallArguments, CallStart, Content, Piece, Reasoning
from sapwood.server.answers import Answers, Reading
from sapwood.server.anthropic.prompt import read_prompt
from sapwood.server.anthropic.schema import (
    AnswerBlock,
    AnswerFields,
    AnswerMessage,
    BlockDelta,
    BlockStart,
    BlockStop,
    Event,
    InputDelta,
    MessageDelta,
    MessageStart,
    MessageStop,
    StopDelta,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    TokenCount,
    ToolUseBlock,
    Usage,
)
from sapwood.server.body import Decoder
from sapwood.server.constraints import Wanted, only_one, want
from sapwood.server.context import ServerContext
from sapwood.server.failures import anthropic_error, raise_failure
from sapwood.server.record import RequestRecord, Update
from sapwood.server.requests import ALL_AT_ONCE, GenerateRequest, PromptRequest, all_if_zero, named_as
from sapwood.server.sse import SSE, EventStream, Framing, collect, json_response, named_event
from sapwood.server.stream import Stream

_fields: Decoder[AnswerFields] = Decoder(AnswerFields)
NAMES = {"prompt": "messages", "stop": "stop_sequences", "continue_final_message": "messages"}
FRAMING = Framing(SSE, lambda error: named_event("error", anthropic_error(error)), b"")


def message_routes(context: ServerContext) -> APIRouter:
    """The router of this family."""
    router = APIRouter(tags=["anthropic"])

    async def messages(request: Request) -> Response:
        data = await context.read(request)
        fields = _fields.decode(data)
        with named_as(NAMES):
            asked = await read_prompt(context, data)
            params = await context.constrain(_params(context, fields), _wanted(fields))
            reading = Reading(context.model.output, asked.tool_use, asked.chat.end, wanted=params.constraint)
            prompt = PromptRequest(
                rid=f"msg_{uuid.uuid4().hex}",
                token_ids=asked.chat.token_ids,
                params=await context.shape(reading, params),
                default_max_new_tokens=fields.max_tokens,
                priority=context.settings.default_priority,
            )
            interval = context.settings.stream_interval if fields.stream else ALL_AT_ONCE
            stream = await context.open(GenerateRequest((prompt,), interval))
        answers = Answers(reading, context.model.vocabulary)
        if fields.stream:
            return EventStream(stream, _events(stream, MessageWriter(answers, context.model.name)), FRAMING)
        await collect(stream, request)
        [record] = stream.records
        raise_failure(record.finish)
        return json_response(_message(record, context.model.name, _blocks(answers.take(record.everything())), answers))

    async def count_tokens(request: Request) -> Response:
        asked = await read_prompt(context, await context.read(request))
        return json_response(TokenCount(input_tokens=len(asked.chat.token_ids)))

    router.add_api_route("/v1/messages", messages, methods=["POST"], summary="Answer a chat, for Anthropic's clients")
    router.add_api_route("/v1/messages/count_tokens", count_tokens, methods=["POST"], summary="Count a chat's prompt tokens")
    return router


def _wanted(fields: AnswerFields) -> Wanted | None:
    """The form that the answer shall have."""
    config = fields.output_config
    forms = {"output_config.format": config and config.format, "output_format": fields.output_format}
    return only_one(_form(name, form) for name, form in forms.items() if form)


def _form(name: str, form: dict[str, Any]) -> Wanted | None:
    match form:
        case {"type": "text"}:
            return None
        case {"type": "json_schema", "schema": dict(schema)}:
            return want(f"{name}.schema", "json_schema", schema)
    raise InvalidRequest(f"{name} must have the type json_schema, and a schema", param=name)


def _params(context: ServerContext, fields: AnswerFields) -> SamplingParams:
    """Of these the limit is left out: it gives way to the context's end."""
    given = {"temperature": fields.temperature, "top_p": fields.top_p, "top_k": all_if_zero(fields.top_k)}
    return SamplingParams(
        **{**dict(context.model.sampling_defaults), **{name: value for name, value in given.items() if value is not None}},
        max_new_tokens=None,
        stop=tuple(fields.stop_sequences or ()),
    )


async def _events(stream: Stream, writer: MessageWriter) -> AsyncIterator[bytes]:
    """The encoded events; one write for all news of a moment."""
    async for updates in stream:
        events: list[Event] = []
        try:
            for update in updates:
                raise_failure(update.record.finish)
                events += writer.write(update)
        except SapwoodError:
            if writer.is_begun:
                yield _encoded([*events, *writer.break_off(stream.records[0])])
            raise
        if events:
            yield _encoded(events)


def _encoded(events: list[Event]) -> bytes:
    return b"".join(named_event(event.type, event) for event in events)


class MessageWriter:
    """Makes the events of one stream: of each block its start, its deltas and its stop."""

    def __init__(self, answers: Answers, model: str) -> None:
        self._answers, self._model = answers, model
        self.is_begun = False
        self._num_blocks = 0
        self._open: type[AnswerBlock] | None = None

    def write(self, update: Update) -> list[Event]:
        """The events for news."""
        record, events = update.record, list[Event]()
        pieces = self._answers.take(update)
        if not self.is_begun:
            self.is_begun = True
            events.append(MessageStart(message=_message(record, self._model, [], None)))
        for piece in pieces:
            events += self._piece(piece)
        if update.finish is not None:
            if not self._num_blocks:
                events += self._start(TextBlock(text=""))
            reason, sequence = _stop(record, self._answers)
            delta = StopDelta(stop_reason=reason, stop_sequence=sequence)
            events += (*self._stop(), MessageDelta(delta=delta, usage=_usage(record)), MessageStop())
        return events

    def break_off(self, record: RequestRecord) -> list[Event]:
        """The events for an end without a reason."""
        return [*self._stop(), MessageDelta(delta=StopDelta(stop_reason=None, stop_sequence=None), usage=_usage(record))]

    def _piece(self, piece: Piece) -> list[Event]:
        delta: TextDelta | ThinkingDelta | InputDelta
        started: list[Event] = []
        match piece:
            case CallStart(_, id, name):
                return self._start(ToolUseBlock(id=id, name=name, input={}))
            case CallArguments(_, text):
                delta = InputDelta(partial_json=text)
            case Reasoning(text):
                started = [] if self._open is ThinkingBlock else self._start(ThinkingBlock(thinking=""))
                delta = ThinkingDelta(thinking=text)
            case Content(text):
                started = [] if self._open is TextBlock else self._start(TextBlock(text=""))
                delta = TextDelta(text=text)
        return [*started, BlockDelta(index=self._num_blocks - 1, delta=delta)]

    def _start(self, block: AnswerBlock) -> list[Event]:
        events = self._stop()
        self._open = type(block)
        self._num_blocks += 1
        return [*events, BlockStart(index=self._num_blocks - 1, content_block=block)]

    def _stop(self) -> list[Event]:
        events: list[Event] = [BlockStop(index=self._num_blocks - 1)] if self._open is not None else []
        self._open = None
        return events


def _blocks(pieces: list[Piece]) -> list[AnswerBlock]:
    """The blocks of a whole answer, in the order in which the model wrote them."""
    blocks: list[AnswerBlock] = []
    arguments: dict[int, str] = {}
    for piece in pieces:
        match piece:
            case Content(text):
                blocks.append(TextBlock(text=text))
            case Reasoning(text):
                blocks.append(ThinkingBlock(thinking=text))
            case CallStart(_, id, name):
                blocks.append(ToolUseBlock(id=id, name=name, input={}))
            case CallArguments(_, text):
                arguments[len(blocks) - 1] = text
    for place, text in arguments.items():
        blocks[place] = msgspec.structs.replace(blocks[place], input=partial_object(text))
    return blocks or [TextBlock(text="")]


def _message(record: RequestRecord, model: str, content: list[AnswerBlock], answers: Answers | None) -> AnswerMessage:
    """The message with `content`; without answers it is the beginning of a stream, whose end is told later."""
    reason, sequence = _stop(record, answers) if answers is not None else (None, None)
    return AnswerMessage(
        id=record.rid, model=model, content=content, stop_reason=reason, stop_sequence=sequence, usage=_usage(record)
    )


def _stop(record: RequestRecord, answers: Answers) -> tuple[str | None, str | None]:
    """The dialect's words for the end, and the stop sequence that made it."""
    if record.finish is None:
        return None, None
    if record.finish.kind == "length":
        wanted = record.prompt.default_max_new_tokens or 0
        return "max_tokens" if len(record.token_ids) >= wanted else "model_context_window_exceeded", None
    if answers.has_called(record):
        return "tool_use", None
    matched = record.finish.matched
    return ("stop_sequence", matched) if isinstance(matched, str) else ("end_turn", None)


def _usage(record: RequestRecord) -> Usage:
    return Usage(
        input_tokens=record.num_prompt - record.num_cached,
        cache_read_input_tokens=record.num_cached,
        output_tokens=len(record.token_ids),
    )
