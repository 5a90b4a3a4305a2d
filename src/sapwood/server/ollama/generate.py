"""`/api/generate`, whole and streamed.

Turns a prompt, with a system text or raw, into ids; runs nothing. Invariant: a prompt that is not raw goes through the model's
chat template, if it has one, as the only turn; with a suffix it is what is before a gap.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from sapwood.errors import InvalidRequest
from sapwood.server.answers import Reading
from sapwood.server.body import Decoder
from sapwood.server.context import ServerContext
from sapwood.server.ollama.call import Part, answer, answer_loaded, read_call
from sapwood.server.ollama.schema import GenerateFields
from sapwood.server.openai.prompt import ChatPrompt, chat_prompt, check_messages
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
        if fields.suffix:
            return await answer(context, request, call.with_stops(context.fim().end_ids), await _fim_ids(context, fields))
        if fields.raw or context.model.render_chat is None:
            return await answer(context, request, call, await _raw_ids(context, fields))
        prompt = await _chat_prompt(context, fields, call.variables)
        return await answer(context, request, call, prompt.token_ids, Reading(context.model.output, prompt_end=prompt.end))

    router.add_api_route("/api/generate", generate, methods=["POST"], summary="Complete a prompt, for Ollama's clients")
    return router


def _content(part: Part) -> dict[str, Any]:
    return {"response": part.text, **({"thinking": part.thinking} if part.thinking else {})}


async def _fim_ids(context: ServerContext, fields: GenerateFields) -> list[int]:
    """A prompt with a gap before the suffix."""
    before, after = fields.prompt or "", fields.suffix or ""
    if fields.system or fields.raw:
        name = "system" if fields.system else "raw"
        raise InvalidRequest(f"{name} does not go with suffix; leave out one of them", param=name)
    context.check_texts([len(before) + len(after)], None, "prompt")
    return await context.encode(context.fim().pieces(before, after), add_special=True, name="prompt")


async def _raw_ids(context: ServerContext, fields: GenerateFields) -> list[int]:
    prompt = fields.prompt or ""
    if fields.system:
        raise InvalidRequest("system goes with a chat template, not with a raw prompt; put it into the prompt", param="system")
    context.check_texts([len(prompt)], None, "prompt")
    return await context.encode([(prompt, True)], add_special=True, name="prompt")


async def _chat_prompt(context: ServerContext, fields: GenerateFields, variables: dict[str, Any]) -> ChatPrompt:
    system = [Message(role="system", content=fields.system)] if fields.system else []
    messages = [*system, Message(role="user", content=fields.prompt or "")]
    check_messages(context, messages, None)
    return await chat_prompt(context, messages, ChatOptions(variables=variables))
