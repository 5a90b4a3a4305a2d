"""`/api/embed` and the older `/api/embeddings`: vectors for Ollama's clients.

Turns bodies into prompts and vectors into answers; runs nothing. Invariant: inputs that are too long are cut unless the client
forbids it, as Ollama does.
"""

from __future__ import annotations

import time
from typing import Annotated

import msgspec
from fastapi import APIRouter, Request, Response

from sapwood.server.body import Decoder
from sapwood.server.context import ServerContext
from sapwood.server.ollama.call import check_model
from sapwood.server.ollama.schema import Options
from sapwood.server.openai.embeddings import check_embeds
from sapwood.server.scoring import check_dimensions, unit
from sapwood.server.sse import json_response
from sapwood.server.vectors import CallFacts, ask_vectors, read_inputs, vector_of


class EmbedFields(msgspec.Struct, kw_only=True):
    """The body of `/api/embed`; the options say nothing about vectors."""

    input: str | list[str]
    model: str | None = None
    truncate: bool | None = None
    dimensions: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None
    options: Options | None = None
    keep_alive: float | str | None = None


class OldEmbedFields(msgspec.Struct, kw_only=True):
    """The body of `/api/embeddings`."""

    prompt: str
    model: str | None = None
    options: Options | None = None
    keep_alive: float | str | None = None


_fields: Decoder[EmbedFields] = Decoder(EmbedFields)
_old_fields: Decoder[OldEmbedFields] = Decoder(OldEmbedFields)


def ollama_embed_routes(context: ServerContext) -> APIRouter:
    """The router of this family."""
    router = APIRouter(tags=["ollama"])

    async def embed(request: Request) -> Response:
        started_ns = time.monotonic_ns()
        fields = await context.body(request, _fields)
        check_model(context, fields.model)
        asked, _ = await read_inputs(context, fields.input, "input", truncate=fields.truncate is not False)
        check_embeds(context)
        check_dimensions(fields.dimensions, context.frontend.limits.vector_size)
        records = await ask_vectors(context, request, asked, CallFacts("input"))
        return json_response(
            {
                "model": fields.model or context.model.name,
                "embeddings": [unit(vector_of(record), fields.dimensions).tolist() for record in records],
                "total_duration": time.monotonic_ns() - started_ns,
                "load_duration": 0,
                "prompt_eval_count": sum(record.num_prompt for record in records),
            }
        )

    async def embed_one(request: Request) -> Response:
        fields = await context.body(request, _old_fields)
        check_model(context, fields.model)
        asked, _ = await read_inputs(context, fields.prompt, "prompt", truncate=True)
        check_embeds(context)
        records = await ask_vectors(context, request, asked, CallFacts("prompt"))
        return json_response({"embedding": vector_of(records[0]).tolist()})

    router.add_api_route("/api/embed", embed, methods=["POST"], summary="Vectors for texts, for Ollama's clients")
    router.add_api_route("/api/embeddings", embed_one, methods=["POST"], summary="One vector, for Ollama's older clients")
    return router
