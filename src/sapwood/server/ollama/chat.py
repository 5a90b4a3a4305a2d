"""`/api/chat`, whole and streamed.

Turns the dialect's messages and tools into the chat's; runs nothing. Invariant: what a message holds that cannot be rendered is
refused by name.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from sapwood.errors import InvalidRequest
from sapwood.server.answers import Reading
from sapwood.server.body import Decoder
from sapwood.server.context import ServerContext
from sapwood.server.ollama.call import Part, answer, answer_loaded, read_call
from sapwood.server.ollama.schema import ChatFields, ChatMessage
from sapwood.server.openai.prompt import chat_prompt, check_messages
from sapwood.server.openai.schema import Message
from sapwood.server.tooling import openai_tool_use
from sapwood.tokenizer.chat import ChatOptions

_fields: Decoder[ChatFields] = Decoder(ChatFields)


def ollama_chat_routes(context: ServerContext) -> APIRouter:
    """The router of this family."""
    router = APIRouter(tags=["ollama"])

    async def chat(request: Request) -> Response:
        call, data = await read_call(context, request, _content, "messages")
        fields = _fields.decode(data)
        given = fields.messages
        if not given:
            return answer_loaded(call)
        messages = [_message(message, index) for index, message in enumerate(given)]
        check_messages(context, messages, None)
        is_begun = messages[-1].role == "assistant"
        tool_use = openai_tool_use(fields.tools, None, None)
        options = ChatOptions(tools=tool_use.definitions, continue_final_message=is_begun, variables=call.variables)
        prompt = await chat_prompt(context, messages, options)
        reading = Reading(context.model.output, tool_use, prompt.end, wanted=call.params.constraint)
        return await answer(context, request, call, prompt.token_ids, reading)

    router.add_api_route("/api/chat", chat, methods=["POST"], summary="Answer a chat, for Ollama's clients")
    return router


def _content(part: Part) -> dict[str, Any]:
    more: dict[str, Any] = {"thinking": part.thinking} if part.thinking else {}
    more |= {"tool_calls": list(part.calls)} if part.calls else {}
    return {"message": {"role": "assistant", "content": part.text, **more}}


def _message(message: ChatMessage, index: int) -> Message:
    if message.images:
        name = f"messages[{index}].images"
        raise InvalidRequest(f"{name} are not supported by this server; leave them out", param=name)
    return Message(
        role=message.role,
        content=message.content or "",
        name=message.tool_name,
        tool_calls=message.tool_calls,
        tool_call_id=message.tool_call_id,
        reasoning_content=message.thinking,
    )
