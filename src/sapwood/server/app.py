"""The HTTP application: routes, guards and error handling put together.

Owns nothing at run time. Invariant: no request gets past the guards, and every failure leaves in the shape of `failures`.
"""

from __future__ import annotations

from importlib import metadata

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from sapwood.errors import InvalidRequest, SapwoodError
from sapwood.server.anthropic.messages import message_routes
from sapwood.server.auth import KeyGuard
from sapwood.server.context import ServerContext
from sapwood.server.edge import Edge
from sapwood.server.failures import MethodNotAllowed, RouteNotFound, error_response
from sapwood.server.health import health_routes
from sapwood.server.keys import read_keys
from sapwood.server.metrics import metrics_routes
from sapwood.server.native.admin import admin_routes
from sapwood.server.native.control import control_routes
from sapwood.server.native.encode import encode_routes
from sapwood.server.native.generate import generate_routes
from sapwood.server.native.info import info_routes
from sapwood.server.native.loads import load_routes
from sapwood.server.native.parse import parse_routes
from sapwood.server.native.score import score_routes
from sapwood.server.native.sessions import session_routes
from sapwood.server.native.tokenize import tokenize_routes
from sapwood.server.ollama.chat import ollama_chat_routes
from sapwood.server.ollama.embed import ollama_embed_routes
from sapwood.server.ollama.generate import ollama_generate_routes
from sapwood.server.ollama.models import ollama_model_routes
from sapwood.server.openai.chat import chat_routes
from sapwood.server.openai.completions import completion_routes
from sapwood.server.openai.embeddings import embedding_routes
from sapwood.server.openai.models import model_routes
from sapwood.server.openai.responses import response_routes
from sapwood.server.openapi import describe
from sapwood.server.rates import RateGuard, Rates
from sapwood.server.webpage import page_routes

WITHOUT_VERSION = ("/chat/completions", "/completions", "/embeddings", "/messages", "/models", "/responses")
"""What clients ask for whose base URL lacks /v1."""
FAMILIES = (
    health_routes,
    generate_routes,
    session_routes,
    tokenize_routes,
    admin_routes,
    parse_routes,
    chat_routes,
    completion_routes,
    model_routes,
    response_routes,
    message_routes,
    ollama_chat_routes,
    ollama_generate_routes,
    ollama_embed_routes,
    embedding_routes,
    encode_routes,
    score_routes,
    control_routes,
)


def create_app(context: ServerContext) -> FastAPI:
    """The application over a frontend that the caller feeds."""
    version = metadata.version("sapwood")
    app = FastAPI(title="Sapwood", version=version, redirect_slashes=False)
    for make_routes in FAMILIES:
        app.include_router(make_routes(context))
    app.include_router(info_routes(context, version))
    app.include_router(load_routes(context, version))
    app.include_router(ollama_model_routes(context, version))
    app.include_router(page_routes())
    if context.settings.enable_metrics:
        app.include_router(metrics_routes(context))
    app.add_exception_handler(SapwoodError, _on_sapwood_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    settings = context.settings
    rates = Rates(settings.max_requests_per_minute, settings.max_requests_at_once)
    if rates != Rates():
        app.add_middleware(RateGuard, rates=rates)
    app.add_middleware(KeyGuard, keys=read_keys(settings), host=settings.host)
    app.add_middleware(Edge, metrics=context.frontend.metrics)
    describe(app, context.model.name)
    return app


async def _on_sapwood_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, SapwoodError)
    return error_response(error, request.url.path)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """What the router itself refuses: an unknown path or method."""
    assert isinstance(error, HTTPException)
    path = request.url.path[:200]
    refused: InvalidRequest
    match error.status_code:
        case 404:
            hint = "let the base URL end in /v1" if path.startswith(WITHOUT_VERSION) else "/docs lists the routes"
            refused = RouteNotFound(f"there is no route {path}; {hint}")
        case 405:
            refused = MethodNotAllowed(f"{path} does not take {request.method[:20]}; /docs lists the methods")
        case _:
            refused = InvalidRequest(f"the request to {path} cannot be read; check its headers and body")
    response = error_response(refused, request.url.path)
    response.headers.update(error.headers or {})
    return response
