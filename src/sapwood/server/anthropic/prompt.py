"""Anthropic's system text, turns and tools to the ids of a prompt.

Knows the dialect's message shapes; rendering and tokenizing are the chat's own. Invariant: what cannot be rendered is refused by
the name of its field, before any work.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sapwood.errors import InvalidRequest
from sapwood.server.anthropic.schema import AnthropicRefusals, Block, InputMessage, PromptFields, Tool, ToolChoice
from sapwood.server.body import Decoder, refuse
from sapwood.server.context import ServerContext
from sapwood.server.openai.prompt import ChatPrompt, chat_prompt, check_messages
from sapwood.server.openai.schema import Message, Part
from sapwood.server.tooling import Choice, Function, ToolUse, make_function, make_tool_use
from sapwood.tokenizer.chat import ChatOptions

_fields: Decoder[PromptFields] = Decoder(PromptFields)
_refusals = Decoder(AnthropicRefusals)
_CHOICES = {"auto": "auto", "any": "required", "tool": "named", "none": "none"}


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model sees, and the tools that it may call."""

    chat: ChatPrompt
    tool_use: ToolUse


async def read_prompt(context: ServerContext, data: bytes) -> Prompt:
    """The prompt of the body `data`; a last turn of the assistant is left open, to be continued."""
    fields = _fields.decode(data)
    context.check_model(fields.model)
    refuse(_refusals.decode(data))
    if not fields.messages:
        raise InvalidRequest("messages must not be empty; send at least one message", param="messages")
    tool_use = _tool_use(fields.tools or [], fields.tool_choice)
    turns = _turns(fields.messages)
    if not turns:
        raise InvalidRequest("messages hold no content; send at least one block", param="messages")
    messages = [*_system(fields.system), *turns]
    check_messages(context, messages, None)
    is_begun = messages[-1].role == "assistant"
    options = ChatOptions(tools=tool_use.definitions, continue_final_message=is_begun, variables=_variables(fields))
    return Prompt(await chat_prompt(context, messages, options), tool_use)


def _variables(fields: PromptFields) -> dict[str, Any]:
    """Whether to think, for templates that can be told. It is a leave to think, which a model that never does makes no use of."""
    thinks = fields.thinking is not None and fields.thinking.type != "disabled"
    return {"enable_thinking": thinks, "thinking": thinks}


def _tool_use(tools: list[Tool], choice: ToolChoice | None) -> ToolUse:
    functions = [_function(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    if choice is None:
        return make_tool_use(functions, Choice())
    return make_tool_use(functions, Choice(_CHOICES[choice.type], choice.name or ""), not choice.disable_parallel_tool_use)


def _function(tool: Tool, where: str) -> Function:
    if tool.type not in (None, "custom"):
        raise InvalidRequest(f"{where}.type: only custom tools are supported by this server", param=f"{where}.type")
    return make_function(where, tool.name, tool.description, tool.input_schema, tool.strict)


def _system(system: str | list[Block] | None) -> list[Message]:
    if not system:
        return []
    return [Message(role="system", content=system if isinstance(system, str) else _texts(system, "system"))]


def _turns(messages: list[InputMessage]) -> list[Message]:
    """The turns, those of one speaker in a row made one, as the dialect has it; results of tools are messages of their own."""
    turns: list[Message] = []
    for index, message in enumerate(messages):
        where = f"messages[{index}].content"
        for turn in _assistant(message, where) if message.role == "assistant" else _user(message, where):
            if turns and turns[-1].role == turn.role != "tool" and turn.role != "system":
                turns[-1] = _joined(turns[-1], turn)
            else:
                turns.append(turn)
    return turns


def _joined(first: Message, second: Message) -> Message:
    calls = [*(first.tool_calls or []), *(second.tool_calls or [])]
    content = [*_parts(first.content), *_parts(second.content)]
    reasoning = "\n".join(filter(None, (first.reasoning_content, second.reasoning_content)))
    return Message(role=first.role, content=content, tool_calls=calls or None, reasoning_content=reasoning or None)


def _parts(content: str | list[Part] | None) -> list[Part]:
    return [Part(type="text", text=content)] if isinstance(content, str) else content or []


def _user(message: InputMessage, where: str) -> Iterable[Message]:
    """The results of tools, then what the user says."""
    if isinstance(message.content, str):
        yield Message(role="user", content=message.content)
        return
    texts = []
    for index, block in enumerate(message.content):
        if block.type == "tool_result":
            yield _result(block, f"{where}[{index}]")
        else:
            texts += _texts([block], where, index)
    if texts:
        yield Message(role="user", content=texts)


def _result(block: Block, where: str) -> Message:
    if block.tool_use_id is None:
        raise InvalidRequest(f"{where}.tool_use_id is missing; send the id of the call", param=f"{where}.tool_use_id")
    content = block.content
    if isinstance(content, list):
        parts = content
        if not all(isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str) for part in parts):
            raise InvalidRequest(f"{where}.content: only blocks of type text are supported", param=f"{where}.content")
        content = "\n".join(part["text"] for part in parts)
    if content is not None and not isinstance(content, str):
        raise InvalidRequest(f"{where}.content must be text or a list of blocks", param=f"{where}.content")
    text = content or ""
    return Message(role="tool", content=f"Error: {text}" if block.is_error else text, tool_call_id=block.tool_use_id)


def _assistant(message: InputMessage, where: str) -> Iterable[Message]:
    if isinstance(message.content, str):
        yield Message(role="assistant", content=message.content)
        return
    texts: list[Part] = []
    calls: list[Any] = []
    thoughts: list[str] = []
    for index, block in enumerate(message.content):
        if block.type == "tool_use":
            calls.append(_call(block, f"{where}[{index}]"))
        elif block.type == "thinking":
            thoughts.append(block.thinking or "")
        elif block.type != "redacted_thinking":
            texts += _texts([block], where, index)
    reasoning = "\n".join(filter(None, thoughts)) or None
    yield Message(role="assistant", content=texts, tool_calls=calls or None, reasoning_content=reasoning)


def _call(block: Block, where: str) -> dict[str, Any]:
    if not block.name or not block.id or not isinstance(block.input, dict):
        raise InvalidRequest(f"{where} must have an id, a name and an input object", param=where)
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": json.dumps(block.input)}}


def _texts(blocks: list[Block], where: str, first: int = 0) -> list[Part]:
    for index, block in enumerate(blocks, first):
        if block.type != "text":
            name = f"{where}[{index}].type"
            raise InvalidRequest(f"{name}: blocks of type {block.type[:40]} are not supported here", param=name)
        if block.text is None:
            name = f"{where}[{index}].text"
            raise InvalidRequest(f"{name} is missing; send the block's text", param=name)
    return [Part(type="text", text=block.text) for block in blocks]
