"""The input of a response, what came before it and its tools, to the prompt that the model sees.

Knows the dialect's items; rendering and tokenizing are the chat's own. Invariant: an item that cannot be rendered is refused by
the name of its field.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import msgspec

from sapwood.errors import InvalidRequest
from sapwood.server.context import ServerContext
from sapwood.server.openai.prompt import ChatPrompt, chat_prompt, check_messages, effort_variables
from sapwood.server.openai.response_store import ResponseStore
from sapwood.server.openai.responses_schema import Item, PromptFields, Tool
from sapwood.server.openai.schema import Message, Part
from sapwood.server.openai.truncation import prompt_that_fits
from sapwood.server.tooling import Function, ToolUse, make_function, make_tool_use, openai_choice
from sapwood.tokenizer.chat import ChatOptions


@dataclass(frozen=True, slots=True)
class ResponsePrompt:
    """What the model sees, the functions that it may call, the new items and those before them."""

    chat: ChatPrompt
    tool_use: ToolUse
    items: list[dict[str, Any]]
    history: list[dict[str, Any]]


async def response_prompt(context: ServerContext, store: ResponseStore, fields: PromptFields) -> ResponsePrompt:
    """The prompt of a body."""
    context.check_model(fields.model)
    history = store.get(fields.previous_response_id, "previous_response_id").context if fields.previous_response_id else []
    given = [Item(role="user", content=fields.input)] if isinstance(fields.input, str) else _referred(store, fields.input or [])
    if not given or fields.input == "":
        raise InvalidRequest("input must not be empty; send a text or a list of items", param="input")
    before = msgspec.convert(history, list[Item])
    messages = [Message(role="system", content=fields.instructions)] if fields.instructions else []
    messages += item_messages([*before, *given], len(before))
    tool_use = _tool_use(fields)
    effort = fields.reasoning.effort if fields.reasoning is not None else None
    options = ChatOptions(tools=tool_use.definitions, variables=effort_variables(effort))
    if fields.truncation == "auto":
        chat = await prompt_that_fits(context, messages, options, fields.max_output_tokens)
    else:
        check_messages(context, messages, None)
        chat = await chat_prompt(context, messages, options)
    return ResponsePrompt(chat, tool_use, [_with_id(item) for item in given], history)


def _referred(store: ResponseStore, items: list[Item]) -> list[Item]:
    """The items, those that only name one of a stored response replaced by it."""
    found = []
    for index, item in enumerate(items):
        if item.type == "item_reference":
            name = f"input[{index}].id"
            item = msgspec.convert(store.find_item(item.id or "", name), Item)
        found.append(item)
    return found


def item_messages(items: list[Item], num_before: int = 0) -> list[Message]:
    """Items as chat messages: reasoning and calls belong to the assistant's message beside them.

    `num_before` items are not the client's own, and do not count in the names of fields.
    """
    messages: list[Message] = []
    reasoning = ""
    for index, item in enumerate(items):
        where = f"input[{index - num_before}]"
        if item.type == "reasoning":
            parts = item.content if isinstance(item.content, list) else item.summary
            reasoning = "".join(part.text or "" for part in parts or [])
            continue
        message = _message(item, where)
        if message.role == "assistant":
            message.reasoning_content, reasoning = reasoning or None, ""
            if message.tool_calls and messages and messages[-1].role == "assistant":
                messages[-1].tool_calls = [*(messages[-1].tool_calls or []), *message.tool_calls]
                continue
        messages.append(message)
    return messages


def _message(item: Item, where: str) -> Message:
    match item.type:
        case "message":
            if item.role is None:
                raise InvalidRequest(f"{where}.role is missing; send user, assistant, system or developer", param=f"{where}.role")
            return Message(role=item.role, content=item.content)
        case "function_call":
            if not item.call_id or not item.name:
                raise InvalidRequest(f"{where} must have a call_id and a name", param=where)
            function = {"name": item.name, "arguments": item.arguments or "{}"}
            return Message(role="assistant", tool_calls=[{"id": item.call_id, "type": "function", "function": function}])
        case "function_call_output":
            if not item.call_id:
                raise InvalidRequest(f"{where}.call_id is missing; send the id of the call", param=f"{where}.call_id")
            return Message(role="tool", tool_call_id=item.call_id, content=_output(item.output, where))
    raise InvalidRequest(f"{where}.type: items of type {item.type[:40]!r} are not supported", param=f"{where}.type")


def _output(output: Any, where: str) -> str | list[Part]:
    if isinstance(output, str):
        return output
    try:
        return msgspec.convert(output, list[Part])
    except msgspec.ValidationError:
        raise InvalidRequest(f"{where}.output must be text or a list of parts", param=f"{where}.output") from None


def _tool_use(fields: PromptFields) -> ToolUse:
    functions = [_function(tool, f"tools[{index}]") for index, tool in enumerate(fields.tools or [])]
    return make_tool_use(functions, openai_choice(fields.tool_choice), fields.parallel_tool_calls is not False)


def _function(tool: Tool, where: str) -> Function:
    if tool.type != "function":
        raise InvalidRequest(f"{where}.type: only functions are supported by this server", param=f"{where}.type")
    return make_function(where, tool.name, tool.description, tool.parameters, tool.strict)


def _with_id(item: Item) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(item)
    kind = plain.setdefault("type", "message")
    prefix = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}.get(kind, "item")
    if kind == "message" and isinstance(plain.get("content"), str):
        part = "output_text" if plain["role"] == "assistant" else "input_text"
        plain["content"] = [{"type": part, "text": plain["content"]}]
    return {**plain, "id": plain.get("id") or f"{prefix}_{uuid.uuid4().hex}", "status": plain.get("status") or "completed"}
