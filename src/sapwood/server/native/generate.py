"""`/generate`: SGLang's native route, single and batched, whole and streamed.

Turns the body into a `GenerateRequest` and records into SGLang's answer; does not run anything. Invariant: everything that can be
wrong with a body is found before the first byte; streams are cumulative unless the server was started otherwise.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import UNSET

from sapwood.core.sampling import LogprobOptions, SamplingParams
from sapwood.errors import InvalidRequest
from sapwood.server.body import Decoder, as_list, refuse
from sapwood.server.constraints import only_one, want
from sapwood.server.context import ServerContext
from sapwood.server.failures import as_error, openai_error
from sapwood.server.gradual import in_slices
from sapwood.server.native.cumulative import Cumulative
from sapwood.server.native.reply import ReplyShape, reply
from sapwood.server.native.schema import CONSTRAINTS, SAMPLING_REFUSALS, GenerateFields, GenerateRefusals, SamplingFields
from sapwood.server.requests import ALL_AT_ONCE, GenerateRequest, PromptRequest, make_namespace, named_as
from sapwood.server.sessions import SessionParams
from sapwood.server.sse import EventStream, collect, event, json_response
from sapwood.server.stream import Stream

DEFAULT_MAX_NEW_TOKENS = 128
_RENAMED = (
    *("sampling_seed", "stop", "stop_token_ids", "stop_regex", "max_new_tokens", "stream_interval"),
    *SAMPLING_REFUSALS,
    *CONSTRAINTS,
)
_SAME = tuple(name for name in SamplingFields.__struct_fields__ if name not in _RENAMED)
_fields: Decoder[GenerateFields] = Decoder(GenerateFields)
_refusals = Decoder(GenerateRefusals)


def generate_routes(context: ServerContext) -> APIRouter:
    """The router of this family."""
    router = APIRouter(tags=["native"])

    async def generate(request: Request) -> Response:
        data = await context.read(request)
        fields = _fields.decode(data)
        refuse(_refusals.decode(data))
        call, shape = await _prepare(context, fields)
        session = fields.session_params
        with named_as(
            {
                "seed": "sampling_seed",
                "prompt": "input_ids" if fields.text is None else "text",
                "top_logprobs": "top_logprobs_num",
            }
        ):
            stream = await context.open(call)
        if session is not None:
            context.frontend.sessions.begin(session, call.prompts[0].rid, stream.records[0])
        if fields.stream:
            return EventStream(stream, _events(stream, shape, context.settings.incremental_streaming_output))
        await collect(stream, request)
        return await _whole(stream, shape)

    router.add_api_route("/generate", generate, methods=["POST"], summary="Complete one prompt or a batch of them")
    router.add_api_route("/generate", generate, methods=["PUT"], include_in_schema=False)
    return router


async def _prepare(context: ServerContext, fields: GenerateFields) -> tuple[GenerateRequest, ReplyShape]:
    prompts, is_batch, name = await _prompt_ids(context, fields)
    session_name, session_s = "", 0.0
    if fields.session_params is not None:
        prompts = [_in_session(context, fields.session_params, prompts, is_batch)]
        session_name, session_s = fields.session_params.id or "", context.frontend.sessions.timeout_s(fields.session_params.id)
    count = len(prompts)
    params = spread(fields.sampling_params, count, "sampling_params")
    samplings = [item or SamplingFields() for item in params]
    if len({item.n or 1 for item in samplings}) > 1:
        raise InvalidRequest("sampling_params: n must be the same for every prompt of a batch", param="n")
    if session_name and (samplings[0].n or 1) > 1:
        raise InvalidRequest("a turn of a session has one answer; leave n out", param="n")
    checked = [await _checked(context, sampling) async for sampling in in_slices(samplings)]
    logprobs = logprob_options(fields, [len(ids) for ids in prompts])
    salts, keys = spread(fields.cache_salt, count, "cache_salt"), spread(fields.extra_key, count, "extra_key")
    requests = [
        PromptRequest(
            rid=rid,
            token_ids=ids,
            params=param,
            default_max_new_tokens=DEFAULT_MAX_NEW_TOKENS if sampling.max_new_tokens is UNSET else None,
            logprobs=options,
            priority=context.settings.default_priority if fields.priority is None else fields.priority,
            routing_key=fields.routing_key or "",
            queue_timeout_s=fields.queue_timeout_s,
            timeout_s=fields.timeout_s,
            namespace=make_namespace(salt, key),
            pin=session_name,
            pin_s=session_s,
        )
        async for rid, ids, sampling, param, options, salt, key in in_slices(
            zip(request_ids(fields.rid, count, is_batch), prompts, samplings, checked, logprobs, salts, keys, strict=True)
        )
    ]
    interval = (samplings[0].stream_interval or context.settings.stream_interval) if fields.stream else ALL_AT_ONCE
    shape = ReplyShape(
        vocabulary=context.model.vocabulary,
        is_list=is_batch or (samplings[0].n or 1) > 1,
        with_token_text=bool(fields.return_text_in_logprobs),
        with_prompt_ids=bool(fields.return_prompt_token_ids),
        with_tiers=context.frontend.limits.has_tiers,
        steering=context.frontend.steering,
    )
    return GenerateRequest(tuple(requests), interval), shape


async def _checked(context: ServerContext, fields: SamplingFields) -> SamplingParams:
    found = [want(kind, kind, value) for kind in CONSTRAINTS if (value := getattr(fields, kind))]
    return await context.constrain(sampling_params(fields), only_one(found))


def sampling_params(fields: SamplingFields) -> SamplingParams:
    """The parameters behind the wire's; not yet checked for ranges. `max_new_tokens` is None unless the client gave a number."""
    for name in SAMPLING_REFUSALS:
        if getattr(fields, name):
            raise InvalidRequest(f"sampling_params.{name} is not supported by this server; leave it out", param=name)
    given = {name: value for name in _SAME if (value := getattr(fields, name)) is not None}
    return SamplingParams(
        **given,
        max_new_tokens=None if fields.max_new_tokens is UNSET else fields.max_new_tokens,
        seed=fields.sampling_seed,
        stop=tuple(as_list(fields.stop)) if fields.stop else (),
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        stop_regex=tuple(as_list(fields.stop_regex)) if fields.stop_regex else (),
    )


