"""Chat messages to the pieces of a prompt, through the model's own template.

Joins the template runner with the marking of control-token look-alikes. Does not know ids or HTTP. Invariant: control tokens come
from the template alone; for messages without look-alikes the pieces are one text, the same that the reference renders.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sapwood.errors import InvalidRequest
from sapwood.tokenizer.chat_sandbox import TemplateRunner, iterates_over_content
from sapwood.tokenizer.lookalikes import ControlScanner, Pieces, escaped, mark_strings, plain_data, unused_marks
from sapwood.tokenizer.text import valid_text
from sapwood.tokenizer.tokenizer import Tokenizer

_RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"})
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
TOOL_TEMPLATE = "tool_use"


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """What a request may say about its prompt besides the messages.

    `variables` are a client's chat_template_kwargs: those that the template reads are handed to it, others mean nothing to it.
    `continue_final_message` leaves the last message open, for the model to go on with; no generation prompt is added then.
    `template` names one of the model's templates; without it the one for tools is used when there are tools.
    """

    tools: Sequence[Mapping[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)
    template: str | None = None


class ChatTemplate:
    """One template, compiled, with the vocabulary's facts that it needs."""

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        """Raises ConfigError when `source` is not a Jinja template."""
        self.source = source
        self._runner = TemplateRunner(source)
        self._scanner = ControlScanner(tokenizer.control_texts)
        self._special_texts = tokenizer.special_token_texts
        self._readable = self._runner.free_names - _RESERVED
        self.reads_tools = "tools" in self._runner.free_names
        self.wants_part_lists = iterates_over_content(self._runner.tree)

    def render(self, messages: Sequence[Mapping[str, Any]], options: ChatOptions | None = None) -> Pieces:
        """The prompt's pieces; raises InvalidRequest, naming the field, for messages that the template cannot render."""
        options = options or ChatOptions()
        variables = self._variables(messages, options)
        tag = ""
        if options.continue_final_message:
            [tag] = unused_marks(1, variables, self.source)
            variables["messages"][-1] = _with_tag(variables["messages"][-1], tag)
        if not self._scanner.needs_marks(variables):
            return [(_cut_at_tag(self._run(variables), tag), True)]
        [mark] = unused_marks(1, variables, self.source)
        rendered = self._run(mark_strings(variables, self._scanner, mark)).replace(escaped(mark), mark)
        return self._scanner.split(_cut_at_tag(rendered, tag), mark)

    def _run(self, variables: Mapping[str, Any]) -> str:
        return valid_text(self._runner.render({**variables, **self._special_texts}))

    def _variables(self, messages: Sequence[Mapping[str, Any]], options: ChatOptions) -> dict[str, Any]:
        """Everything of the client's that the template sees, as fresh plain data."""
        refused = sorted(_RESERVED & options.variables.keys())
        if refused:
            raise InvalidRequest(f"chat_template_kwargs must not set {refused[0]!r}", param="chat_template_kwargs")
        if not messages:
            raise InvalidRequest("messages must not be empty", param="messages")
        variables = {name: value for name, value in options.variables.items() if name in self._readable} | {
            "messages": [normal_message(message, self.wants_part_lists) for message in messages],
            "tools": list(options.tools) if options.tools else None,
            "add_generation_prompt": options.add_generation_prompt and not options.continue_final_message,
        }
        return {name: plain_data(value) for name, value in variables.items()}


