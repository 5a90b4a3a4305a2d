"""How every dialect's embedding and scoring routes ask the engine: prompts in, finished records out.

Knows the tokenizer's frame and the registry; does not know any dialect's fields. Invariant: the prompts of a call are checked
before the first one runs, and a client that goes away ends them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from sapwood.core.pooling import Pooling
from sapwood.core.sampling import LogprobOptions, SamplingParams
from sapwood.errors import InvalidRequest
from sapwood.server.body import as_list
from sapwood.server.context import ServerContext
from sapwood.server.failures import as_error
from sapwood.server.native.generate import split_ids
from sapwood.server.record import RequestRecord
from sapwood.server.requests import ALL_AT_ONCE, GenerateRequest, PromptRequest, check_task, named_as
from sapwood.server.scoring import Vector, unpack_vector
from sapwood.server.sse import collect

MAX_INPUTS = 4096
"""Prompts in one call."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One prompt that wants a vector, and where its second text begins, if it has two."""

    token_ids: list[int]
    second_start: int | None = None


@dataclass(frozen=True, slots=True)
class CallFacts:
    """What a call's prompts share: the name of the client's field that they came in, ids, and importance."""

    name: str
    rids: Sequence[str] | None = None
    priority: int | None = None

    def rid(self, index: int, base: str) -> str:
        """The id of prompt number `index`."""
        return self.rids[index] if self.rids is not None else f"{base}_{index}"


async def read_inputs(context: ServerContext, value: Any, name: str, *, truncate: bool = False) -> tuple[list[Asked], bool]:
    """A text, texts, ids or lists of ids as prompts, and whether there were several; with `truncate` they are cut to fit."""
    check_task(True, context.frontend.limits.task)
    is_list = isinstance(value, list) and not (value and all(isinstance(item, int) for item in value))
    check_count(len(value) if is_list else 1, name)
    texts = as_list(value)
    if not texts:
        raise InvalidRequest(f"{name} must not be empty; send at least one text", param=name)
    if all(isinstance(item, str) for item in texts):
        most = context.frontend.limits.max_request_tokens if truncate else None
        if not truncate:
            context.check_texts(map(len, texts), None, name)
        frame = context.model.frame
        ids = await context.encode_all(([(text, True)] for text in texts), add_special=False, name=name)
        return [Asked(frame.single(each, most)) for each in ids], is_list
    if any(isinstance(item, str) for item in texts):
        raise InvalidRequest(f"{name} must be texts or ids, not a mixture", param=name)
    lists, is_batch = split_ids(texts, name)
    return [Asked(ids) for ids in lists], is_batch


async def read_pairs(context: ServerContext, first: str, seconds: Sequence[str], names: tuple[str, str]) -> list[Asked]:
    """Prompts of two texts each, the first one the same for all."""
    check_task(True, context.frontend.limits.task)
    check_count(len(seconds), names[1])
    context.check_texts([len(first)], None, names[0])
    context.check_texts(map(len, seconds), None, names[1])
    head = await context.encode([(first, False)], add_special=False, name=names[0])
    tails = await context.encode_all(([(text, False)] for text in seconds), add_special=False, name=names[1])
    return [Asked(*context.model.frame.pair(head, tail)) for tail in tails]


async def ask_vectors(context: ServerContext, request: Request, asked: Iterable[Asked], facts: CallFacts) -> list[RequestRecord]:
    """Let every prompt be computed; their records, in order, hold the vectors."""
    params, base = SamplingParams(max_new_tokens=0), uuid.uuid4().hex
    prompts = tuple(
        PromptRequest(
            rid=facts.rid(index, base),
            token_ids=prompt.token_ids,
            params=params,
            priority=context.settings.default_priority if facts.priority is None else facts.priority,
            pooling=Pooling(prompt.second_start),
        )
        for index, prompt in enumerate(asked)
    )
    return await _finish(context, request, prompts, facts.name)


async def ask_logprobs(
    context: ServerContext, request: Request, prompts: Sequence[list[int]], label_ids: Sequence[int], name: str
) -> list[list[float]]:
    """For each prompt the log-probabilities of `label_ids` as the next token."""
    params, base = SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True), uuid.uuid4().hex
    options = LogprobOptions(output=True, token_ids=tuple(label_ids))
    requests = tuple(
        PromptRequest(rid=f"{base}_{index}", token_ids=ids, params=params, logprobs=options) for index, ids in enumerate(prompts)
    )
    with named_as({"token_ids_logprob": "label_token_ids"}):
        records = await _finish(context, request, requests, name)
    return [record.logprobs[0].asked_logprobs for record in records]


def vector_of(record: RequestRecord) -> Vector:
    """The vector of a finished record."""
    return unpack_vector(record.vector)


async def _finish(context: ServerContext, request: Request, prompts: tuple[PromptRequest, ...], name: str) -> list[RequestRecord]:
    with named_as({"prompt": name}):
        stream = await context.open(GenerateRequest(prompts, ALL_AT_ONCE))
    await collect(stream, request)
    for record in stream.records:
        if record.finish is not None and record.finish.kind in ("error", "abort"):
            raise as_error(record.finish)
    return stream.records


def check_count(count: int, name: str) -> None:
    """Raise InvalidRequest unless a call with so many texts is taken."""
    if not 1 <= count <= MAX_INPUTS:
        raise InvalidRequest(f"{name} takes from 1 to {MAX_INPUTS} entries, got {count}; split the call", param=name)