async def _prompt_ids(context: ServerContext, fields: GenerateFields) -> tuple[list[list[int]], bool, str]:
    """The ids of each prompt, whether the client sent a batch, and the field they came in."""
    check_source(fields, "text")
    continues = fields.session_params is not None and fields.session_params.rid is not None
    if continues and not (fields.text or fields.input_ids):
        return [[]], False, "text"
    if fields.text is not None:
        parse_special = fields.parse_special is not False
        texts = as_list(fields.text)
        if not texts:
            raise InvalidRequest("text must not be an empty list; send at least one prompt", param="text")
        first = (as_list(fields.sampling_params) or [None])[0]
        context.check_texts(map(len, texts), first.n if first else None, "text")
        pieces = ([(text, parse_special)] for text in texts)
        ids = await context.encode_all(pieces, add_special=not continues, name="text")
        return ids, isinstance(fields.text, list), "text"
    return *with_prefix(fields), "input_ids"


def _in_session(context: ServerContext, session: SessionParams, prompts: list[list[int]], is_batch: bool) -> list[int]:
    """The whole prompt of a session's turn."""
    if is_batch:
        raise InvalidRequest("a session takes one prompt at a time; send the turns one by one", param="session_params")
    return context.frontend.sessions.compose(session, prompts[0], context.frontend.limits.max_request_tokens)


def check_source(fields: GenerateFields, text: str) -> None:
    """Raise InvalidRequest unless the prompts come as text (a field of the name `text`) or as ids."""
    if (fields.text is None) == (fields.input_ids is None):
        raise InvalidRequest(f"send either {text} or input_ids, and not both", param=text)
    if fields.prefix_ids and fields.input_ids is None:
        raise InvalidRequest("prefix_ids stand before input_ids, and there are none; leave prefix_ids out", param="prefix_ids")


