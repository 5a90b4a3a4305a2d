"""Seeded JSON Schemas that use, between them, what people write: every type, references, unions, bounds, formats, annotations.

Equal generators give equal schemas. Some use what no grammar can honour, so that refusals are tried too.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

WORDS = ("name", "age", "city", "is_open", "tags", "price", "address", "kind", "note", "size", "größe", "a b", 'q"t')
FORMATS = ("date", "time", "date-time", "email", "uuid", "ipv4", "ipv6", "hostname", "uri", "duration")


def random_schema(chance: random.Random) -> Any:
    """A schema: mostly an object, now and then of another kind, a recursive one, or one of an older draft."""
    definitions: dict[str, Any] = {}
    maker = chance.choice([_object, _object, _object, _object, _root, _root])
    schema = maker(chance, 0, definitions)
    if definitions:
        schema = {**schema, "$defs": {**schema.get("$defs", {}), **definitions}}
    return schema


def _root(chance: random.Random, depth: int, definitions: dict[str, Any]) -> Any:
    makers = [_array, _union, _variants, _choice, _string, _number, _tree, _old_draft, _merged, _annotated, _open, _many]
    return chance.choice(makers)(chance, depth, definitions)


def _variants(chance: random.Random, depth: int, definitions: dict[str, Any]) -> Any:
    """Objects told apart by a constant."""
    options = [
        {
            "type": "object",
            "properties": {"kind": {"const": kind}, kind: _value(chance, 3, definitions)},
            "required": ["kind", kind],
            "additionalProperties": False,
        }
        for kind in chance.sample(("circle", "square", "line"), 2)
    ]
    return {chance.choice(["anyOf", "oneOf"]): options}


def _tree(chance: random.Random, depth: int, definitions: dict[str, Any]) -> Any:
    """Refers to itself as a whole."""
    children = {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}
    properties = {"v": _small(chance, 3, definitions), "children": children}
    return {"type": "object", "properties": properties, "required": ["v", "children"], "additionalProperties": False}


def _old_draft(chance: random.Random, depth: int, definitions: dict[str, Any]) -> Any:
    """Draft 7: `definitions`, and tuples as lists of `items`."""
    pair = {"type": "array", "items": [_number(chance, 3, {}), _small(chance, 3, {})], "additionalItems": False, "minItems": 2}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "definitions": {"a/b": pair, "c d": _string(chance, 3, {})},
        "type": "object",
        "properties": {"pair": {"$ref": "#/definitions/a~1b"}, "text": {"$ref": "#/definitions/c%20d"}},
        "required": ["pair", "text"],
        "additionalProperties": False,
    }


def _merged(chance: random.Random, depth: int, definitions: dict[str, Any]) -> Any:
    """Parts that hold at once."""
    a = {"type": "object", "properties": {"a": _number(chance, 3, definitions)}, "required": ["a"]}
    b = {"type": "object", "properties": {"b": _string(chance, 3, definitions)}, "required": ["b"]}
    if chance.random() < 0.5:
        return {"allOf": [a, b], "unevaluatedProperties": False}
    closed = {"properties": {"a": True, "b": True}, "additionalProperties": False}
    return {"allOf": [a, b, closed]}


def _annotated(chance: random.Random, depth: int, definitions: dict[str, Any]) -> Any:
    """With words that mean nothing to a validator, as generators of schemas write them."""
    return {
        "$id": "https://example.org/item",
        "title": "Item",
        "description": 'An "item"\nof a list',
        "type": "object",
        "properties": {
            "x": {**_number(chance, 3, definitions), "title": "X", "default": 3, "examples": [1, 2]},
            "y": {"anyOf": [_string(chance, 3, definitions), {"type": "null"}], "default": None, "deprecated": True},
            "z": {"$ref": "#/$defs/Colour", "description": "of the item", "readOnly": True},
        },
        "required": ["x", "y", "z"],
        "additionalProperties": False,
        "$defs": {"Colour": {"enum": ["red", "green", "blue"], "title": "Colour", "type": "string"}},
    }


def _open(chance: random.Random, depth: int, definitions: dict[str, Any]) -> Any:
    """Hardly anything said."""
    choices: list[Any] = [
        {},
        {"type": ["object", "array"]},
        {"type": "object", "required": ["undeclared"]},
        {"properties": {"a": {"type": "integer"}}},
        {"type": ["integer", "null"], "minimum": 3, "maximum": 12},
        {"type": "array", "prefixItems": [{"type": "boolean"}], "maxItems": 3},
        {"minLength": 2, "maxLength": 5, "maxItems": 2, "maxProperties": 1},
    ]
    return dict(chance.choice(choices))


def _many(chance: random.Random, depth: int, definitions: dict[str, Any]) -> Any:
    """A long list of values, some the beginnings of others, or many optional properties."""
    names = [f"value {number}" for number in range(chance.randint(20, 120))]
    if chance.random() < 0.5:
        return {"enum": names}
    properties = {name: {"type": "boolean"} for name in names[:20]}
    return {"type": "object", "properties": properties, "additionalProperties": False, "maxProperties": 20}


def _object(chance: random.Random, depth: int, definitions: dict[str, Any]) -> dict[str, Any]:
    names = chance.sample(WORDS, chance.randint(1, 4))
    required = [name for name in names if chance.random() < 0.7]
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: _value(chance, depth + 1, definitions) for name in names},
        "required": required,
    }
    if chance.random() < 0.8:
        schema["additionalProperties"] = False
    elif chance.random() < 0.5:
        schema["additionalProperties"] = {"type": "integer"}
    return schema


def _value(chance: random.Random, depth: int, definitions: dict[str, Any]) -> Any:
    makers: list[Callable[[random.Random, int, dict[str, Any]], Any]] = [_string, _number, _small, _choice, _string, _number]
    if depth < 3:
        makers += [_object, _array, _union, _reference, _variants, _rare]
    return chance.choice(makers)(chance, depth, definitions)


def _string(chance: random.Random, depth: int, definitions: dict[str, Any]) -> Any:
    return chance.choice(
        [
            {"type": "string", "maxLength": chance.randint(1, 12)},
            {"type": "string", "minLength": 2, "maxLength": 9},
            {
                "type": "string",
                "pattern": chance.choice(
                    ["^[A-Z]{2}[0-9]{3}$", "^(red|green)-[a-f]{1,4}$", "^\\d{4}$", "b+a?n", '^[^"]{2,5}$', "^(?:x|yy)*$"]
                ),
                "maxLength": 30,
            },
            {"type": "string", "format": chance.choice(FORMATS)},
            {"type": "string", "description": "anything", "maxLength": 20},
        ]
    )


def _number(chance: random.Random, depth: int, definitions: dict[str, Any]) -> Any:
    low = chance.randint(-50, 50)
    return chance.choice(
        [
            {"type": "integer", "minimum": low, "maximum": low + chance.randint(0, 200)},
            {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": low + chance.randint(2, 20)},
            {"type": "number", "minimum": low, "maximum": low + 1.5},
            {"type": "integer", "minimum": 0, "maximum": 1000, "multipleOf": chance.choice([2, 5, 7])},
            {"type": "number", "minimum": 0, "maximum": 2, "multipleOf": chance.choice([0.25, 0.5])},
            {"type": "number", "exclusiveMinimum": low / 8, "exclusiveMaximum": low / 8 + 0.01},
            {"type": "integer"},
            {"type": "number"},
        ]
    )


def _small(chance: random.Random, depth: int, definitions: dict[str, Any]) -> Any:
    return {"type": chance.choice(["boolean", "null"])}


def _choice(chance: random.Random, depth: int, definitions: dict[str, Any]) -> Any:
    values: list[Any] = ["red", "green blue", 3, -1.5, True, None, "grün", "a\nb", ["x", 1], {"k": "v"}]
    return chance.choice([{"enum": chance.sample(values, 3)}, {"const": chance.choice(values)}])


def _array(chance: random.Random, depth: int, definitions: dict[str, Any]) -> Any:
    few = {"type": "array", "minItems": chance.randint(0, 2), "maxItems": chance.randint(2, 4)}
    if chance.random() < 0.3:
        prefix = [_value(chance, depth + 1, definitions) for _ in range(2)]
        return {"type": "array", "prefixItems": prefix, "items": False, "minItems": 2}
    return {**few, "items": _value(chance, depth + 1, definitions)}


def _union(chance: random.Random, depth: int, definitions: dict[str, Any]) -> Any:
    options = [{"type": "string", "maxLength": 8}, {"type": "integer", "minimum": 0, "maximum": 99}, {"type": "null"}]
    if chance.random() < 0.4:
        return {"type": ["string", "null"], "maxLength": 6}
    return {chance.choice(["anyOf", "oneOf"]): chance.sample(options, 2)}


def _reference(chance: random.Random, depth: int, definitions: dict[str, Any]) -> Any:
    if chance.random() < 0.3:  # a list as a recursive type
        link = {"type": "object", "properties": {"v": {"type": "integer", "minimum": 0, "maximum": 9}, "next": {"anyOf": [
            {"$ref": "#/$defs/link"}, {"type": "null"}]}}, "required": ["v", "next"], "additionalProperties": False}  # fmt: skip
        definitions["link"] = link
        return {"$ref": "#/$defs/link"}
    name = f"d{len(definitions)}"
    definitions[name] = {}
    definitions[name] = _value(chance, 3, definitions)
    return {"$ref": f"#/$defs/{name}"}


def _rare(chance: random.Random, depth: int, definitions: dict[str, Any]) -> Any:
    return chance.choice(
        [
            {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 12}]},
            {"type": "object", "patternProperties": {"^x_[a-z]{1,3}$": {"type": "integer", "minimum": 0, "maximum": 9}},
             "additionalProperties": False, "maxProperties": 2},
            {"type": "object", "minProperties": 1, "maxProperties": 2, "additionalProperties": {"type": "boolean"}},
            {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "maxItems": 3},
            {"not": {"type": "string"}},
            {"type": "array", "contains": {"const": 1}, "maxItems": 3},
            {"if": {"type": "string"}, "then": {"maxLength": 3}},
            {"type": "object", "propertyNames": {"maxLength": 2}, "maxProperties": 1},
            {"type": "object", "dependentRequired": {"a": ["b"]}},
            {"type": "array", "items": {"type": "integer"}, "contains": {"const": 1}, "minContains": 2, "maxItems": 3},
            {"type": "string", "contentEncoding": "base64", "maxLength": 8},
            {"$dynamicRef": "#node"},
            {"$ref": "https://example.org/elsewhere.json"},
            False,
        ]
    )  # fmt: skip
