"""`/api/generate`, whole and streamed.

Turns a prompt, with a system text or raw, into ids; runs nothing. Invariant: a prompt that is not raw goes through the model's
chat template, if it has one, as the only turn.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from sapwood.errors import InvalidRequest
from sapwood.server.body import Decoder
from sapwood.server.context import ServerContext
from sapwood.server.ollama.call import answer, answer_loaded, read_call
from sapwood.server.ollama.schema import GenerateFields
from sapwood.server.openai.prompt import chat_prompt_ids, check_messages
from sapwood.server.openai.schema import Message
from sapwood.tokenizer.chat import ChatOptions

_fields: Decoder[GenerateFields] = Decoder(GenerateFields)


def ollama_generate_routes(context: ServerContext) -> APIRouter:
    """The router of this family."""
    router = APIRouter(tags=["ollama"])

    async def generate(request: Request) -> Response:
        call, data = await read_call(context, request, _content, "prompt")
        fields = _fields.decode(data)
        if not (fields.prompt or fields.suffix):
            return answer_loaded(call)
        return await answer(context, request, call, await _prompt_ids(context, fields))

    router.add_api_route("/api/generate", generate, methods=["POST"], summary="Complete a prompt, for Ollama's clients")
    return router


def _content(text: str) -> dict[str, Any]:
    return {"response": text}


async def _prompt_ids(context: ServerContext, fields: GenerateFields) -> list[int]:
    prompt = fields.prompt or ""
    if fields.suffix:
        raise InvalidRequest("suffix is not supported by this server; leave it out", param="suffix")
    if fields.raw or context.model.render_chat is None:
        if fields.system:
            raise InvalidRequest(
                "system goes with a chat template, not with a raw prompt; put it into the prompt", param="system"
            )
        context.check_texts([len(prompt)], None, "prompt")
        return await context.encode([(prompt, True)], add_special=True, name="prompt")
    system = [Message(role="system", content=fields.system)] if fields.system else []
    messages = [*system, Message(role="user", content=prompt)]
    check_messages(context, messages, None)
    return await chat_prompt_ids(context, messages, ChatOptions())