class ChatRenderer:
    """A model's templates by name; the one for tools is used when a request brings tools."""

    def __init__(self, tokenizer: Tokenizer, template: str | None = None) -> None:
        """`template` replaces the model's own. Raises ConfigError when a template is not valid Jinja."""
        sources = dict(tokenizer.chat_templates) if template is None else {"default": template}
        self._templates = {name: ChatTemplate(source, tokenizer) for name, source in sources.items()}

    @property
    def source(self) -> str:
        """The Jinja source of all of them, for whoever looks for marks in it."""
        return "\n".join(template.source for template in self._templates.values())

    @property
    def reads_tools(self) -> bool:
        """Whether tools that a request brings reach the model."""
        return TOOL_TEMPLATE in self._templates or any(template.reads_tools for template in self._templates.values())

    @property
    def has_template(self) -> bool:
        """Whether the model can chat at all."""
        return "default" in self._templates

    def render(self, messages: Sequence[Mapping[str, Any]], options: ChatOptions | None = None) -> Pieces:
        """The prompt's pieces for `Tokenizer.encode_pieces` (no special tokens added: the template writes its own)."""
        wanted = TOOL_TEMPLATE if options is not None and options.tools and TOOL_TEMPLATE in self._templates else "default"
        if options is not None and options.template is not None:
            wanted = self._check_name(options.template)
        if wanted not in self._templates:
            raise InvalidRequest(
                "this model has no chat template; use the completions route, or start the server with --chat-template FILE",
                param="messages",
            )
        return self._templates[wanted].render(messages, options)

    def _check_name(self, name: str) -> str:
        if name not in self._templates:
            known = ", ".join(sorted(self._templates)) or "none"
            raise InvalidRequest(
                f"chat_template: this model has no template of that name; its templates are: {known}", param="chat_template"
            )
        return name


def render_chat(
    tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], options: ChatOptions | None = None, template: str | None = None
) -> Pieces:
    """`ChatRenderer.render` for one prompt; compiles the template each time."""
    return ChatRenderer(tokenizer, template).render(messages, options)


def normal_message(message: Mapping[str, Any], wants_part_lists: bool) -> dict[str, Any]:
    """A message as templates expect it: without null fields, content in their form, tool arguments as data."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InvalidRequest("each message must be an object with a string 'role'", param="messages")
    normal = {name: value for name, value in message.items() if value is not None}
    normal["content"] = _normal_content(normal.get("content", ""), wants_part_lists)
    if "tool_calls" in normal:
        normal["tool_calls"] = [_normal_tool_call(call) for call in _as_list(normal["tool_calls"], "tool_calls")]
    reasoning = next((normal[name] for name in _REASONING_FIELDS if name in normal), None)
    if reasoning is not None:
        normal = {"thinking": reasoning, **normal, "reasoning_content": reasoning}
    return normal


def _normal_content(content: Any, wants_part_lists: bool) -> Any:
    if isinstance(content, str):
        return content
    parts = _as_list(content, "content")
    texts = [_part_text(part) for part in parts]
    return [{"type": "text", "text": text} for text in texts] if wants_part_lists else "\n".join(texts)


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type", "text") if isinstance(part, Mapping) else None
    if kind not in _TEXT_PARTS or not isinstance(part.get("text"), str):
        raise InvalidRequest(f"message content may hold text parts only, not {kind!r}", param="messages")
    return str(part["text"])


def _normal_tool_call(call: Any) -> Any:
    """The call with its arguments as data: clients send them as a JSON text, templates write them out as JSON."""
    if not isinstance(call, Mapping):
        raise InvalidRequest("each entry of 'tool_calls' must be an object", param="messages")
    function = call.get("function")
    if isinstance(function, Mapping):
        return {**call, "function": _with_parsed_arguments(function)}
    return _with_parsed_arguments(call)


def _with_parsed_arguments(function: Mapping[str, Any]) -> dict[str, Any]:
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return dict(function)
    try:
        return {**function, "arguments": json.loads(arguments) if arguments.strip() else {}}
    except (ValueError, RecursionError):
        raise InvalidRequest("the arguments of a tool call must be JSON", param="messages") from None


def _as_list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise InvalidRequest(f"a message's {name!r} has the wrong type", param="messages")
    return list(value)


def _with_tag(message: dict[str, Any], tag: str) -> dict[str, Any]:
    """The message with its text's end tagged; the space after the tag shows whether the template trims."""
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": f"{content}{tag} "}
    if not content:
        raise InvalidRequest("continue_final_message needs a text in the last message", param="continue_final_message")
    return {**message, "content": [*content[:-1], {**content[-1], "text": f"{content[-1]['text']}{tag} "}]}


def _cut_at_tag(rendered: str, tag: str) -> str:
    if not tag:
        return rendered
    position = rendered.rfind(tag)
    if position < 0:
        raise InvalidRequest(
            "the chat template leaves out the text of the last message, so it cannot be continued", param="continue_final_message"
        )
    text = rendered[:position]
    return text if rendered.startswith(" ", position + 1) else text.rstrip()
