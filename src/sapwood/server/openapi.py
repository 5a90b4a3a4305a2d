"""Body schemas for the OpenAPI page, made from the same msgspec types that decode the bodies.

Touches only the description that FastAPI makes of its routes. Invariant: a schema is never written by hand.
"""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from sapwood.server.anthropic.schema import AnswerFields, PromptFields
from sapwood.server.native.encode import EncodeFields
from sapwood.server.native.schema import AbortFields, DetokenizeFields, GenerateFields, ParseCallFields, SeparateReasoningFields
from sapwood.server.native.score import RankingFields, RerankFields, ScoreFields
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
    "/abort_request": (AbortFields,),
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


def describe(app: FastAPI) -> None:
    """Let `app` describe its bodies at /openapi.json."""

    def make() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _with_bodies(get_openapi(title=app.title, version=app.version, routes=app.routes))
        return app.openapi_schema

    app.openapi = make  # type: ignore[method-assign]


def _with_bodies(page: dict[str, Any]) -> dict[str, Any]:
    kinds = {kind for group in BODIES.values() for kind in group}
    references, components = msgspec.json.schema_components(sorted(kinds, key=str), ref_template=_TEMPLATE)
    by_kind = dict(zip(sorted(kinds, key=str), references, strict=True))
    page.setdefault("components", {}).setdefault("schemas", {}).update(components)
    for path, group in BODIES.items():
        parts = [by_kind[kind] for kind in group]
        schema = parts[0] if len(parts) == 1 else {"allOf": parts}
        for operation in page["paths"][path].values():
            operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return page
