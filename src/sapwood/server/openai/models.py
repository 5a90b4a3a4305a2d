"""`/v1/models`: the one model that is served. Answers in every state of the server, so that clients can list while it is busy."""

from __future__ import annotations

import time

from fastapi import APIRouter, Response

from sapwood.server.context import ServerContext
from sapwood.server.openai.replies import ModelCard, ModelList
from sapwood.server.sse import json_response


def model_routes(context: ServerContext) -> APIRouter:
    """The router of this family."""
    router = APIRouter(tags=["openai"])
    created = int(time.time())

    def card() -> ModelCard:
        limit = context.frontend.limits.context_len
        return ModelCard(id=context.model.name, created=created, root=context.model.path, max_model_len=limit)

    async def models() -> Response:
        return json_response(ModelList(data=[card()]))

    async def model(name: str) -> Response:
        context.check_model(name)
        return json_response(card())

    router.add_api_route("/v1/models", models, methods=["GET"], summary="The models that are served")
    router.add_api_route("/v1/models/{name:path}", model, methods=["GET"], summary="One model")
    return router
