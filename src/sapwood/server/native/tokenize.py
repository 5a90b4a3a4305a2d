"""Text to ids and back, as the model sees it.

Knows the tokenizer's seam; runs nothing. Invariant: `/tokenize` gives exactly the ids that `/generate` (for text) and chat
completions (for messages) would run.
"""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response

from sapwood.errors import InvalidRequest
from sapwood.server.body import Decoder, as_list
from sapwood.server.context import ServerContext
from sapwood.server.native.schema import DetokenizeFields
from sapwood.server.openai.prompt import chat_options, chat_prompt_ids, check_messages
from sapwood.server.openai.schema import TokenizeFields
from sapwood.server.sse import json_response
from sapwood.server.tooling import openai_tool_use

MAX_CHARS = 4_000_000
"""Of all texts of a call: what takes a second or two."""
MAX_TEXTS = 10_000
_tokenize_fields: Decoder[TokenizeFields] = Decoder(TokenizeFields)
_detokenize_fields: Decoder[DetokenizeFields] = Decoder(DetokenizeFields)


def tokenize_routes(context: ServerContext) -> APIRouter:
    """The router of this family."""
    router = APIRouter(tags=["tokenizer"])

    async def tokenize(request: Request) -> Response:
        fields = await context.body(request, _tokenize_fields)
        context.check_model(fields.model)
        if fields.messages is not None:
            check_messages(context, fields.messages, None)
            tools = openai_tool_use(fields.tools, None, None).definitions
            ids: Any = await chat_prompt_ids(context, fields.messages, chat_options(fields, tools))
            return _answer(context, ids, len(ids))
        text, name = (fields.prompt, "prompt") if fields.prompt is not None else (fields.text, "text")
        if text is None:
            raise InvalidRequest("send prompt (text or a list of texts) or messages", param="prompt")
        if isinstance(text, list) and len(text) > MAX_TEXTS:
            raise InvalidRequest(f"{name} has {len(text)} texts, {MAX_TEXTS} are the limit; send less at a time", param=name)
        num_chars = sum(map(len, as_list(text)))
        if num_chars > MAX_CHARS:
            raise InvalidRequest(f"{name} has {num_chars} characters, {MAX_CHARS} are the limit; send less at a time", param=name)
        add_special = fields.add_special_tokens is not False
        parse_special = fields.parse_special is not False
        lists = [await context.encode([(one, parse_special)], add_special=add_special, name=name) for one in as_list(text)]
        counts = [len(ids) for ids in lists]
        return _answer(context, lists, counts) if isinstance(text, list) else _answer(context, lists[0], counts[0])

    async def detokenize(request: Request) -> Response:
        fields = await context.body(request, _detokenize_fields)
        context.check_model(fields.model)
        tokens = fields.tokens if fields.tokens is not None else fields.input_ids
        if tokens is None:
            raise InvalidRequest("send tokens: a list of ids, or a list of lists of ids", param="tokens")
        is_batch = bool(tokens) and all(isinstance(item, list) for item in tokens)
        lists: list[Any] = tokens if is_batch else [tokens]
        for ids in lists:
            _check(ids, context.model.vocabulary.vocab_size)
        skip = fields.skip_special_tokens is not False
        texts = [await asyncio.to_thread(context.model.vocabulary.decode, ids, skip_special_tokens=skip) for ids in lists]
        value = texts if is_batch else texts[0]
        return json_response({"text": value, "prompt": value})

    for path in ("/tokenize", "/v1/tokenize"):
        router.add_api_route(path, tokenize, methods=["POST"], summary="Text to ids", include_in_schema=path == "/tokenize")
    for path in ("/detokenize", "/v1/detokenize"):
        router.add_api_route(path, detokenize, methods=["POST"], summary="Ids to text", include_in_schema=path == "/detokenize")
    return router


def _answer(context: ServerContext, tokens: Any, count: Any) -> Response:
    return json_response({"tokens": tokens, "count": count, "max_model_len": context.frontend.limits.context_len})


def _check(ids: list[Any], vocab_size: int) -> None:
    for token_id in ids:
        if not isinstance(token_id, int) or not 0 <= token_id < vocab_size:
            raise InvalidRequest(
                f"tokens: {token_id!r:.40} is not an id of the vocabulary (0 to {vocab_size - 1})", param="tokens"
            )
