"""How large a thing a chat template may build: estimates that are made before it is built, and refusals.

Knows Jinja's filters, Python's text methods and operators by what they make of their arguments; runs no template. Invariant: what
passes here builds at most a small multiple of `MAX_RENDERED_CHARS` characters, however often its parts refer to each other.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from sapwood.errors import InvalidRequest

MAX_RENDERED_CHARS = 1 << 24
MAX_NUMBER = 1 << 20
"""The largest width, count or precision that a filter or a method takes."""
MAX_INTEGER_BITS = 1 << 12
_ELEMENT_CHARS = 128
"""What a list's element or a mapping's entry counts for, besides itself: a bound for the time that looking takes, too."""
_DIGITS = re.compile(r"\d+")
_FILLERS = frozenset({"indent", "tojson", "expandtabs"})
_FORMATS = frozenset({"format", "format_map", "%"})


def too_large() -> InvalidRequest:
    """The refusal."""
    return InvalidRequest(
        f"the chat template built more than {MAX_RENDERED_CHARS} characters; send fewer or shorter messages", param="messages"
    )


def check(num_chars: int) -> None:
    """Raises InvalidRequest when that is too much."""
    if num_chars > MAX_RENDERED_CHARS:
        raise too_large()


def size_of(value: Any) -> int:
    """About how many characters a value has when it is written out; raises InvalidRequest as soon as that is too much."""
    total, waiting = 0, [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str | bytes):
            total += len(item)
        elif isinstance(item, Mapping):
            total += _ELEMENT_CHARS * len(item)
            waiting += chain.from_iterable(item.items())
        elif isinstance(item, list | tuple | set | frozenset):
            total += _ELEMENT_CHARS * len(item)
            waiting += item
        elif isinstance(item, int):
            total += item.bit_length() // 3
        check(total)
    return total


def bounded(value: Any) -> Any:
    """The value, unless it is too large."""
    if not isinstance(value, str) or len(value) > MAX_RENDERED_CHARS:
        check(size_of(value))
    return value


def join_bounded(parts: Iterable[Any]) -> str:
    """The parts as one text."""
    texts = [str(bounded(part)) for part in parts]
    check(sum(map(len, texts)))
    return "".join(texts)


def check_call(name: str, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Raises InvalidRequest when the filter or method `name` could build something huge; the first of `arguments` is acted on."""
    values = [*arguments, *named.values()]
    numbers = [abs(value) for value in values[1:] if isinstance(value, int | float)]
    if any(number > MAX_NUMBER for number in numbers):
        raise too_large()
    widest = int(max(numbers, default=0))
    texts = [value for value in values if isinstance(value, str | bytes)]
    size = sum(map(size_of, values))
    if name in _FILLERS:
        size *= max(widest, 1)
    elif name in _FORMATS and texts:
        size = _chars_of_format(str(texts[0]), size, widest)
    elif name == "replace" and len(texts) > 2:
        size += texts[0].count(texts[1]) * len(texts[2])  # type: ignore[arg-type]
    elif name in ("join", "translate", "wordwrap"):
        size *= max(1, *(len(text) for text in (texts if name == "join" else texts[1:]) or ("",)))
    check(size + widest)


def _chars_of_format(text: str, size: int, widest: int) -> int:
    """Every placeholder may have the largest width and hold everything."""
    widths = [int(found[:9]) for found in _DIGITS.findall(text)]
    num_places = text.count("%") + text.count("{")
    return size + num_places * (size + max([*widths, widest]))


def check_operator(operator: str, left: Any, right: Any) -> None:
    """Raises InvalidRequest when `left operator right` would be huge."""
    if isinstance(left, int) and isinstance(right, int):
        if _bits_of_result(operator, left, right) > MAX_INTEGER_BITS:
            raise too_large()
    elif operator == "%":
        check_call("%", (left, *right) if isinstance(right, tuple) else (left, right), {})
    elif operator == "+":
        check(size_of(left) + size_of(right))
    elif operator == "*":
        counts = [value for value in (left, right) if isinstance(value, int)]
        check((size_of(left) + size_of(right)) * max(counts, default=1))


def _bits_of_result(operator: str, left: int, right: int) -> int:
    """About how many bits an integer the operator would build."""
    return left.bit_length() * max(0, right) if operator == "**" else max(left.bit_length(), right.bit_length()) * 2


def guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that looks at its arguments first. It keeps the mark that says whether Jinja passes it a context."""
    num_passed = int(hasattr(function, "jinja_pass_arg"))

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        check_call(name, arguments[num_passed:], named)
        return function(*arguments, **named)

    return call


class BoundLiterals(NodeTransformer):
    """Lets what a template writes as `[a, b]`, `{a: b}`, `(a, b)` and `a ~ b` pass through the filters `bounded` and `joined`."""

    def visit_List(self, node: nodes.List) -> nodes.Node:
        """`[a, b]`"""
        return self._through("bounded", node)

    visit_Dict = visit_Tuple = visit_List

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        """`a ~ b`"""
        self.generic_visit(node)
        return _filtered("joined", nodes.List(node.nodes, lineno=node.lineno))

    def _through(self, name: str, node: nodes.List | nodes.Dict | nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        is_target = isinstance(node, nodes.Tuple) and node.ctx != "load"
        return node if is_target or _is_constant(node) else _filtered(name, node)


def _filtered(name: str, node: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _is_constant(node: nodes.Node) -> bool:
    return not any(True for _ in node.find_all((nodes.Name, nodes.Filter, nodes.Call)))
