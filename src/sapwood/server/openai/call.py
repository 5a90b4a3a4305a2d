"""What chat and completions have in common: the call's fields to a `GenerateRequest`, and the refusal of what cannot be honoured.

Knows the OpenAI names of parameters; runs nothing. Invariant: a field that would change the answer is honoured or refused by the
name the client used, never dropped.
"""

from __future__ import annotations

import dataclasses
import time
import uuid
from dataclasses import dataclass

import msgspec
from fastapi import Request

from sapwood.core.sampling import LogprobOptions, SamplingParams
from sapwood.errors import InvalidRequest
from sapwood.server.body import Decoder, as_list, check_off, refuse
from sapwood.server.context import ServerContext
from sapwood.server.openai.constraints import read_constraint
from sapwood.server.openai.schema import OFF, CallFields, OpenAIRefusals, OtherSamplers, SamplingFields
from sapwood.server.requests import ALL_AT_ONCE, GenerateRequest, PromptRequest, all_if_zero, make_namespace, named_as
from sapwood.server.stream import Stream

_call_fields: Decoder[CallFields] = Decoder(CallFields)
_sampling_fields: Decoder[SamplingFields] = Decoder(SamplingFields)
_refusals = Decoder(OpenAIRefusals)
_other_samplers = Decoder(OtherSamplers)
_RENAMED = (
    "best_of", "max_tokens", "max_completion_tokens", "min_tokens", "stop", "stop_token_ids", "stop_regex", "top_k",
    "repetition_penalty", "repeat_penalty", "n_predict",
)  # fmt: skip
NO_LIMIT = -1
_SAME = tuple(name for name in SamplingFields.__struct_fields__ if name not in _RENAMED)


@dataclass(frozen=True, slots=True)
class Call:
    """A checked call, without its prompts. `id` starts the rids and is the answer's id; `created` is Unix time in seconds;
    `is_unlimited`: the client wants no other limit than the context's."""

    id: str
    created: int
    fields: CallFields
    params: SamplingParams
    names: dict[str, str]
    is_unlimited: bool = False

    def with_stops(self, token_ids: tuple[int, ...]) -> Call:
        """The same call, which ends at these ids too."""
        params = msgspec.structs.replace(self.params, stop_token_ids=(*self.params.stop_token_ids, *token_ids))
        return dataclasses.replace(self, params=params)

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        options = self.fields.stream_options
        return options is not None and bool(options.include_usage)

    @property
    def wants_running_usage(self) -> bool:
        """Whether every chunk carries the usage so far."""
        options = self.fields.stream_options
        return self.wants_usage and options is not None and bool(options.continuous_usage_stats)


async def read_call(context: ServerContext, request: Request, prefix: str) -> tuple[Call, bytes]:
    """The checked call and the body it came in; ids start with `prefix`."""
    data = await context.read(request)
    fields = _call_fields.decode(data)
    context.check_model(fields.model)
    sampling = _sampling_fields.decode(data)
    refuse(_refusals.decode(data))
    check_off(_other_samplers.decode(data), OFF)
    _check_call(fields, sampling)
    given = fields.rid if isinstance(fields.rid, str) else None
    limit_name, limit = _limit(sampling)
    names = {"max_new_tokens": limit_name, "min_new_tokens": "min_tokens"}
    if sampling.repetition_penalty is None and sampling.repeat_penalty is not None:
        names["repetition_penalty"] = "repeat_penalty"
    params = await context.constrain(_sampling_params(sampling, context), read_constraint(data))
    id = given or f"{prefix}{uuid.uuid4().hex}"
    return Call(id, int(time.time()), fields, params, names, is_unlimited=limit == NO_LIMIT), data


async def open_call(
    context: ServerContext,
    call: Call,
    prompts: list[list[int]],
    logprobs: LogprobOptions,
    default_max_new_tokens: int | None,
    names: dict[str, str],
) -> Stream:
    """Submit the call's prompts; `names` maps internal names of fields to the route's, for error messages."""
    fields = call.fields
    namespace = make_namespace(fields.cache_salt, fields.extra_key)
    requests = tuple(
        PromptRequest(
            rid=rid,
            token_ids=token_ids,
            params=call.params,
            default_max_new_tokens=None if call.is_unlimited else default_max_new_tokens,
            logprobs=logprobs,
            priority=context.settings.default_priority if fields.priority is None else fields.priority,
            routing_key=fields.routing_key or "",
            queue_timeout_s=fields.queue_timeout_s,
            timeout_s=fields.timeout_s,
            namespace=namespace,
        )
        for rid, token_ids in zip(_rids(call, len(prompts)), prompts, strict=True)
    )
    interval = context.settings.stream_interval if fields.stream else ALL_AT_ONCE
    with named_as({**call.names, **names}):
        return await context.open(GenerateRequest(requests, interval))


def _rids(call: Call, count: int) -> list[str]:
    given = call.fields.rid
    if isinstance(given, list):
        if len(given) != count or len(set(given)) != count:
            raise InvalidRequest(f"rid must hold a different id for each of the {count} prompts", param="rid")
        return given
    return [call.id] if count == 1 else [f"{call.id}_{index}" for index in range(count)]


def _limit(fields: SamplingFields) -> tuple[str, int | None]:
    """The field that limits the completion, and its value."""
    names = ("max_completion_tokens", "max_tokens", "n_predict")
    name = next((name for name in names if getattr(fields, name) is not None), "max_tokens")
    return name, getattr(fields, name)


def _sampling_params(fields: SamplingFields, context: ServerContext) -> SamplingParams:
    defaults = dict(context.model.sampling_defaults)
    given = {name: value for name in _SAME if (value := getattr(fields, name)) is not None}
    penalty = fields.repeat_penalty if fields.repetition_penalty is None else fields.repetition_penalty
    more = {"top_k": all_if_zero(fields.top_k), "repetition_penalty": penalty}
    given |= {name: value for name, value in more.items() if value is not None}
    _, limit = _limit(fields)
    return SamplingParams(
        **{**defaults, **given},
        max_new_tokens=None if limit == NO_LIMIT else limit,
        min_new_tokens=fields.min_tokens or 0,
        stop=tuple(as_list(fields.stop)) if fields.stop else (),
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        stop_regex=tuple(as_list(fields.stop_regex)) if fields.stop_regex else (),
    )


def _check_call(fields: CallFields, sampling: SamplingFields) -> None:
    if sampling.best_of is not None and sampling.best_of != (sampling.n or 1):
        raise InvalidRequest("best_of is supported only when it equals n; leave it out", param="best_of")
    if fields.modalities not in (None, [], ["text"]):
        raise InvalidRequest('modalities is supported only as ["text"]; leave it out', param="modalities")
