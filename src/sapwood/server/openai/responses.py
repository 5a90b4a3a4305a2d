"""`/v1/responses`: create, whole, streamed or in the background; retrieve, cancel, delete; input items and input tokens.

Turns the body into a call and pieces into a response; runs nothing itself. Invariant: what is stored is what the client got, and
a stream is created, in_progress, the items' events, and one last event with the whole response, its usage included, also when it
has failed.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from sapwood.core.sampling import SamplingParams
from sapwood.errors import InvalidRequest, SapwoodError
from sapwood.parsing.pieces import Content
from sapwood.server.answers import Answers, Reading
from sapwood.server.body import Decoder, as_list, refuse
from sapwood.server.constraints import Wanted, want
from sapwood.server.context import ServerContext
from sapwood.server.failures import raise_failure
from sapwood.server.openai.replies import usage_of
from sapwood.server.openai.response_store import ResponseStore, StoredResponse
from sapwood.server.openai.responses_output import Event, OutputWriter
from sapwood.server.openai.responses_prompt import response_prompt
from sapwood.server.openai.responses_schema import PromptFields, ResponseFields, ResponseRefusals
from sapwood.server.record import Update
from sapwood.server.requests import ALL_AT_ONCE, GenerateRequest, PromptRequest, named_as
from sapwood.server.sse import SSE, EventStream, Framing, collect, json_response, named_event
from sapwood.server.stream import Stream

_prompt_fields: Decoder[PromptFields] = Decoder(PromptFields)
_fields: Decoder[ResponseFields] = Decoder(ResponseFields)
_refusals = Decoder(ResponseRefusals)
NAMES = {"prompt": "input", "messages": "input", "max_new_tokens": "max_output_tokens"}
MAX_LISTED = 100
LOGPROBS = "message.output_text.logprobs"
"""What else `include` may ask for is about tools and encryption that are not here, so that there is nothing to leave out."""


def response_routes(context: ServerContext) -> APIRouter:
    """The router of this family."""
    router = APIRouter(tags=["openai"])
    store = ResponseStore()

    async def create(request: Request) -> Response:
        making = await _begin(context, store, await context.read(request))
        if making.is_background:
            store.put(making.stored)
            store.start(making.finish_alone())
            return json_response(making.stored.body)
        if making.is_streamed:
            return EventStream(making.stream, making.events(), making.framing)
        await collect(making.stream, request)
        return json_response(making.whole())

    async def input_tokens(request: Request) -> Response:
        fields = await context.body(request, _prompt_fields)
        with named_as(NAMES):
            prompt = await response_prompt(context, store, fields)
        return json_response({"object": "response.input_tokens", "input_tokens": len(prompt.chat.token_ids)})

    async def retrieve(response_id: str) -> Response:
        return json_response(store.get(response_id).body)

    async def cancel(response_id: str) -> Response:
        return json_response(store.cancel(response_id).body)

    async def delete(response_id: str) -> Response:
        store.get(response_id)
        store.drop(response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    async def input_items(request: Request, response_id: str) -> Response:
        return json_response(_page(store.get(response_id), request.query_params))

    add = router.add_api_route
    add("/v1/responses", create, methods=["POST"], summary="Answer, as OpenAI's responses")
    add("/v1/responses/input_tokens", input_tokens, methods=["POST"], summary="Count the prompt tokens of a response")
    add("/v1/responses/{response_id}", retrieve, methods=["GET"], summary="A response that was stored")
    add("/v1/responses/{response_id}", delete, methods=["DELETE"], summary="Forget a response")
    add("/v1/responses/{response_id}/cancel", cancel, methods=["POST"], summary="End a response made in the background")
    add("/v1/responses/{response_id}/input_items", input_items, methods=["GET"], summary="What a response answered")
    return router


async def _begin(context: ServerContext, store: ResponseStore, data: bytes) -> _Making:
    """A checked call, submitted."""
    prompt_fields, fields = _prompt_fields.decode(data), _fields.decode(data)
    refuse(_refusals.decode(data))
    if fields.background and (fields.stream or fields.store is False):
        raise InvalidRequest("background goes with neither stream nor store false; leave out one of them", param="background")
    if LOGPROBS in (fields.include or ()):
        raise InvalidRequest(f"include: {LOGPROBS} is not supported by this server; leave it out", param="include")
    id = f"resp_{uuid.uuid4().hex}"
    with named_as(NAMES):
        prompt = await response_prompt(context, store, prompt_fields)
        params = await context.constrain(_params(context, fields, prompt_fields.max_output_tokens), _wanted(prompt_fields))
        reading = Reading(context.model.output, prompt.tool_use, prompt.chat.end, wanted=params.constraint)
        asked = PromptRequest(
            rid=id,
            token_ids=prompt.chat.token_ids,
            params=await context.shape(reading, params),
            priority=context.settings.default_priority if fields.priority is None else fields.priority,
        )
        interval = context.settings.stream_interval if fields.stream else ALL_AT_ONCE
        stream = await context.open(GenerateRequest((asked,), interval))
    body = _body(context, id, prompt_fields, fields, asked.params)
    stored = StoredResponse(body, prompt.items, prompt.history, stream)
    making = _Making(store, stored, stream, Answers(reading, context.model.vocabulary), fields)
    stored.count = making.usage
    return making


@dataclass(slots=True)
class _Making:
    """A response that is being made."""

    _store: ResponseStore
    stored: StoredResponse
    stream: Stream
    _answers: Answers
    _fields: ResponseFields
    _writer: OutputWriter = field(default_factory=OutputWriter)

    @property
    def is_streamed(self) -> bool:
        return bool(self._fields.stream)

    @property
    def is_background(self) -> bool:
        return bool(self._fields.background)

    @property
    def framing(self) -> Framing:
        """How the stream's end and errors look."""
        return Framing(SSE, self._encode_error, b"")

    def whole(self) -> dict[str, Any]:
        """The response when everything has come."""
        [record] = self.stream.records
        raise_failure(record.finish)
        self._add(record.everything())
        return self.stored.body

    async def finish_alone(self) -> None:
        """Make the response in the background; what goes wrong is its status."""
        async for _ in self.stream:
            pass
        if self.stored.body["status"] == "cancelled":
            return
        try:
            self.whole()
        except SapwoodError as error:
            for record in self.stream.records:
                self._add(msgspec.structs.replace(record.everything(), finish=None))
            self._fail(error)

    async def events(self) -> AsyncIterator[bytes]:
        """The encoded events; one write for all news of a moment."""
        is_begun = False
        async for updates in self.stream:
            events: list[Event] = []
            for update in updates:
                raise_failure(update.record.finish)
                if not is_begun:
                    is_begun = True
                    events += [self._writer.event(f"response.{name}", response=self.stored.body) for name in _BEGINNING]
                events += self._add(update)
            yield b"".join(named_event(event["type"], event) for event in events)

    def _add(self, update: Update) -> list[Event]:
        events: list[Event] = []
        for piece in self._answers.take(update):
            events += self._writer.add(piece)
        if update.finish is None:
            return events
        if not self._writer.items:
            events += self._writer.add(Content(""))
        status = "incomplete" if update.finish.kind == "length" else "completed"
        return [*events, *self._writer.close(status), self._end(status)]

    def _fail(self, error: SapwoodError) -> list[Event]:
        """What there is of the answer is kept."""
        events = [*self._writer.close("incomplete"), self._error(error)]
        return [*events, self._end("failed", error={"code": "server_error", "message": error.message})]

    def _end(self, status: str, **fields: Any) -> Event:
        """The response as it is kept, and the event that tells of it."""
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        ending = {
            "status": status,
            "incomplete_details": details,
            "usage": self.usage(),
            "completed_at": time.time() if status == "completed" else None,
        }
        self.stored.body = {**self.stored.body, **ending, "output": self._writer.items, **fields}
        self.stored.stream = self.stored.count = None
        if self._fields.store is not False:
            self._store.put(self.stored)
        return self._writer.event(f"response.{status}", response=self.stored.body)

    def usage(self) -> dict[str, Any]:
        """What it has taken so far."""
        usage = usage_of(self.stream.records, self._answers)
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.prompt_tokens_details.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.completion_tokens_details.reasoning_tokens},
            "total_tokens": usage.total_tokens,
        }

    def _error(self, error: SapwoodError) -> Event:
        return self._writer.event("error", code=error.code, message=error.message, param=error.param)

    def _encode_error(self, error: SapwoodError) -> bytes:
        return b"".join(named_event(event["type"], event) for event in self._fail(error))


