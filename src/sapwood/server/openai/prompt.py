"""Chat messages to the ids of a prompt.

Knows message shapes and the chat template's seam. Invariant: what a user writes stays text; control tokens come from the template
alone, and rendering and tokenizing happen off the event loop.
"""

from __future__ import annotations

import asyncio
from typing import Any

from sapwood.errors import InvalidRequest
from sapwood.server.context import ServerContext
from sapwood.server.openai.schema import ChatFields, Message, TokenizeFields
from sapwood.tokenizer.chat import ChatOptions


def chat_options(fields: ChatFields | TokenizeFields) -> ChatOptions:
    """What the body says about its prompt besides the messages."""
    return ChatOptions(
        add_generation_prompt=fields.add_generation_prompt is not False,
        continue_final_message=bool(fields.continue_final_message),
        variables=fields.chat_template_kwargs or {},
    )


def check_messages(context: ServerContext, messages: list[Message], n: int | None) -> None:
    """Refuse before any work more messages, or longer ones, than any prompt can hold."""
    context.check_texts([sum(map(_num_chars, messages))], n, "messages")
    most = context.frontend.limits.max_request_tokens
    if len(messages) > most:  # a message has at least one token
        raise InvalidRequest(f"messages has {len(messages)} entries, but a request may hold {most} tokens", param="messages")


async def chat_prompt_ids(context: ServerContext, messages: list[Message], options: ChatOptions) -> list[int]:
    """The ids that the model sees for `messages`."""
    render = context.model.render_chat
    if render is None:
        raise InvalidRequest("this model has no chat template; use /v1/completions or /generate", param="messages")
    if not messages:
        raise InvalidRequest("messages must not be empty; send at least one message", param="messages")
    plain = [_as_plain(message, index) for index, message in enumerate(messages)]
    pieces = await asyncio.to_thread(render, plain, options)
    return await context.encode(pieces, add_special=False, name="messages")


def _as_plain(message: Message, index: int) -> dict[str, Any]:
    """The message as templates expect it; raises InvalidRequest for what cannot be rendered."""
    where = f"messages[{index}]"
    if message.tool_calls or message.role in ("tool", "function"):
        what = "tool_calls" if message.tool_calls else "role"
        raise InvalidRequest(
            f"{where}.{what}: tool messages are not supported by this server; leave them out", param=f"{where}.{what}"
        )
    if message.content is None and message.role != "assistant":
        raise InvalidRequest(f"{where}.content must be text", param=f"{where}.content")
    role = "system" if message.role == "developer" else message.role  # templates know the older name
    plain = {"role": role, "content": _content(message, where)}
    return plain if message.name is None else {**plain, "name": message.name}


def _num_chars(message: Message) -> int:
    content = message.content or ""
    return len(content) if isinstance(content, str) else sum(len(part.text or "") for part in content)


def _content(message: Message, where: str) -> str | list[dict[str, str]]:
    if not isinstance(message.content, list):
        return message.content or ""
    parts = []
    for index, part in enumerate(message.content):
        if part.type not in ("text", "input_text") or part.text is None:
            name = f"{where}.content[{index}]"
            raise InvalidRequest(f"{name}: only parts of type text are supported by this server", param=name)
        parts.append({"type": "text", "text": part.text})
    return parts
