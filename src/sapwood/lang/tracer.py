"""Writes down what a program would say, with stand-ins for what is not known yet: its graph, and the prefix that all runs share.

Owns the recording; runs no model. Invariant: a stand-in is text that no program writes (private-use characters), so whatever a
program makes of it can be told from what is the same in every run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sapwood.errors import SapwoodError
from sapwood.lang.ir import Assign, Branch, Expr, Gen, Media, Part, RoleBegin, RoleEnd, ScopeEnd, Select, Text
from sapwood.lang.pieces import Pieces
from sapwood.lang.roles import RoleMarks
from sapwood.lang.signals import Signal
from sapwood.lang.state import ProgramState
from sapwood.lang.transcript import Prompt, Transcript

OPEN, CLOSE = "\ue0f0", "\ue0f1"


def stand_in(name: str) -> str:
    """The text that stands for a value which is not known while tracing."""
    return f"{OPEN}{name}{CLOSE}"


def readable(text: str) -> str:
    """Text with its stand-ins as {name}."""
    return text.replace(OPEN, "{").replace(CLOSE, "}")


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One step of a program's graph, after the step `before`."""

    number: int
    label: str
    before: int | None


@dataclass(slots=True)
class Graph:
    """The steps of a program in the order in which they were said, branches after what they branch off from."""

    nodes: list[Node] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def add(self, label: str, before: int | None) -> int:
        """Another step; returns its number."""
        node = Node(next(self.numbers), label, before)
        self.nodes.append(node)
        return node.number

    def __str__(self) -> str:
        lines = [
            f"%{node.number} = {node.label}" + ("" if node.before is None else f" after %{node.before}") for node in self.nodes
        ]
        return "\n".join(lines)


class Recorder:
    """A `Stream` that is written down."""

    def __init__(self, graph: Graph, marks: RoleMarks, before: int | None = None) -> None:
        self.graph = graph
        self.prefix = Transcript(marks)
        self._is_constant = True
        self._before = before
        self._values: dict[str, Any] = {}
        self._inherited: frozenset[str] = frozenset()

    def append(self, expr: Expr) -> None:
        for part in expr.parts:
            self._record(part)

    def get(self, name: str) -> Any:
        return self._values[name]

    def set(self, name: str, value: Any) -> None:
        self._values[name] = value

    def has(self, name: str) -> bool:
        return name in self._values

    def meta(self, name: str) -> Any:
        return {}

    def names(self) -> list[str]:
        return [name for name in self._values if name not in self._inherited]

    def fork(self, count: int) -> Sequence[Recorder]:
        self._before = self.graph.add(f"fork({count})", self._before)
        branches = [Recorder(self.graph, self.prefix.marks, self._before) for _ in range(count)]
        for branch in branches:
            branch._is_constant = False
            branch._values, branch._inherited = dict(self._values), frozenset(self._values)
        return branches

    def sync(self) -> None:
        """Nothing runs."""

    def text(self, *, own: bool = False) -> str:
        return stand_in("text")

    def messages(self) -> list[dict[str, str]]:
        return self.prefix.all_messages()

    def error(self) -> BaseException | None:
        return None

    def cancel(self) -> None:
        """Nothing runs."""

    def pieces(self, name: str | None) -> Pieces:
        return Pieces(Signal(), lambda position: ([], True), self.cancel)

    @property
    def nodes(self) -> list[Node]:
        """The program's steps."""
        return self.graph.nodes

    def print_graph_dfs(self) -> None:
        """Show the program's graph, a line for each step."""
        print(self.graph)

    def _record(self, part: Part) -> None:
        if not isinstance(part, Assign | Branch):
            self._before = self.graph.add(_label(part), self._before)
        name = getattr(part, "name", None)
        if isinstance(part, Gen | Select | ScopeEnd) and name is not None:
            self._values[name] = stand_in(name)
        if self._is_constant:
            self._extend_prefix(part)

    def _extend_prefix(self, part: Part) -> None:
        match part:
            case Text(text):
                self.prefix.say(text.partition(OPEN)[0])
                self._is_constant = OPEN not in text
            case RoleBegin(role):
                self.prefix.begin(role)
            case RoleEnd(role):
                self.prefix.end(role)
            case Gen() | Select() | Media():
                self._is_constant = False


def _label(part: Part) -> str:
    match part:
        case Text(text):
            return f"constant {readable(text)[:60]!r}"
        case Gen(name):
            return f"gen({name or ''})"
        case Select(name, choices):
            return f"select({name or ''}, {len(choices)} choices)"
        case RoleBegin(role):
            return f"{role} begins"
        case RoleEnd(role):
            return f"{role} ends"
        case Media(kind):
            return kind
    return type(part).__name__.lower()


def trace(body: Callable[..., Any], arguments: Mapping[str, Any], marks: RoleMarks) -> tuple[ProgramState, Recorder]:
    """What `body` says when it is given `arguments`, stand-ins among them; raises whatever the body does."""
    recorder = Recorder(Graph(), marks)
    state = ProgramState(recorder)
    state.ret_value = body(state, **arguments)
    return state, recorder


def common_prefix(body: Callable[..., Any], names: Sequence[str], batch: Sequence[Mapping[str, Any]], marks: RoleMarks) -> Prompt:
    """What every run of the batch begins with. Arguments with one value for all count as known.

    A body that makes of its arguments what cannot be made of stand-ins is followed as far as it goes.
    """
    recorder = Recorder(Graph(), marks)
    arguments = {name: _shared(name, batch) for name in names if any(name in item for item in batch)}
    try:
        body(ProgramState(recorder), **arguments)
    except (SapwoodError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError):
        return recorder.prefix.prompt()
    return recorder.prefix.prompt()


def _shared(name: str, batch: Sequence[Mapping[str, Any]]) -> Any:
    first = batch[0].get(name)
    same = all(name in item and (item[name] is first or _are_equal(item[name], first)) for item in batch)
    return first if same else stand_in(name)


def _are_equal(left: object, right: object) -> bool:
    """Equality for values whose type knows a plain answer."""
    return type(left) is type(right) and isinstance(left, str | int | float | bool | tuple) and left == right
