"""What this server is: the model, the settings, the state of the worker. Secrets never appear."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Response

from sapwood.core.pooling import Task
from sapwood.server.context import ServerContext
from sapwood.server.sse import json_response

SECRETS = ("api_key", "admin_api_key", "api_key_file", "tls")


def info_routes(context: ServerContext, version: str) -> APIRouter:
    """The router of this family."""
    router = APIRouter(tags=["info"])
    frontend, model, settings = context.frontend, context.model, context.settings

    async def model_info() -> Response:
        return json_response(
            {
                "model_path": model.path,
                "served_model_name": model.name,
                "is_generation": frontend.limits.task is Task.GENERATE,
                "task": frontend.limits.task.value,
                "vector_size": frontend.limits.vector_size,
                "labels": list(frontend.limits.labels),
                "has_chat_template": model.render_chat is not None,
                "vocab_size": frontend.limits.vocab_size,
                "max_model_len": frontend.limits.context_len,
                "weight_version": frontend.steering.weight_version,
                **dict(model.facts),
            }
        )

    async def server_info() -> Response:
        await frontend.refresh_stats()
        shown = {name: value for name, value in msgspec.to_builtins(settings).items() if name not in SECRETS}
        return json_response(
            {
                **shown,
                "engine": "sapwood",
                "version": version,
                "status": frontend.state.value,
                "num_open_requests": frontend.num_open,
                "max_total_num_tokens": frontend.limits.pool_tokens,
                "context_length": frontend.limits.context_len,
                "internal_states": [msgspec.to_builtins(frontend.stats)],
                "dropped": {
                    "stale": frontend.dropped.stale,
                    "late": frontend.dropped.late,
                    "duplicate": frontend.dropped.duplicate,
                    "gap": frontend.dropped.gap,
                },
                "processes": {name: {"pid": ready.pid, **ready.info} for name, ready in frontend.processes.items()},
            }
        )

    async def tokenizer_info() -> Response:
        size, length = frontend.limits.vocab_size, frontend.limits.context_len
        return json_response({**dict(model.tokenizer_facts), "vocab_size": size, "model_max_length": length})

    router.add_api_route("/tokenizer_info", tokenizer_info, methods=["GET"], summary="The tokenizer, as evaluators ask for it")
    for path in ("/model_info", "/get_model_info"):
        router.add_api_route(path, model_info, methods=["GET"], summary="The model", include_in_schema=path == "/model_info")
    for path in ("/server_info", "/get_server_info"):
        router.add_api_route(path, server_info, methods=["GET"], summary="The server", include_in_schema=path == "/server_info")
    return router
