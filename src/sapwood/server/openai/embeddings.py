"""`/v1/embeddings` as OpenAI defines it, and `/v1/classify` in its manner.

Turns bodies into prompts and vectors into answers; runs nothing. Invariant: embeddings have length one, whatever their size, and
stand in the order of the inputs.
"""

from __future__ import annotations

import base64
import time
import uuid
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Request, Response

from sapwood.core.pooling import Task
from sapwood.errors import InvalidRequest
from sapwood.server.body import Decoder, make_refusals, refuse
from sapwood.server.context import ServerContext
from sapwood.server.native.schema import Ids, Int32, Int64
from sapwood.server.record import RequestRecord
from sapwood.server.scoring import check_dimensions, class_probabilities, unit
from sapwood.server.sse import json_response
from sapwood.server.vectors import CallFacts, ask_vectors, read_inputs, vector_of


class EmbeddingFields(msgspec.Struct, kw_only=True):
    """The body of `/v1/embeddings`. `dimensions` cuts the vectors, for models that are trained for it."""

    input: str | list[str | Int64 | Ids]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None
    user: str | None = None
    priority: Int32 | None = None
    rid: str | list[str] | None = None


class ClassifyFields(msgspec.Struct, kw_only=True):
    """The body of `/v1/classify`."""

    input: str | list[str | Int64 | Ids]
    model: str | None = None
    user: str | None = None
    priority: Int32 | None = None


EmbeddingRefusals = make_refusals("EmbeddingRefusals", ("lora_path", "embed_overrides", "image_data"))


class EmbeddingUsage(msgspec.Struct, frozen=True):
    """Tokens of the inputs, what surrounds them included."""

    prompt_tokens: int
    total_tokens: int


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """One vector: numbers, or base64 of little-endian float32."""

    object: str = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/v1/embeddings`."""

    object: str = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class Classification(msgspec.Struct, frozen=True, kw_only=True):
    """The most probable class of one input, and the probabilities of all."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassificationList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/v1/classify`."""

    id: str
    object: str = "list"
    created: int
    model: str
    data: list[Classification]
    usage: EmbeddingUsage


_embedding_fields: Decoder[EmbeddingFields] = Decoder(EmbeddingFields)
_classify_fields: Decoder[ClassifyFields] = Decoder(ClassifyFields)
_refusals = Decoder(EmbeddingRefusals)


def embedding_routes(context: ServerContext) -> APIRouter:
    """The router of this family."""
    router = APIRouter(tags=["embeddings"])

    async def embed(request: Request) -> Response:
        data = await context.read(request)
        fields = _embedding_fields.decode(data)
        refuse(_refusals.decode(data))
        context.check_model(fields.model)
        asked, is_list = await read_inputs(context, fields.input, "input", truncate=context.settings.allow_auto_truncate)
        check_embeds(context)
        check_dimensions(fields.dimensions, context.frontend.limits.vector_size)
        facts = CallFacts("input", _rids(fields.rid, len(asked), is_list), fields.priority)
        records = await ask_vectors(context, request, asked, facts)
        return json_response(_embeddings(context, fields, records))

    async def classify(request: Request) -> Response:
        fields = await context.body(request, _classify_fields)
        context.check_model(fields.model)
        asked, _ = await read_inputs(context, fields.input, "input", truncate=context.settings.allow_auto_truncate)
        check_classifies(context)
        records = await ask_vectors(context, request, asked, CallFacts("input", priority=fields.priority))
        found = [_classification(index, record, context.frontend.limits.labels) for index, record in enumerate(records)]
        answer = ClassificationList(
            id=f"classify-{uuid.uuid4().hex}",
            created=int(time.time()),
            model=context.model.name,
            data=found,
            usage=embedding_usage(records),
        )
        return json_response(answer)

    router.add_api_route("/v1/embeddings", embed, methods=["POST"], summary="Vectors for texts")
    router.add_api_route("/v1/classify", classify, methods=["POST"], summary="Classes of texts")
    return router


def check_embeds(context: ServerContext) -> None:
    """Raise InvalidRequest when the model is a classifier."""
    if context.frontend.limits.task is Task.CLASSIFY:
        raise InvalidRequest("this model classifies; ask /v1/classify or /v1/score", param="model")


def check_classifies(context: ServerContext) -> None:
    """Raise InvalidRequest when the model has no classes."""
    if context.frontend.limits.task is Task.EMBED:
        raise InvalidRequest("this model makes embeddings and knows no classes; ask /v1/embeddings", param="model")


def embedding_usage(records: list[RequestRecord]) -> EmbeddingUsage:
    """The tokens of a call."""
    count = sum(record.num_prompt for record in records)
    return EmbeddingUsage(count, count)


def _embeddings(context: ServerContext, fields: EmbeddingFields, records: list[RequestRecord]) -> EmbeddingList:
    vectors = [unit(vector_of(record), fields.dimensions) for record in records]
    as_text = fields.encoding_format == "base64"
    values: list[Any] = [
        base64.b64encode(vector.astype("<f4").tobytes()).decode() if as_text else vector.tolist() for vector in vectors
    ]
    found = [Embedding(index=index, embedding=value) for index, value in enumerate(values)]
    return EmbeddingList(data=found, model=context.model.name, usage=embedding_usage(records))


def _classification(index: int, record: RequestRecord, labels: tuple[str, ...]) -> Classification:
    probabilities = class_probabilities(vector_of(record))
    best = max(range(len(probabilities)), key=probabilities.__getitem__)
    return Classification(index=index, label=labels[best], probs=probabilities, num_classes=len(labels))


def _rids(given: str | list[str] | None, count: int, is_list: bool) -> list[str] | None:
    """The ids of the call's requests: given one by one, or made from one; None when the client named none."""
    if given is None:
        return None
    if isinstance(given, str):
        return [f"{given}_{index}" for index in range(count)] if is_list else [given]
    if len(given) != count:
        raise InvalidRequest(f"rid has {len(given)} entries for {count} inputs; send one for each", param="rid")
    return given
