"""`/v1/messages`, whole and streamed, and `/v1/messages/count_tokens`.

Turns a body into the internal request and its record into a message; runs nothing. Invariant: a stream is message_start, one text
block (start, deltas, stop), message_delta with the stop reason and the counts, message_stop; nothing else, and in this order.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

from fastapi import APIRouter, Request, Response

from sapwood.core.sampling import SamplingParams
from sapwood.server.anthropic.prompt import prompt_ids
from sapwood.server.anthropic.schema import (
    AnswerFields,
    AnswerMessage,
    BlockDelta,
    BlockStart,
    BlockStop,
    Event,
    MessageDelta,
    MessageStart,
    MessageStop,
    StopDelta,
    TextBlock,
    TextDelta,
    TokenCount,
    Usage,
)
from sapwood.server.body import Decoder, read_body
from sapwood.server.context import ServerContext
from sapwood.server.failures import anthropic_error, raise_failure
from sapwood.server.record import RequestRecord
from sapwood.server.requests import ALL_AT_ONCE, GenerateRequest, PromptRequest, named_as
from sapwood.server.sse import SSE, EventStream, Framing, collect, json_response, named_event
from sapwood.server.stream import Stream

_fields: Decoder[AnswerFields] = Decoder(AnswerFields)
NAMES = {"prompt": "messages", "max_new_tokens": "max_tokens", "stop": "stop_sequences", "continue_final_message": "messages"}
FRAMING = Framing(SSE, lambda error: named_event("error", anthropic_error(error)), b"")


def message_routes(context: ServerContext) -> APIRouter:
    """The router of this family."""
    router = APIRouter(tags=["anthropic"])

    async def messages(request: Request) -> Response:
        data = await read_body(request, context.max_body_bytes)
        fields = _fields.decode(data)
        with named_as(NAMES):
            prompt = PromptRequest(
                rid=f"msg_{uuid.uuid4().hex}",
                token_ids=await prompt_ids(context, data),
                params=_params(context, fields),
                priority=context.settings.default_priority,
            )
            interval = context.settings.stream_interval if fields.stream else ALL_AT_ONCE
            stream = context.frontend.open(GenerateRequest((prompt,), interval))
        if fields.stream:
            return EventStream(stream, _events(stream, context.model.name), FRAMING)
        await collect(stream, request)
        [record] = stream.records
        raise_failure(record.finish)
        return json_response(_message(record, context.model.name, [TextBlock(text=record.text)]))

    async def count_tokens(request: Request) -> Response:
        ids = await prompt_ids(context, await read_body(request, context.max_body_bytes))
        return json_response(TokenCount(input_tokens=len(ids)))

    router.add_api_route("/v1/messages", messages, methods=["POST"], summary="Answer a chat, for Anthropic's clients")
    router.add_api_route("/v1/messages/count_tokens", count_tokens, methods=["POST"], summary="Count a chat's prompt tokens")
    return router


def _params(context: ServerContext, fields: AnswerFields) -> SamplingParams:
    given = {"temperature": fields.temperature, "top_p": fields.top_p, "top_k": fields.top_k or None}  # top_k 0 means all
    return SamplingParams(
        **{**dict(context.model.sampling_defaults), **{name: value for name, value in given.items() if value is not None}},
        max_new_tokens=fields.max_tokens,
        stop=tuple(fields.stop_sequences or ()),
    )


async def _events(stream: Stream, model: str) -> AsyncIterator[bytes]:
    """The encoded events; one write for all news of a moment."""
    is_begun = False
    async for updates in stream:
        events: list[Event] = []
        for update in updates:
            record = update.record
            raise_failure(record.finish)
            if not is_begun:
                is_begun = True
                events += (MessageStart(message=_message(record, model, [])), BlockStart())
            if update.text:
                events.append(BlockDelta(delta=TextDelta(text=update.text)))
            if update.finish is not None:
                reason, sequence = _stop(record)
                delta = StopDelta(stop_reason=reason, stop_sequence=sequence)
                events += (BlockStop(), MessageDelta(delta=delta, usage=_usage(record)), MessageStop())
        if events:
            yield b"".join(named_event(event.type, event) for event in events)


def _message(record: RequestRecord, model: str, content: list[TextBlock]) -> AnswerMessage:
    """The message with `content`; without any it is the beginning of a stream, whose end is told later."""
    reason, sequence = _stop(record) if content else (None, None)
    return AnswerMessage(
        id=record.rid, model=model, content=content, stop_reason=reason, stop_sequence=sequence, usage=_usage(record)
    )


def _stop(record: RequestRecord) -> tuple[str | None, str | None]:
    """The dialect's words for the end, and the stop sequence that made it."""
    if record.finish is None:
        return None, None
    if record.finish.kind == "length":
        return "max_tokens", None
    matched = record.finish.matched
    return ("stop_sequence", matched) if isinstance(matched, str) else ("end_turn", None)


def _usage(record: RequestRecord) -> Usage:
    return Usage(
        input_tokens=record.num_prompt - record.num_cached,
        cache_read_input_tokens=record.num_cached,
        output_tokens=len(record.token_ids),
    )
