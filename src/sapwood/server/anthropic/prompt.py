"""Anthropic's system text and turns to the ids of a prompt.

Knows the dialect's message shapes; rendering and tokenizing are the chat's own. Invariant: what cannot be rendered is refused by
the name of its field, before any work.
"""

from __future__ import annotations

from typing import Any

from sapwood.errors import InvalidRequest
from sapwood.server.anthropic.schema import AnthropicRefusals, Block, InputMessage, PromptFields
from sapwood.server.body import Decoder, refuse
from sapwood.server.context import ServerContext
from sapwood.server.openai.prompt import chat_prompt_ids, check_messages
from sapwood.server.openai.schema import Message, Part
from sapwood.tokenizer.chat import ChatOptions

_fields: Decoder[PromptFields] = Decoder(PromptFields)
_refusals = Decoder(AnthropicRefusals)


async def prompt_ids(context: ServerContext, data: bytes) -> list[int]:
    """The ids that the model sees for the body `data`; a last turn of the assistant is left open, to be continued."""
    fields = _fields.decode(data)
    context.check_model(fields.model)
    refuse(_refusals.decode(data))
    if fields.output_config is not None:
        _check_switch(fields.output_config.format, "output_config.format", "text")
    _check_switch(fields.thinking, "thinking", "disabled")
    _check_switch(fields.tool_choice, "tool_choice", "none")
    if not fields.messages:
        raise InvalidRequest("messages must not be empty; send at least one message", param="messages")
    messages = [*_system(fields.system), *_turns(fields.messages)]
    check_messages(context, messages, None)
    is_begun = fields.messages[-1].role == "assistant"
    return await chat_prompt_ids(context, messages, ChatOptions(continue_final_message=is_begun))


def _check_switch(value: Any, name: str, off: str) -> None:
    """Refuse an option that is not supported, unless it says that it is off."""
    if value is not None and (not isinstance(value, dict) or value.get("type") != off):
        raise InvalidRequest(f"{name} is not supported by this server; leave it out", param=name)


def _system(system: str | list[Block] | None) -> list[Message]:
    return [Message(role="system", content=_content(system, "system"))] if system else []


def _turns(messages: list[InputMessage]) -> list[Message]:
    """The turns, those of one speaker in a row made one, as the dialect has it."""
    turns: list[Message] = []
    for index, message in enumerate(messages):
        content = _content(message.content, f"messages[{index}].content")
        if turns and turns[-1].role == message.role:
            turns[-1] = Message(role=message.role, content=[*_parts(turns[-1].content), *_parts(content)])
        else:
            turns.append(Message(role=message.role, content=content))
    return turns


def _parts(content: str | list[Part] | None) -> list[Part]:
    return [Part(type="text", text=content)] if isinstance(content, str) else content or []


def _content(content: str | list[Block], where: str) -> str | list[Part]:
    if isinstance(content, str):
        return content
    for index, block in enumerate(content):
        if block.type != "text":
            name = f"{where}[{index}].type"
            raise InvalidRequest(f"{name}: only blocks of type text are supported by this server", param=name)
        if block.text is None:
            name = f"{where}[{index}].text"
            raise InvalidRequest(f"{name} is missing; send the block's text", param=name)
    return [Part(type="text", text=block.text) for block in content]
