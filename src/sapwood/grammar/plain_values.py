"""Values of arguments that are written without quotes: which kinds a schema allows, and what a text between tags means.

Knows JSON Schema as far as kinds go; knows no tags. Invariant: what may only be a text is read as it stands, and where a text is
one of several kinds, it is read as another one only if it is JSON of a kind that the schema names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

ANY, OPAQUE = "any", "opaque"
"""Kinds beside JSON's own: whatever it is; and what is too intricate to tell."""
KINDS = frozenset(("string", "integer", "number", "boolean", "null", "array", "object"))
ANNOTATIONS = frozenset(("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment"))
_COMBINATIONS, _LISTS = frozenset(("$ref", "anyOf", "oneOf", "allOf")), frozenset(("type", "enum", "const"))
_DEFINITIONS = ("#/$defs/", "#/definitions/")
_MAX_DEPTH, _MAX_BRANCHES = 16, 256


@dataclass(frozen=True, slots=True)
class Branch:
    """One of the forms that a value may have. `schema` is that of this form, `values` are all there are, if they are listed."""

    kind: str
    schema: Mapping[str, Any]
    values: tuple[Any, ...] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether every value of this kind will do."""
        return self.values is None and not self.schema.keys() - ANNOTATIONS - {"type"}


def branches(schema: Any, root: Mapping[str, Any]) -> list[Branch]:
    """The forms that a schema allows; references are looked up in `root`."""
    return _Walk(root).walk(schema, 0)


class _Walk:
    """Follows a schema's alternatives, as many as people write; what is beyond is opaque."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root, self._num_left = root, _MAX_BRANCHES

    def walk(self, schema: Any, depth: int) -> list[Branch]:
        self._num_left -= 1
        if schema is True:
            return [Branch(ANY, {})]
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH or self._num_left < 0:
            return [Branch(OPAQUE, {})]
        asserted = schema.keys() - ANNOTATIONS
        if not asserted:
            return [Branch(ANY, schema)]
        if len(asserted) == 1 and asserted <= _COMBINATIONS:
            [name] = asserted
            return self._combined(name, schema[name], depth)
        listed = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(listed, list) and asserted <= _LISTS and not {"const", "enum"} <= asserted:
            return _listed(listed, schema)
        names = schema.get("type", [])
        kinds = names if isinstance(names, list) else [names]
        if not kinds or not all(isinstance(kind, str) and kind in KINDS for kind in kinds):
            return [Branch(OPAQUE, schema)]
        return [Branch(kind, {**schema, "type": kind}) for kind in kinds]

    def _combined(self, name: str, value: Any, depth: int) -> list[Branch]:
        """The forms behind a keyword that stands alone in its schema."""
        if name == "$ref":
            return self.walk(_target(value, self._root), depth + 1)
        parts = value if isinstance(value, list) else []
        found = [branch for part in parts for branch in self.walk(part, depth + 1)]
        kinds = [branch.kind for branch in found]
        is_told_apart = len(set(kinds)) == len(kinds) and not {"integer", "number"} <= set(kinds)
        if not found or (name == "oneOf" and not is_told_apart) or (name == "allOf" and len(parts) != 1):
            return [Branch(OPAQUE, {})]
        return found


def kinds_of(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """The kinds of values that a schema allows."""
    return frozenset(branch.kind for branch in branches(schema, root))


def read_plain(text: str, kinds: frozenset[str]) -> Any:
    """The value that a text means where values of those kinds may stand."""
    if kinds == {"string"}:
        return text
    word = text.strip()
    if "string" not in kinds and word in _WORDS:
        return _WORDS[word]
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return text
    if "string" in kinds and not kinds & {ANY, OPAQUE} and (isinstance(value, str) or not _is_one_of(value, kinds)):
        return text
    return value


_WORDS = {"True": True, "False": False, "None": None}
"""Python's spellings, which some models use."""


def kind_of(value: Any) -> str:
    """The kind of a JSON value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def _is_one_of(value: Any, kinds: Iterable[str]) -> bool:
    kind = kind_of(value)
    return kind in kinds or (kind == "integer" and "number" in kinds)


def _target(reference: Any, root: Mapping[str, Any]) -> Any:
    for start in _DEFINITIONS:
        if isinstance(reference, str) and reference.startswith(start):
            group = root.get(start[2:-1])
            return group.get(reference.removeprefix(start)) if isinstance(group, Mapping) else None
    return None


def _listed(values: list[Any], schema: Mapping[str, Any]) -> list[Branch]:
    """A form for each kind of the values in a list, as far as the type beside it allows."""
    names = schema.get("type")
    allowed = None if names is None else names if isinstance(names, list) else [names]
    kept = [value for value in values if allowed is None or _is_one_of(value, allowed)]
    by_kind = {kind: tuple(value for value in kept if kind_of(value) == kind) for kind in dict.fromkeys(map(kind_of, kept))}
    return [Branch(kind, {"enum": list(found)}, found) for kind, found in by_kind.items()] or [Branch(OPAQUE, schema)]


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large")
    return value
