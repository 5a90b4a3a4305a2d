"""Chat messages to the ids of a prompt.

Knows message shapes and the chat template's seam. Invariant: what a user writes stays text; control tokens come from the template
alone, and rendering and tokenizing happen off the event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sapwood.errors import InvalidRequest
from sapwood.parsing.partial import partial_object
from sapwood.server.context import ServerContext
from sapwood.server.openai.schema import ChatFields, Message, TokenizeFields
from sapwood.tokenizer.chat import ChatOptions

_SHORT_ID = re.compile("[A-Za-z0-9]{9}")
_END_CHARS = 64
"""How much of a prompt's text is kept, for a parser to see whether it opens the model's reasoning."""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A prompt's ids, and the end of its text."""

    token_ids: list[int]
    end: str


def chat_options(fields: ChatFields | TokenizeFields, tools: Sequence[Mapping[str, Any]] | None) -> ChatOptions:
    """What the body says about its prompt besides the messages."""
    return ChatOptions(
        tools=tools,
        add_generation_prompt=fields.add_generation_prompt is not False,
        continue_final_message=bool(fields.continue_final_message),
        variables={**effort_variables(fields.reasoning_effort), **(fields.chat_template_kwargs or {})},
        template=fields.chat_template,
    )


def effort_variables(effort: str | None) -> dict[str, Any]:
    """How templates hear of a reasoning effort; those that only know on and off are told of none."""
    if effort is None:
        return {}
    return {"reasoning_effort": effort, **({"enable_thinking": False, "thinking": False} if effort == "none" else {})}


def check_messages(context: ServerContext, messages: list[Message], n: int | None) -> None:
    """Refuse before any work more messages, or longer ones, than any prompt can hold."""
    context.check_texts([sum(map(num_chars, messages))], n, "messages")
    most = context.frontend.limits.max_request_tokens
    if len(messages) > most:  # a message has at least one token
        raise InvalidRequest(f"messages has {len(messages)} entries, but a request may hold {most} tokens", param="messages")


async def chat_prompt_ids(context: ServerContext, messages: list[Message], options: ChatOptions) -> list[int]:
    """The ids that the model sees for `messages`."""
    return (await chat_prompt(context, messages, options)).token_ids


async def chat_prompt(context: ServerContext, messages: list[Message], options: ChatOptions) -> ChatPrompt:
    """The prompt that the model sees for `messages`; where the template refuses them the error has its own words."""
    render = context.model.render_chat
    if render is None:
        raise InvalidRequest("this model has no chat template; use /v1/completions or /generate", param="messages")
    if not messages:
        raise InvalidRequest("messages must not be empty; send at least one message", param="messages")
    if options.tools and not context.model.reads_tools:
        raise InvalidRequest(
            "tools: this model's chat template has no place for them; leave them out, or start with --chat-template hermes",
            param="tools",
        )
    plain = [_as_plain(message, index) for index, message in enumerate(messages)]
    named = _with_tool_names(plain)
    if context.model.output.has_short_ids:
        named = [_with_short_ids(message) for message in named]
    pieces = await asyncio.to_thread(render, named, options)
    token_ids = await context.encode(pieces, add_special=False, name="messages")
    return ChatPrompt(token_ids, "".join(text for text, _ in pieces[-2:])[-_END_CHARS:])


def _as_plain(message: Message, index: int) -> dict[str, Any]:
    """The message as templates expect it; raises InvalidRequest for what cannot be rendered."""
    where = f"messages[{index}]"
    if message.role == "function":
        raise InvalidRequest(f"{where}.role: send answers of functions with role tool and a tool_call_id", param=f"{where}.role")
    if message.content is None and message.role not in ("assistant", "tool"):
        raise InvalidRequest(f"{where}.content must be text", param=f"{where}.content")
    role = "system" if message.role == "developer" else message.role  # templates know the older name
    plain: dict[str, Any] = {"role": role, "content": _content(message, where)}
    if message.name is not None:
        plain["name"] = message.name
    if message.role == "tool" and message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    if message.role == "assistant":
        reasoning = message.reasoning_content or message.reasoning
        plain |= {"reasoning_content": reasoning} if reasoning else {}
        plain |= {"tool_calls": _tool_calls(message.tool_calls, f"{where}.tool_calls")} if message.tool_calls else {}
    elif message.tool_calls:
        raise InvalidRequest(f"{where}.tool_calls: only messages of the assistant call tools", param=f"{where}.tool_calls")
    return plain


def _tool_calls(calls: list[Any], where: str) -> list[dict[str, Any]]:
    checked = []
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            name = f"{where}[{index}]"
            raise InvalidRequest(f'{name} must be {{"id": …, "type": "function", "function": {{"name": …}}}}', param=name)
        arguments = function.get("arguments")
        if not isinstance(arguments, (str, dict)) and arguments is not None:
            name = f"{where}[{index}].function.arguments"
            raise InvalidRequest(f"{name} must be JSON, as text", param=name)
        if isinstance(arguments, str):  # what a model left broken comes back broken
            arguments = partial_object(arguments)
        checked.append({**call, "type": "function", "function": {**function, "arguments": arguments or {}}})
    return checked


def _with_tool_names(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages in which a tool's answer has the tool's name, which some templates want, by the id of the call."""
    names: dict[Any, str] = {}
    named = []
    for message in messages:
        for call in message.get("tool_calls", ()):
            names[str(call.get("id"))] = call["function"]["name"]
        name = names.get(message.get("tool_call_id")) if message["role"] == "tool" else None
        named.append({"name": name, **message} if name is not None else message)
    return named


def _with_short_ids(message: dict[str, Any]) -> dict[str, Any]:
    """The message with ids of calls, which may be another server's, of nine letters and digits."""
    changed = dict(message)
    if "tool_call_id" in message:
        changed["tool_call_id"] = _short_id(message["tool_call_id"])
    if "tool_calls" in message:
        changed["tool_calls"] = [{**call, "id": _short_id(call.get("id"))} for call in message["tool_calls"]]
    return changed


def _short_id(id: Any) -> str:
    given = str(id)
    return given if _SHORT_ID.fullmatch(given) else hashlib.sha256(given.encode(errors="replace")).hexdigest()[:9]


def num_chars(message: Message) -> int:
    """How many characters a message has."""
    content = message.content or ""
    return len(content) if isinstance(content, str) else sum(len(part.text or "") for part in content)


def _content(message: Message, where: str) -> str | list[dict[str, str]]:
    if not isinstance(message.content, list):
        return message.content or ""
    parts = []
    for index, part in enumerate(message.content):
        text = part.refusal if part.type == "refusal" else part.text
        if part.type not in ("text", "input_text", "output_text", "refusal") or text is None:
            name = f"{where}.content[{index}]"
            raise InvalidRequest(f"{name}: only parts of type text are supported by this server", param=name)
        parts.append({"type": "text", "text": text})
    return parts
