"""Body schemas for the OpenAPI page, made from the same msgspec types that decode the bodies.

Touches only the description that FastAPI makes of its routes. Invariant: a schema is never written by hand.
"""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from sapwood.server.anthropic.schema import AnswerFields, PromptFields
from sapwood.server.examples import QUERIES, RANGES, Examples, examples
from sapwood.server.failures import ANTHROPIC_PATH, OLLAMA_PATH, ErrorBody
from sapwood.server.native.control import MemoryFields, PauseFields, ProfileFields, UpdateWeightsFields
from sapwood.server.native.encode import EncodeFields
from sapwood.server.native.schema import AbortFields, DetokenizeFields, GenerateFields, ParseCallFields, SeparateReasoningFields
from sapwood.server.native.score import RankingFields, RerankFields, ScoreFields
from sapwood.server.native.sessions import CloseFields, OpenFields
from sapwood.server.ollama.embed import EmbedFields, OldEmbedFields
from sapwood.server.ollama.schema import CallFields as OllamaCallFields
from sapwood.server.ollama.schema import ChatFields as OllamaChatFields
from sapwood.server.ollama.schema import GenerateFields as OllamaGenerateFields
from sapwood.server.ollama.schema import ModelFields
from sapwood.server.openai.embeddings import ClassifyFields, EmbeddingFields
from sapwood.server.openai.responses_schema import PromptFields as ResponsePromptFields
from sapwood.server.openai.responses_schema import ResponseFields
from sapwood.server.openai.schema import CallFields, ChatFields, CompletionFields, TokenizeFields
from sapwood.server.openai.schema import SamplingFields as OpenAISamplingFields

BODIES: dict[str, tuple[type[msgspec.Struct], ...]] = {
    "/generate": (GenerateFields,),
    "/open_session": (OpenFields,),
    "/close_session": (CloseFields,),
    "/abort_request": (AbortFields,),
    "/pause_generation": (PauseFields,),
    "/update_weights_from_disk": (UpdateWeightsFields,),
    "/release_memory_occupation": (MemoryFields,),
    "/resume_memory_occupation": (MemoryFields,),
    "/start_profile": (ProfileFields,),
    "/tokenize": (TokenizeFields,),
    "/detokenize": (DetokenizeFields,),
    "/parse_function_call": (ParseCallFields,),
    "/separate_reasoning": (SeparateReasoningFields,),
    "/v1/chat/completions": (ChatFields, CallFields, OpenAISamplingFields),
    "/v1/completions": (CompletionFields, CallFields, OpenAISamplingFields),
    "/v1/responses": (ResponsePromptFields, ResponseFields),
    "/v1/responses/input_tokens": (ResponsePromptFields,),
    "/v1/messages": (PromptFields, AnswerFields),
    "/v1/messages/count_tokens": (PromptFields,),
    "/api/chat": (OllamaChatFields, OllamaCallFields),
    "/api/generate": (OllamaGenerateFields, OllamaCallFields),
    "/api/show": (ModelFields,),
    "/api/embed": (EmbedFields,),
    "/api/embeddings": (OldEmbedFields,),
    "/v1/embeddings": (EmbeddingFields,),
    "/v1/classify": (ClassifyFields,),
    "/encode": (EncodeFields,),
    "/classify": (EncodeFields,),
    "/v1/score": (ScoreFields,),
    "/v1/rerank": (RerankFields,),
    "/v1/ranking": (RankingFields,),
}
_TEMPLATE = "#/components/schemas/{name}"
_FAILURES = {
    "400": "What was asked for cannot be done; the message names the field.",
    "401": "The key is missing or wrong.",
    "429": "Too many requests are unfinished; try again after retry-after.",
    "503": "The server starts, drains or has lost its engine; try again after retry-after.",
}


def describe(app: FastAPI, model: str) -> None:
    """Let `app` describe its bodies at /openapi.json, with examples for the served `model`."""

    def make() -> dict[str, Any]:
        if app.openapi_schema is None:
            page = get_openapi(title=app.title, version=app.version, routes=app.routes)
            app.openapi_schema = _with_bodies(page, examples(model))
        return app.openapi_schema

    app.openapi = make  # type: ignore[method-assign]


def _with_bodies(page: dict[str, Any], shown: dict[str, Examples]) -> dict[str, Any]:
    kinds = {kind for group in BODIES.values() for kind in group}
    references, components = msgspec.json.schema_components(sorted(kinds, key=str), ref_template=_TEMPLATE)
    by_kind = dict(zip(sorted(kinds, key=str), references, strict=True))
    components |= msgspec.json.schema_components([ErrorBody], ref_template=_TEMPLATE)[1]
    for component in components.values():
        _add_ranges(component.get("properties", {}))
    page.setdefault("components", {}).setdefault("schemas", {}).update(components)
    for path, group in BODIES.items():
        parts = [by_kind[kind] for kind in group]
        schema = parts[0] if len(parts) == 1 else {"allOf": parts}
        for operation in page["paths"][path].values():
            content = {"schema": schema, "examples": {name: {"value": body} for name, body in shown.get(path, {}).items()}}
            operation["requestBody"] = {"required": True, "content": {"application/json": content}}
    for path, operations in page["paths"].items():
        for operation in operations.values():
            operation.setdefault("parameters", []).extend(QUERIES.get(path, ()))
            _add_failures(path, operation["responses"])
    return page


def _add_ranges(properties: dict[str, Any]) -> None:
    """Say what the numbers of a struct may be, in the branch of the schema that is a number."""
    for name, limits in RANGES.items():
        schema = properties.get(name, {})
        for branch in schema.get("anyOf", [schema]):
            if branch.get("type") in ("number", "integer"):
                branch.update(limits)


def _add_failures(path: str, responses: dict[str, Any]) -> None:
    """What goes wrong has one shape in each dialect; OpenAI's is described, the others name theirs."""
    responses.pop("422", None)
    if path.startswith(OLLAMA_PATH):
        schema: dict[str, Any] = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
    elif path.startswith(ANTHROPIC_PATH):
        schema = {"type": "object", "properties": {"type": {"const": "error"}, "error": {"type": "object"}}}
    else:
        schema = {"$ref": _TEMPLATE.format(name="ErrorBody")}
    described = {"content": {"application/json": {"schema": schema}}}
    for status, meaning in _FAILURES.items():
        responses[status] = {"description": meaning, **described}
