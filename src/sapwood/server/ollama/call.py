"""What chat and generate have in common: a call's options to the internal request, and its record to objects of a stream.

Knows the dialect's names of options and its clock (nanoseconds, RFC 3339); runs nothing. Invariant: an option that would change
the answer is honoured or refused by name.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from fastapi import Request, Response

from sapwood.core.sampling import SamplingParams
from sapwood.errors import InvalidRequest, SapwoodError
from sapwood.parsing.formats import NONE
from sapwood.parsing.partial import partial_object
from sapwood.parsing.pieces import Call as ToolCall
from sapwood.parsing.pieces import CallArguments, CallStart, Piece, Reasoning
from sapwood.parsing.pieces import Content as Text
from sapwood.server.answers import PLAIN, Answers, Reading
from sapwood.server.body import Decoder, as_list, check_off, refuse
from sapwood.server.constraints import Wanted, want
from sapwood.server.context import ServerContext
from sapwood.server.failures import ollama_error, raise_failure
from sapwood.server.ollama.schema import CallFields, OllamaRefusals, Options
from sapwood.server.record import RequestRecord
from sapwood.server.requests import ALL_AT_ONCE, GenerateRequest, PromptRequest, all_if_zero, named_as
from sapwood.server.sse import EventStream, Framing, collect, json_response, line
from sapwood.server.stream import Stream

_fields: Decoder[CallFields] = Decoder(CallFields)
_refusals = Decoder(OllamaRefusals)
FRAMING = Framing(b"application/x-ndjson", lambda error: line(ollama_error(error)), b"")
LATEST = ":latest"
_NAMES = {
    "max_new_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    **{name: f"options.{name}" for name in ("temperature", "top_k", "top_p", "min_p", "seed", "stop")},
    **{name: f"options.{name}" for name in ("presence_penalty", "frequency_penalty")},
}
_OFF = {"typical_p": (1.0,), "tfs_z": (1.0,), "mirostat": (0,)}
"""Options that are not supported, and the values at which they do nothing."""


@dataclass(frozen=True, slots=True)
class Part:
    """What is new in an answer; calls have a function with its name and arguments."""

    text: str = ""
    thinking: str = ""
    calls: tuple[dict[str, Any], ...] = ()


Content = Callable[[Part], dict[str, Any]]
"""The part of an object that holds what is new, which is where the two routes differ."""


@dataclass(frozen=True, slots=True)
class Call:
    """A checked call, without its prompt."""

    model: str
    is_streamed: bool
    params: SamplingParams
    limit: int | None
    content: Content
    names: dict[str, str]
    variables: dict[str, Any]

    def with_stops(self, token_ids: tuple[int, ...]) -> Call:
        """The same call, which ends at these ids too."""
        params = msgspec.structs.replace(self.params, stop_token_ids=(*self.params.stop_token_ids, *token_ids))
        return dataclasses.replace(self, params=params)


async def read_call(context: ServerContext, request: Request, content: Content, prompt_name: str) -> tuple[Call, bytes]:
    """The checked call and the body it came in; `prompt_name` is the field that holds the prompt."""
    data = await context.read(request)
    fields = _fields.decode(data)
    check_model(context, fields.model)
    refuse(_refusals.decode(data))
    options = fields.options or Options()
    check_off(options, _OFF, "options.")
    if options.repeat_penalty not in (None, 1.0):
        check_off(options, {"repeat_last_n": (-1,)}, "options.")
    params, limit = _params(context, options)
    params = await context.constrain(params, _format(fields.format))
    model = fields.model or context.model.name
    variables = _variables(context, fields.think)
    return Call(model, fields.stream is not False, params, limit, content, {**_NAMES, "prompt": prompt_name}, variables), data


def check_model(context: ServerContext, name: str | None) -> None:
    """Raise UnknownModel unless `name`, with or without the tag that means any version, is this server's model."""
    if not (name and context.model.answers_to(name.removesuffix(LATEST))):
        context.check_model(name)


def _variables(context: ServerContext, think: bool | str | None) -> dict[str, Any]:
    """Whether and how much to think, for templates that can be told."""
    if think and context.model.output.reasoning_format == NONE:
        raise InvalidRequest("think: this model does not think before it answers; leave it out", param="think")
    if think is None:
        return {}
    effort = {"reasoning_effort": think} if isinstance(think, str) else {}
    return {"enable_thinking": bool(think), "thinking": bool(think), **effort}


async def answer(
    context: ServerContext, request: Request, call: Call, token_ids: list[int], reading: Reading = PLAIN
) -> Response:
    """Run the call on a prompt, and read its answer."""
    prompt = PromptRequest(
        rid=f"ollama-{uuid.uuid4().hex}",
        token_ids=token_ids,
        params=await context.shape(reading, call.params),
        default_max_new_tokens=call.limit,
        priority=context.settings.default_priority,
    )
    interval = context.settings.stream_interval if call.is_streamed else ALL_AT_ONCE
    with named_as(call.names):
        stream = await context.open(GenerateRequest((prompt,), interval))
    answers = Answers(reading, context.model.vocabulary)
    if call.is_streamed:
        return EventStream(stream, _lines(stream, call, answers), FRAMING)
    await collect(stream, request)
    [record] = stream.records
    raise_failure(record.finish)
    whole = answers.whole(record)
    part = Part(whole.content, whole.reasoning, tuple(map(_as_call, whole.calls)))
    return json_response({**_head(call), **call.content(part), **_final(record)})