def with_prefix(fields: GenerateFields) -> tuple[list[list[int]], bool]:
    """The prompts of `input_ids`, each with `prefix_ids` before it, and whether it is a batch."""
    prompts, is_batch = split_ids(fields.input_ids or [], "input_ids")
    prefix = fields.prefix_ids or []
    return [[*prefix, *ids] for ids in prompts] if prefix else prompts, is_batch


def split_ids(value: list[Any], name: str) -> tuple[list[list[int]], bool]:
    """Ids of one prompt, or a list of them, as (list of prompts, whether it was a list of lists)."""
    if not value:
        raise InvalidRequest(f"{name} must not be empty; send at least one token id", param=name)
    if all(isinstance(item, int) for item in value):
        return [value], False
    if all(isinstance(item, list) for item in value):
        if not all(value):
            raise InvalidRequest(f"{name} must not contain an empty prompt; send at least one token id in each", param=name)
        return value, True
    raise InvalidRequest(f"{name} must be a list of ids, or a list of lists of ids, not a mixture", param=name)


def logprob_options(fields: GenerateFields, lengths: list[int]) -> list[LogprobOptions]:
    """What each prompt's log-probabilities are asked to hold; raises InvalidRequest naming the field."""
    count = len(lengths)
    wanted = spread(fields.return_logprob, count, "return_logprob")
    starts = spread(fields.logprob_start_len, count, "logprob_start_len")
    tops = spread(fields.top_logprobs_num, count, "top_logprobs_num")
    asked = fields.token_ids_logprob
    is_flat = asked is None or all(isinstance(item, int) for item in asked)
    asked_ids = [asked] * count if is_flat else spread(asked, count, "token_ids_logprob")
    options = []
    for is_wanted, start, top, ids in zip(wanted, starts, tops, asked_ids, strict=True):
        if isinstance(ids, int):
            raise InvalidRequest("token_ids_logprob must be a list of ids, or a list of lists of ids", param="token_ids_logprob")
        if not is_wanted:
            options.append(LogprobOptions())
            continue
        prompt_start = None if start is None or start == -1 else start
        options.append(LogprobOptions(output=True, top_n=top or 0, token_ids=tuple(ids or ()), prompt_start=prompt_start))
    return options


def spread(value: Any, count: int, name: str) -> list[Any]:
    """One value for every prompt: a list must have the batch's length, anything else holds for all."""
    if not isinstance(value, list):
        return [value] * count
    if len(value) != count:
        raise InvalidRequest(f"{name} has {len(value)} entries for {count} prompts; send one for each", param=name)
    return value


def request_ids(given: str | list[str] | None, count: int, is_batch: bool) -> list[str]:
    """An id for every prompt, made up where the client gave none; raises InvalidRequest for one that stands twice."""
    if isinstance(given, list):
        if len(set(given)) != len(given):
            raise InvalidRequest("rid must not contain an id twice", param="rid")
        return spread(given, count, "rid")
    if given is not None and not is_batch:
        return [given]
    base = given if given is not None else uuid.uuid4().hex
    return [f"{base}_{index}" for index in range(count)] if is_batch else [base]


async def _events(stream: Stream, shape: ReplyShape, incremental: bool) -> AsyncIterator[bytes]:
    samples: dict[int, Cumulative] = {}
    async for updates in stream:
        events = []
        for update in updates:
            if update.finish is not None and update.finish.kind == "error":
                if shape.is_list:
                    events.append(
                        event({"index": update.record.index, **msgspec.structs.asdict(openai_error(as_error(update.finish)))})
                    )
                    continue
                raise as_error(update.finish)
            if incremental:
                events.append(event(reply(shape, update, incremental=True, in_stream=True)))
                continue
            index = update.record.index
            if index not in samples:
                samples[index] = Cumulative(shape)
            events.append(event(samples[index].reply(update)))
            if update.finish is not None:
                del samples[index]
        yield b"".join(events)


async def _whole(stream: Stream, shape: ReplyShape) -> Response:
    for record in stream.records:
        if record.finish is not None and record.finish.kind == "error":
            raise as_error(record.finish)
    replies = [
        reply(shape, record.everything(), incremental=False, in_stream=False) async for record in in_slices(stream.records)
    ]
    return json_response(replies if shape.is_list else replies[0])
