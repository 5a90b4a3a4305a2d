"""What Ollama's clients ask about models: the one that is served is the one that is there, loaded for ever.

Holds no state. Invariant: nothing here changes anything, and a file's size is the only thing read.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request, Response

from sapwood.core.pooling import Task
from sapwood.errors import InvalidRequest
from sapwood.parsing.formats import NONE
from sapwood.server.backend import ServedModel
from sapwood.server.body import Decoder
from sapwood.server.context import ServerContext
from sapwood.server.ollama.call import check_model
from sapwood.server.ollama.schema import Details, ModelFields
from sapwood.server.sse import json_response

_fields: Decoder[ModelFields] = Decoder(ModelFields)
API_VERSION = "0.13.0"
"""Ollama's version whose routes these are: clients refuse to talk to older ones, whoever answers."""
ARCHITECTURE = "sapwood"
NEVER = "9999-12-31T23:59:59Z"


def ollama_model_routes(context: ServerContext, version: str) -> APIRouter:
    """The router of this family."""
    router = APIRouter(tags=["ollama"])
    model = context.model
    since = datetime.now(UTC).isoformat().replace("+00:00", "Z")

    async def tags() -> Response:
        return json_response({"models": [{**_card(context), "modified_at": since}]})

    async def running() -> Response:
        length = context.frontend.limits.context_len
        loaded = {**_card(context), "expires_at": NEVER, "size_vram": 0, "context_length": length}
        return json_response({"models": [loaded]})

    async def show(request: Request) -> Response:
        fields = await context.body(request, _fields)
        name = fields.model or fields.name
        if not name:
            raise InvalidRequest("model is missing; send the model's name", param="model")
        check_model(context, name)
        facts = dict(model.tokenizer_facts)
        return json_response(
            {
                "modelfile": f"FROM {model.path}",
                "parameters": "\n".join(f"{name} {value}" for name, value in model.sampling_defaults),
                "template": facts.get("chat_template") or "",
                "details": _details(context),
                "model_info": {
                    "general.architecture": ARCHITECTURE,
                    "general.name": model.name,
                    "general.basename": model.name,
                    f"{ARCHITECTURE}.context_length": context.frontend.limits.context_len,
                    "general.context_length": context.frontend.limits.context_len,
                    "general.vocab_size": context.frontend.limits.vocab_size,
                },
                "capabilities": _capabilities(model, context.frontend.limits.task),
                "modified_at": since,
            }
        )

    async def tell_version() -> Response:
        return json_response({"version": API_VERSION, "sapwood": version})

    router.add_api_route("/api/tags", tags, methods=["GET"], summary="The models, for Ollama's clients")
    router.add_api_route("/api/ps", running, methods=["GET"], summary="The loaded models, for Ollama's clients")
    router.add_api_route("/api/show", show, methods=["POST"], summary="One model, for Ollama's clients")
    router.add_api_route("/api/version", tell_version, methods=["GET"], summary="The version, for Ollama's clients")
    return router


def _capabilities(model: ServedModel, task: Task) -> list[str]:
    if task is not Task.GENERATE:
        return ["embedding"]
    can = {"insert": model.fim is not None, "tools": model.reads_tools, "thinking": model.output.reasoning_format != NONE}
    return ["completion", *(name for name, is_so in can.items() if is_so)]


def _card(context: ServerContext) -> dict[str, Any]:
    """The model as lists have it; the digest tells one served name and file from another."""
    model = context.model
    digest = hashlib.sha256(f"{model.name}\0{model.path}\0{model.num_bytes}".encode()).hexdigest()
    return {"name": model.name, "model": model.name, "size": model.num_bytes, "digest": digest, "details": _details(context)}


def _details(context: ServerContext) -> Details:
    return Details(format=context.model.format)
