"""The arguments of a call in notations other than JSON: one by one between tags, or as Python writes them.

Owns the rules for them; knows neither the marks around a call nor who reads it. Invariant: whatever is written by these rules is
read as an object that the schema allows; a schema whose values could not be told apart in the notation is refused.
"""

from __future__ import annotations

import contextlib
import json
import keyword
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from sapwood.errors import InvalidRequest
from sapwood.grammar.plain_texts import CannotBeTold, count, plain_text, text_terms
from sapwood.grammar.plain_values import ANY, OPAQUE, Branch, branches
from sapwood.grammar.rules import RuleBook

MAX_NESTED = 4
"""So deep are lists written as Python does; below they are JSON."""
_UNTOLD = (
    "$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "enum", "const", "patternProperties", "propertyNames",
    "minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "dependencies",
)  # fmt: skip
_KEY = "/[A-Za-z_][A-Za-z0-9_]{0,63}/"
_PYTHON_TEXT = r"""/'([^'\\\x00-\x1f\x7f]|\\['\\"nrt])*'/"""
_PYTHON_INNER = r"""/[^'\\\x00-\x1f\x7f]*/"""
_PYTHON_WORDS = {"boolean": '"True" | "False"', "null": '"None"'}
_LIST_WORDS = frozenset(("type", "items", "minItems", "maxItems", "title", "description", "default"))


@dataclass(frozen=True, slots=True)
class _Tags:
    """What is written around keys and values. `closing` ends a value; `mark` is the part of it that readers look for."""

    before_key: str
    after_key: str
    before_value: str
    closing: str
    mark: str


_TAGS = {
    "qwen_xml": _Tags("<parameter=", ">\n", "", "\n</parameter>", "</parameter>"),
    "glm_xml": _Tags("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</arg_value>"),
}
PYTHON = "python"
STYLES = (*_TAGS, PYTHON)


