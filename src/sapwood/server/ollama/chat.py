"""`/api/chat`, whole and streamed.

Turns the dialect's messages into the chat's; runs nothing. Invariant: what a message holds besides text is refused by name.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from sapwood.errors import InvalidRequest
from sapwood.server.body import Decoder
from sapwood.server.context import ServerContext
from sapwood.server.ollama.call import answer, answer_loaded, read_call
from sapwood.server.ollama.schema import ChatFields, ChatMessage
from sapwood.server.openai.prompt import chat_prompt_ids, check_messages
from sapwood.server.openai.schema import Message
from sapwood.tokenizer.chat import ChatOptions

_fields: Decoder[ChatFields] = Decoder(ChatFields)


def ollama_chat_routes(context: ServerContext) -> APIRouter:
    """The router of this family."""
    router = APIRouter(tags=["ollama"])

    async def chat(request: Request) -> Response:
        call, data = await read_call(context, request, _content, "messages")
        given = _fields.decode(data).messages
        if not given:
            return answer_loaded(call)
        messages = [_message(message, index) for index, message in enumerate(given)]
        check_messages(context, messages, None)
        is_begun = messages[-1].role == "assistant"
        ids = await chat_prompt_ids(context, messages, ChatOptions(continue_final_message=is_begun))
        return await answer(context, request, call, ids)

    router.add_api_route("/api/chat", chat, methods=["POST"], summary="Answer a chat, for Ollama's clients")
    return router


def _content(text: str) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": text}}


def _message(message: ChatMessage, index: int) -> Message:
    if message.images:
        name = f"messages[{index}].images"
        raise InvalidRequest(f"{name} are not supported by this server; leave them out", param=name)
    return Message(role=message.role, content=message.content or "", tool_calls=message.tool_calls)
