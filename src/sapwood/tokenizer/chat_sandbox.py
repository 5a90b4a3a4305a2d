"""Running a chat template: Jinja in an immutable sandbox, within bounds of time and size.

Knows templates; does not know messages or tokens. Invariant: whatever a template does, `render` ends soon after `MAX_RENDER_S`
(checked at every call, look-up and piece of output), it builds nothing that `chat_bounds` finds too large, and it raises only
InvalidRequest.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from datetime import datetime
from types import BuiltinMethodType
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from sapwood.errors import ConfigError, InvalidRequest
from sapwood.tokenizer.chat_bounds import (
    BoundLiterals,
    bounded,
    check,
    check_call,
    check_operator,
    guarded,
    join_bounded,
    size_of,
)

MAX_RENDER_S = 5.0
MAX_SOURCE_CHARS = 1 << 20


class TemplateRunner:
    """One compiled template; renderings take turns."""

    def __init__(self, source: str) -> None:
        """Compiles `source`; raises ConfigError when it is not a Jinja template."""
        self._environment = _BoundedEnvironment()
        self._lock = threading.Lock()
        if len(source) > MAX_SOURCE_CHARS:
            raise ConfigError(f"the chat template has more than {MAX_SOURCE_CHARS} characters; give another with --chat-template")
        try:
            self.tree = self._environment.parse(source)
            self._template = self._environment.from_string(BoundLiterals().visit(self._environment.parse(source)))
        except Exception as error:  # beside Jinja's own errors: what Python's compiler says of too deep or too large ones
            kind = "" if isinstance(error, jinja2.TemplateError) else f"{type(error).__name__}: "
            message = f"the chat template is not valid Jinja: {kind}{error}; give another with --chat-template"
            raise ConfigError(message) from None

    @property
    def free_names(self) -> frozenset[str]:
        """The variables that the template reads from outside, Jinja's and our own functions not among them."""
        return frozenset(meta.find_undeclared_variables(self.tree)) - self._environment.globals.keys()

    def render(self, variables: Mapping[str, Any]) -> str:
        """The template's output; raises InvalidRequest with the template's own words when it refuses the messages."""
        with self._lock:
            self._environment.deadline_s = time.monotonic() + MAX_RENDER_S
            try:
                return self._collect(variables)
            except InvalidRequest:
                raise
            except jinja2.TemplateError as error:
                raise InvalidRequest(f"the chat template refused the messages: {error}", param="messages") from None
            except Exception as error:  # a template is a program of its own and can fail in any way
                message = f"the chat template cannot render these messages ({type(error).__name__}: {error})"
                raise InvalidRequest(message, param="messages") from None

    def _collect(self, variables: Mapping[str, Any]) -> str:
        parts: list[str] = []
        num_chars = 0
        for part in self._template.generate(variables):
            self._environment.check_deadline()
            num_chars += len(part)
            check(num_chars)
            parts.append(part)
        return "".join(parts)


class _BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox is extended by subclassing it: here with a deadline and with bounds on what anything may build."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    concat = staticmethod(join_bounded)

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols], finalize=bounded)
        self.deadline_s = float("inf")
        own = {"tojson": _to_json, "bounded": bounded, "joined": join_bounded}
        self.filters = {name: guarded(name, function) for name, function in {**self.filters, **own}.items()}
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def check_deadline(self) -> None:
        """Raises InvalidRequest when the current rendering has run too long."""
        if time.monotonic() > self.deadline_s:
            raise InvalidRequest(
                f"rendering the chat template took longer than {MAX_RENDER_S:g} s; send fewer or shorter messages",
                param="messages",
            )

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: B902
        """Every call that a template makes goes through here."""
        __self.check_deadline()
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps `format`
        if isinstance(method, BuiltinMethodType):
            check_call(method.__name__, (method.__self__, *args), kwargs)
        elif __obj is dict:
            check(sum(map(size_of, (*args, *kwargs.values()))))
        return super().call(__context, __obj, *args, **kwargs)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """`obj.attribute` in a template."""
        self.check_deadline()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: str | Any) -> Any:
        """`obj[argument]` in a template."""
        self.check_deadline()
        return super().getitem(obj, argument)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """The operators that can build something huge."""
        self.check_deadline()
        check_operator(operator, left, right)
        return super().call_binop(context, operator, left, right)


class _GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}` marks the model's own words for training; here its body is simply rendered."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON; Jinja's own filter escapes characters for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def iterates_over_content(tree: nodes.Template) -> bool:
    """Whether the template goes through the parts of a message's content, so that it wants lists of parts as they are."""
    names = {"content"}
    for assignment in tree.find_all(nodes.Assign):
        if isinstance(assignment.target, nodes.Name) and _is_content(assignment.node, frozenset()):
            names.add(assignment.target.name)
    return any(_is_content(loop.iter, frozenset(names)) for loop in tree.find_all(nodes.For))


def _is_content(node: nodes.Node, names: frozenset[str]) -> bool:
    """Whether an expression is a message's content itself, perhaps filtered."""
    while isinstance(node, nodes.Filter) and node.node is not None:
        node = node.node
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Name) and node.name in names