class ArgumentsWriter:
    """Writes rules into `book`; `schema` makes a checked schema with its layout."""

    def __init__(self, book: RuleBook, schema: Callable[[Any], Any]) -> None:
        self._book, self._schema = book, schema

    def write(self, style: str, schema: Mapping[str, Any]) -> str:
        """The right side of a rule for an object of that schema."""
        if not schema.get("properties") and schema.get("additionalProperties", True) is not False:
            return self._open(style, schema)
        members = _members(schema)
        return self._python(schema, members) if style == PYTHON else self._tagged(schema, members, _TAGS[style])

    def _open(self, style: str, root: Mapping[str, Any]) -> str:
        """Any arguments, where the schema names none."""
        _members(root)  # for its refusals
        any_member = _Member("", root.get("additionalProperties", True), False)
        if style == PYTHON:
            key = self._book.terminal(f"{_KEY} & ~({' | '.join(map(json.dumps, keyword.kwlist))})")
            written = self._book.rule(f'{key} "=" {self._python_value(any_member.schema, root, 0)}')
            return self._book.rule(f'({written} ("," " "? {written})*)?')
        tags = _TAGS[style]
        head = f"{self._book.literal(tags.before_key)} {_KEY} {self._book.literal(tags.after_key)}"
        return self._book.rule(f"({head} {self._tagged_value(any_member, root, tags)})*")

    def _json(self, schema: Any, root: Mapping[str, Any]) -> str:
        """A value in JSON; the definitions come along."""
        definitions = {group: root[group] for group in ("$defs", "definitions") if group in root}
        part = {**schema, **definitions} if isinstance(schema, Mapping) else schema
        return f"%json {json.dumps(self._schema(part))}"

    # ---------------------------------------------------------------------------------------------------- tags
    def _tagged(self, root: Mapping[str, Any], members: Sequence[_Member], tags: _Tags) -> str:
        """Arguments in the schema's order."""
        parts = []
        for member in members:
            name = member.name
            if name != name.strip() or tags.after_key.strip() in name or self._book.holds_control(name):
                _refuse(f"has an argument {name[:80]!r} whose name cannot be written between tags")
            head = self._book.literal(tags.before_key + name + tags.after_key)
            rule = self._book.rule(f"{head} {self._tagged_value(member, root, tags)}")
            parts.append(rule if member.is_required else f"{rule}?")
        return self._book.rule(" ".join(parts) or '""')

    def _tagged_value(self, member: _Member, root: Mapping[str, Any], tags: _Tags) -> str:
        """A value, with what is before it and what ends it."""
        found = branches(member.schema, root)
        if {branch.kind for branch in found} & {"string", ANY, OPAQUE}:
            try:
                text = self._book.terminal(plain_text(found, tags.mark))
            except CannotBeTold as error:
                _refuse(f"has an argument {member.name[:80]!r} that {error}")
            value = self._book.up_to(text, [tags.closing])
        else:
            value = f"{self._json(member.schema, root)} {self._book.literal(tags.closing)}"
        before = f'"\\n"? {self._book.literal(tags.before_value)} ' if tags.before_value else ""
        return f'{before}{value} "\\n"?'

    # -------------------------------------------------------------------------------------------------- python
    def _python(self, root: Mapping[str, Any], members: Sequence[_Member]) -> str:
        """Keyword arguments in the schema's order. Of the rules, `first` is for when nothing is written yet."""
        first, later = '""', '""'
        for member in reversed(members):
            if not member.name.isidentifier() or keyword.iskeyword(member.name):
                _refuse(f"has an argument {member.name[:80]!r} that is no name in Python, as this notation wants")
            value = self._python_value(member.schema, root, 0)
            written = self._book.rule(f"{json.dumps(member.name + '=')} {value} {later}")
            first = self._book.rule(written if member.is_required else f"{written} | {first}")
            later = self._book.rule(f'"," " "? {written}' + ("" if member.is_required else f" | {later}"))
        return first

    def _python_value(self, schema: Any, root: Mapping[str, Any], depth: int) -> str:
        """A literal of Python's, or JSON, whose values read the same."""
        found = branches(schema, root)
        kinds = {branch.kind for branch in found}
        if OPAQUE in kinds:
            return self._json(schema, root)
        if ANY in kinds:
            return self._book.rule(" | ".join([self._json(schema, root), _PYTHON_TEXT, *_PYTHON_WORDS.values()]))
        return self._book.rule(" | ".join(self._python_branch(branch, root, depth) for branch in found))

    def _python_branch(self, branch: Branch, root: Mapping[str, Any], depth: int) -> str:
        if branch.values is not None and branch.kind == "string":
            return " | ".join(json.dumps(spelled) for value in branch.values for spelled in _quoted(value))
        if branch.is_plain and branch.kind in _PYTHON_WORDS:
            return f"{self._json(branch.schema, root)} | {_PYTHON_WORDS[branch.kind]}"
        if branch.kind == "string":
            return " | ".join([self._json(branch.schema, root), *self._python_text(branch)])
        if branch.kind == "array" and branch.values is None and depth < MAX_NESTED and branch.schema.keys() <= _LIST_WORDS:
            with contextlib.suppress(CannotBeTold):
                return self._python_list(branch.schema, root, depth)
        return self._json(branch.schema, root)

    def _python_text(self, branch: Branch) -> list[str]:
        """A text in single quotes, as far as it can be bound there; that in double quotes is JSON."""
        if branch.is_plain:
            return [_PYTHON_TEXT]
        try:
            inner = self._book.terminal(" & ".join([*text_terms(branch.schema), _PYTHON_INNER]))
        except CannotBeTold:
            return []
        return [self._book.terminal(f'"\'" {inner} "\'"')]

    def _python_list(self, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> str:
        least, most = count(schema, "minItems") or 0, count(schema, "maxItems")
        item = self._python_value(schema.get("items", True), root, depth + 1)
        bound = f"{{{max(0, least - 1)},{'' if most is None else max(0, most - 1)}}}"
        several = self._book.rule(f'{item} ("," " "? {item}){bound}' if most != 0 else '""')
        return f'"[" {several}{"" if least else "?"} "]"'


@dataclass(frozen=True, slots=True)
class _Member:
    """One argument."""

    name: str
    schema: Any
    is_required: bool


def _members(schema: Mapping[str, Any]) -> list[_Member]:
    """The arguments that a schema names; those that it only does not forbid are never written."""
    odd = next((word for word in _UNTOLD if word in schema), None)
    if odd is not None:
        _refuse(f"has {odd} beside the arguments, which can be honoured only where they are written as JSON")
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, Mapping) or not isinstance(required, list):
        _refuse("has properties that are no object, or required that is no list")
    unknown = next((name for name in required if not isinstance(name, str) or name not in properties), None)
    if unknown is not None:
        _refuse(f"requires an argument {str(unknown)[:80]!r} that is not among the properties")
    return [_Member(name, part, name in required) for name, part in properties.items()]


def _quoted(value: str) -> list[str]:
    """The two spellings of a text in Python, as far as they differ."""
    return list(dict.fromkeys((json.dumps(value, ensure_ascii=False), repr(value))))


def _refuse(what: str) -> NoReturn:
    raise InvalidRequest(f"structural_tag {what}", param="structural_tag")
