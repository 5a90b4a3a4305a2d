"""The functions that a call offers to the model, and whether it must call one: the one form behind all dialects.

Knows OpenAI's shape of a function, which templates expect; runs nothing. Invariant: names are unique, every schema is an
object's, and what a choice names was offered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sapwood.errors import InvalidRequest
from sapwood.parsing.pieces import Tools

MAX_TOOLS = 1024
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


@dataclass(frozen=True, slots=True)
class Function:
    """A function that may be called. `parameters` is the JSON schema of its arguments, always an object's."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    is_strict: bool = False

    @property
    def as_template_expects(self) -> dict[str, Any]:
        """OpenAI's shape."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a call says about tools. `must_call`: the model has to call one, `named` the one and only if it is not empty; others
    than those `allowed` are shown to the model, but cannot be called (None: all can)."""

    functions: tuple[Function, ...] = ()
    must_call: bool = False
    named: str = ""
    is_parallel: bool = True
    allowed: tuple[str, ...] | None = None

    @property
    def tools(self) -> Tools:
        """The functions that may be called, for a parser."""
        return {function.name: function.parameters for function in self.callable}

    @property
    def callable(self) -> tuple[Function, ...]:
        """Those that the choice leaves."""
        left = (self.named,) if self.named else self.allowed
        return tuple(function for function in self.functions if left is None or function.name in left)

    @property
    def definitions(self) -> list[dict[str, Any]] | None:
        """All functions, for a chat template."""
        return [function.as_template_expects for function in self.functions] or None

    @property
    def is_strict(self) -> bool:
        """Whether the arguments of any call must follow their schema."""
        return any(function.is_strict for function in self.callable)

    @property
    def call_schema(self) -> dict[str, Any]:
        """The JSON schema of a list of calls, which a forced call is constrained to."""
        definitions: dict[str, Any] = {}
        calls = [
            {
                "type": "object",
                "properties": {"name": {"const": function.name}, "parameters": _hoisted(function, definitions)},
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
            for function in self.callable
        ]
        items = calls[0] if len(calls) == 1 else {"anyOf": calls}
        bound = {} if self.is_parallel and not self.named else {"maxItems": 1}
        return {"type": "array", "minItems": 1, **bound, "items": items, **({"$defs": definitions} if definitions else {})}


def _hoisted(function: Function, definitions: dict[str, Any]) -> Any:
    """The function's schema as a part of a larger one: what it defines goes to `definitions`, under names of its own."""

    def moved(value: Any) -> Any:
        if isinstance(value, list):
            return [moved(item) for item in value]
        if not isinstance(value, dict):
            return value
        return {key: _moved_reference(function.name, item) if key == "$ref" else moved(item) for key, item in value.items()}

    schema = dict(function.parameters)
    for group in ("$defs", "definitions"):
        found = schema.pop(group, None)
        for name, definition in (found if isinstance(found, dict) else {}).items():
            definitions[f"{function.name}.{name}"] = moved(definition)
    return moved(schema)


def _moved_reference(function: str, reference: Any) -> Any:
    for group in ("#/$defs/", "#/definitions/"):
        if isinstance(reference, str) and reference.startswith(group):
            return f"#/$defs/{function}.{reference.removeprefix(group)}"
    return reference


NO_TOOLS = ToolUse()


def make_function(where: str, name: Any, description: Any, parameters: Any, is_strict: Any = None) -> Function:
    """A checked function; `where` is the field that it came in."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{where}.name must have 1 to 128 letters, digits, underscores, dots, colons or hyphens", param=f"{where}.name"
        )
    if description is not None and not isinstance(description, str):
        raise InvalidRequest(f"{where}.description must be text", param=f"{where}.description")
    if not parameters and not isinstance(parameters, (list, str, bool, int, float)):
        return Function(name, description or "", is_strict=is_strict is True)
    if not isinstance(parameters, dict) or parameters.get("type", "object") != "object":
        raise InvalidRequest(f"{where}.parameters must be the JSON schema of an object", param=f"{where}.parameters")
    return Function(name, description or "", {"type": "object", **parameters}, is_strict is True)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which tools to call: `auto`, `none`, `required`, or `named` with a name; `allowed` leaves some of them out."""

    kind: str = "auto"
    named: str = ""
    allowed: tuple[str, ...] | None = None


def make_tool_use(functions: Sequence[Function], choice: Choice, is_parallel: bool = True) -> ToolUse:
    """What the functions and the choice come to; raises InvalidRequest."""
    names = [function.name for function in functions]
    if len(names) > MAX_TOOLS:
        raise InvalidRequest(f"tools has {len(names)} entries, {MAX_TOOLS} are the limit; send fewer", param="tools")
    doubled = next((name for index, name in enumerate(names) if name in names[:index]), None)
    if doubled is not None:
        raise InvalidRequest(f"tools has two functions called {doubled!r}; names must be different", param="tools")
    if choice.kind in ("required", "named") and not functions:
        raise InvalidRequest("tool_choice asks for a call, but there are no tools; send tools", param="tool_choice")
    wanted = (choice.named,) if choice.kind == "named" else choice.allowed or ()
    unknown = next((name for name in wanted if name not in names), None)
    if unknown is not None:
        raise InvalidRequest(f"tool_choice names {unknown[:200]!r}, which is not among the tools", param="tool_choice")
    if choice.kind == "none":
        return NO_TOOLS
    named = choice.named if choice.kind == "named" else ""
    return ToolUse(tuple(functions), choice.kind in ("required", "named"), named, is_parallel, choice.allowed)


def openai_tool_use(tools: Sequence[Any] | None, choice: Any, is_parallel: bool | None) -> ToolUse:
    """The fields of a chat completion: `tools`, `tool_choice`, `parallel_tool_calls`."""
    functions = [_openai_function(tool, f"tools[{index}]") for index, tool in enumerate(tools or [])]
    return make_tool_use(functions, openai_choice(choice), is_parallel is not False)


def openai_choice(choice: Any) -> Choice:
    """A `tool_choice`; null means auto."""
    match choice:
        case None | "auto":
            return Choice()
        case "none" | "required":
            return Choice(str(choice))
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
            return Choice("named", name)
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required" as mode, "tools": list(tools)}}:
            return Choice(mode, allowed=_allowed_names(tools))
        case {"type": "allowed_tools", "mode": "auto" | "required" as mode, "tools": list(tools)}:
            return Choice(mode, allowed=_allowed_names(tools))
    raise InvalidRequest(
        'tool_choice must be "auto", "none", "required", {"type": "function", "function": {"name": …}} or allowed_tools',
        param="tool_choice",
    )


def _allowed_names(tools: list[Any]) -> tuple[str, ...]:
    names = []
    for tool in tools:
        match tool:
            case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
                names.append(name)
            case _:
                raise InvalidRequest("tool_choice: the tools that are allowed must be functions with a name", param="tool_choice")
    if not names:
        raise InvalidRequest('tool_choice allows no tools; send "none"', param="tool_choice")
    return tuple(names)


def _openai_function(tool: Any, where: str) -> Function:
    if not isinstance(tool, dict) or tool.get("type", "function") != "function" or not isinstance(tool.get("function"), dict):
        raise InvalidRequest(
            f'{where} must be {{"type": "function", "function": {{…}}}}; other tools are not supported', param=where
        )
    function = tool["function"]
    get = function.get
    return make_function(f"{where}.function", get("name"), get("description"), get("parameters"), get("strict"))