def answer_loaded(call: Call) -> Response:
    """The answer to a call without a prompt, by which clients ask for the model to be loaded: it is."""
    return json_response({**_head(call), **call.content(Part()), "done": True, "done_reason": "load"})


async def _lines(stream: Stream, call: Call, answers: Answers) -> AsyncIterator[bytes]:
    """An object for each piece, and one without any for the end. The dialect has whole calls: one waits until it is complete.
    What fails in between ends with an object that has the error, and no reason."""
    open_call: list[Piece] = []
    has_begun = False
    async for updates in stream:
        lines: list[bytes] = []
        for update in updates:
            try:
                raise_failure(update.finish)
            except SapwoodError as error:
                if not has_begun:
                    raise
                told = {"error": ollama_error(error).error, "done": True, **_counts(update.record)}
                yield b"".join([*lines, line({**_head(call), **call.content(Part()), **told})])
                return
            parts, open_call = _parts(open_call + answers.take(update), update.finish is not None)
            lines += [line({**_head(call), **call.content(part), "done": False}) for part in parts]
            if update.finish is not None:
                lines.append(line({**_head(call), **call.content(Part()), **_final(update.record)}))
        if lines:
            has_begun = True
            yield b"".join(lines)


def _parts(pieces: list[Piece], is_last: bool) -> tuple[list[Part], list[Piece]]:
    """What can be shown of `pieces`, and the pieces of a call that is not complete."""
    parts: list[Part] = []
    started: list[Piece] = []
    for piece in pieces:
        if not isinstance(piece, CallArguments) and started:
            parts.append(_call_part(started))
            started = []
        match piece:
            case Text(text):
                parts.append(Part(text))
            case Reasoning(text):
                parts.append(Part("", text))
            case _:
                started.append(piece)
    if is_last and started:
        parts.append(_call_part(started))
        started = []
    return parts, started


def _call_part(pieces: list[Piece]) -> Part:
    start, *arguments = pieces
    assert isinstance(start, CallStart)
    text = "".join(piece.text for piece in arguments if isinstance(piece, CallArguments))
    return Part(calls=(_as_call(ToolCall(start.id, start.name, text)),))


def _as_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "function": {"name": call.name, "arguments": partial_object(call.arguments)}}


def _head(call: Call) -> dict[str, Any]:
    return {"model": call.model, "created_at": datetime.now(UTC).isoformat().replace("+00:00", "Z")}


def _final(record: RequestRecord) -> dict[str, Any]:
    """How the answer ended."""
    assert record.finish is not None
    return {"done": True, "done_reason": record.finish.kind, **_counts(record)}


def _counts(record: RequestRecord) -> dict[str, Any]:
    """Tokens and times. The time in the queue is in the total alone; without a token the prompt took the rest of it."""
    times = record.timings
    first_s = times.first_token_s or times.finished_s
    started_s = min(first_s, times.received_s + (record.queue_s or 0.0))
    return {
        "total_duration": _ns(times.finished_s - times.received_s),
        "load_duration": 0,
        "prompt_eval_count": record.num_prompt,
        "prompt_eval_duration": _ns(first_s - started_s),
        "eval_count": len(record.token_ids),
        "eval_duration": _ns(times.finished_s - first_s),
    }


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _params(context: ServerContext, options: Options) -> tuple[SamplingParams, int | None]:
    """The parameters, and the limit on new tokens where there is one: it gives way to the context's end."""
    given = {name: getattr(options, name) for name in ("temperature", "top_p", "min_p", "seed")} | {
        "top_k": all_if_zero(options.top_k),
        "repetition_penalty": options.repeat_penalty,
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
    }
    limit = options.num_predict if options.num_predict is not None and options.num_predict > 0 else None
    if limit is None and options.num_predict not in (None, 0, -1, -2):
        raise InvalidRequest("options.num_predict must be >= 0, or -1 or -2 for no limit", param="options.num_predict")
    params = SamplingParams(
        **{**dict(context.model.sampling_defaults), **{name: value for name, value in given.items() if value is not None}},
        max_new_tokens=0 if options.num_predict == 0 else None,
        stop=tuple(as_list(options.stop)) if options.stop else (),
    )
    return params, limit


def _format(value: dict[str, Any] | str | None) -> Wanted | None:
    if not value:
        return None
    if isinstance(value, str) and value != "json":
        raise InvalidRequest('format must be "json" or a JSON Schema', param="format")
    return want("format", "json_object" if value == "json" else "json_schema", value)