_BEGINNING = ("created", "in_progress")


def _wanted(fields: PromptFields) -> Wanted | None:
    """The form that `text.format` asks for."""
    match _format(fields):
        case {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return want("text.format", "json_object", None)
        case {"type": "json_schema", "schema": dict(schema)}:
            return want("text.format.schema", "json_schema", schema)
    raise InvalidRequest("text.format must have the type text, json_object or json_schema (with a schema)", param="text.format")


def _params(context: ServerContext, fields: ResponseFields, num_wanted: int | None) -> SamplingParams:
    given = {"temperature": fields.temperature, "top_p": fields.top_p, "seed": fields.seed}
    return SamplingParams(
        **{**dict(context.model.sampling_defaults), **{name: value for name, value in given.items() if value is not None}},
        max_new_tokens=num_wanted,
        stop=tuple(as_list(fields.stop)) if fields.stop else (),
    )


def _body(
    context: ServerContext, id: str, prompt_fields: PromptFields, fields: ResponseFields, params: SamplingParams
) -> dict[str, Any]:
    """The response at its beginning: what was asked for, and no output yet."""
    tools = [{"strict": None, "parameters": {}, **_given(tool)} for tool in prompt_fields.tools or []]
    effort = prompt_fields.reasoning.effort if prompt_fields.reasoning is not None else None
    return {
        "id": id,
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "queued" if fields.background else "in_progress",
        "background": bool(fields.background),
        "error": None,
        "incomplete_details": None,
        "instructions": prompt_fields.instructions,
        "max_output_tokens": prompt_fields.max_output_tokens,
        "model": context.model.name,
        "output": [],
        "parallel_tool_calls": prompt_fields.parallel_tool_calls is not False,
        "previous_response_id": prompt_fields.previous_response_id,
        "reasoning": {"effort": effort, "summary": None},
        "store": fields.store is not False,
        "temperature": params.temperature,
        "text": {"format": _format(prompt_fields)},
        "tool_choice": prompt_fields.tool_choice or "auto",
        "tools": tools,
        "top_p": params.top_p,
        "truncation": prompt_fields.truncation or "disabled",
        "usage": None,
        "user": fields.user,
        "metadata": fields.metadata or {},
    }


def _format(fields: PromptFields) -> Any:
    form = fields.text.format if fields.text is not None else None
    return form or {"type": "text"}


def _given(fields: msgspec.Struct) -> dict[str, Any]:
    return {name: value for name, value in msgspec.to_builtins(fields).items() if value is not None}


def _page(stored: StoredResponse, query: Mapping[str, str]) -> dict[str, Any]:
    """A page of what a response answered, the newest first unless `order` is asc."""
    given, order, after = query.get("limit", "20"), query.get("order", "desc"), query.get("after", "")
    limit = int(given) if given.isdecimal() and len(given) < 9 else 0
    if not 1 <= limit <= MAX_LISTED:
        raise InvalidRequest(f"limit must be from 1 to {MAX_LISTED}", param="limit")
    if order not in ("asc", "desc"):
        raise InvalidRequest("order must be asc or desc", param="order")
    items = [*stored.history, *stored.items]
    items = items if order == "asc" else items[::-1]
    ids = [item["id"] for item in items]
    if after and after not in ids:
        raise InvalidRequest("after must be the id of an item of this response", param="after")
    start = ids.index(after) + 1 if after else 0
    page = items[start : start + limit]
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    return {"object": "list", "data": page, "first_id": first, "last_id": last, "has_more": start + limit < len(items)}
