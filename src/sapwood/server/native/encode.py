"""`/encode` and `/classify`: SGLang's native routes for vectors, single and batched.

Turns bodies into prompts and vectors into SGLang's answer; runs nothing. Invariant: a batch is answered by a list in its order.
"""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from sapwood.errors import InvalidRequest
from sapwood.server.body import Decoder, make_refusals, refuse
from sapwood.server.context import ServerContext
from sapwood.server.native.schema import Ids, Int32, Int64
from sapwood.server.openai.embeddings import check_classifies, check_embeds
from sapwood.server.record import RequestRecord
from sapwood.server.scoring import check_dimensions, unit
from sapwood.server.sse import json_response
from sapwood.server.vectors import Asked, CallFacts, ask_vectors, read_inputs, vector_of


class EncodeFields(msgspec.Struct, kw_only=True):
    """The body of `/encode` and `/classify`. A list of texts, or of lists of ids, is a batch."""

    text: str | list[str] | None = None
    input_ids: list[Int64 | Ids] | None = None
    rid: str | list[str] | None = None
    priority: Int32 | None = None
    dimensions: Int64 | None = None


EncodeRefusals = make_refusals("EncodeRefusals", ("image_data", "audio_data", "video_data", "lora_path", "input_embeds"))
_fields: Decoder[EncodeFields] = Decoder(EncodeFields)
_refusals = Decoder(EncodeRefusals)


def encode_routes(context: ServerContext) -> APIRouter:
    """The router of this family."""
    router = APIRouter(tags=["embeddings"])

    async def encode(request: Request) -> Response:
        fields = await _read(context, request)
        asked, facts, is_batch = await _prompts(context, fields)
        check_embeds(context)
        check_dimensions(fields.dimensions, context.frontend.limits.vector_size)
        records = await ask_vectors(context, request, asked, facts)
        return _answer([unit(vector_of(record), fields.dimensions).tolist() for record in records], records, is_batch)

    async def classify(request: Request) -> Response:
        asked, facts, is_batch = await _prompts(context, await _read(context, request))
        check_classifies(context)
        records = await ask_vectors(context, request, asked, facts)
        return _answer([vector_of(record).tolist() for record in records], records, is_batch)

    for path, route, summary in (
        ("/encode", encode, "Vectors for one prompt or a batch of them"),
        ("/classify", classify, "Scores of classes for one prompt or a batch of them"),
    ):
        router.add_api_route(path, route, methods=["POST"], summary=summary)
        router.add_api_route(path, route, methods=["PUT"], include_in_schema=False)
    return router


async def _read(context: ServerContext, request: Request) -> EncodeFields:
    data = await context.read(request)
    fields = _fields.decode(data)
    refuse(_refusals.decode(data))
    if (fields.text is None) == (fields.input_ids is None):
        raise InvalidRequest("send either text or input_ids, and not both", param="text")
    return fields


async def _prompts(context: ServerContext, fields: EncodeFields) -> tuple[list[Asked], CallFacts, bool]:
    """The prompts, what they share, and whether the client sent a batch."""
    value, name = (fields.text, "text") if fields.text is not None else (fields.input_ids, "input_ids")
    asked, is_batch = await read_inputs(context, value, name, truncate=context.settings.allow_auto_truncate)
    given = [fields.rid] if isinstance(fields.rid, str) else fields.rid
    if given is not None and len(given) != len(asked):
        raise InvalidRequest(f"rid has {len(given)} entries for {len(asked)} prompts; send one for each", param="rid")
    return asked, CallFacts(name, given, fields.priority), is_batch


def _answer(vectors: list[list[float]], records: list[RequestRecord], is_batch: bool) -> Response:
    replies = [{"embedding": vector, "meta_info": _meta(record)} for vector, record in zip(vectors, records, strict=True)]
    return json_response(replies if is_batch else replies[0])


def _meta(record: RequestRecord) -> dict[str, Any]:
    return {
        "id": record.rid,
        "finish_reason": {"type": "length", "length": 0},
        "prompt_tokens": record.num_prompt,
        "completion_tokens": 0,
        "cached_tokens": record.num_cached,
        "e2e_latency": record.timings.finished_s - record.timings.received_s,
    }
