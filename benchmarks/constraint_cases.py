"""Seeded constraints of varied features, for the harness beside this file and for the tests.

Each case is a kind, its text, and a function that says whether a completion is of the language. Equal seeds give equal cases.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jsonschema

Check = Callable[[str], bool]
WORDS = ("name", "age", "city", "is_open", "tags", "price", "address", "kind", "note", "size", "größe", "a b", 'q"t')


@dataclass(frozen=True)
class Case:
    """One constraint; `check` judges a whole completion."""

    kind: str
    text: str
    check: Check


def schema_cases(count: int, seed: int) -> list[Case]:
    """JSON Schemas: every type, nesting, references, unions, enumerations, bounds, patterns, formats; some cannot be honoured."""
    chance = random.Random(seed)
    cases = []
    for _ in range(count):
        definitions: dict[str, Any] = {}
        schema = _object(chance, 0, definitions)
        if definitions:
            schema = {**schema, "$defs": definitions}
        cases.append(Case("json_schema", json.dumps(schema), _validator(schema)))
    return cases


def _validator(schema: Any) -> Check:
    checker = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)

    def check(text: str) -> bool:
        return bool(checker.is_valid(json.loads(text)))

    return check


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
        makers += [_object, _array, _union, _reference, _rare]
    return chance.choice(makers)(chance, depth, definitions)


def _string(chance: random.Random, depth: int, definitions: dict[str, Any]) -> Any:
    return chance.choice(
        [
            {"type": "string", "maxLength": chance.randint(1, 12)},
            {"type": "string", "minLength": 2, "maxLength": 9},
            {"type": "string", "pattern": chance.choice(["^[A-Z]{2}[0-9]{3}$", "^(red|green)-[a-f]{1,4}$", "^\\d{4}$"])},
            {"type": "string", "format": chance.choice(["date", "time", "date-time", "email", "uuid", "ipv4"])},
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
        ]
    )  # fmt: skip


def regex_cases(count: int, seed: int) -> list[Case]:
    """Regular expressions that Rust and Python read alike."""
    chance = random.Random(seed)
    return [_regex_case(_regex(chance, 0)) for _ in range(count)]


def _regex_case(pattern: str) -> Case:
    compiled = re.compile(pattern)
    return Case("regex", pattern, lambda text: compiled.fullmatch(text) is not None)


def _regex(chance: random.Random, depth: int) -> str:
    atoms = ["a", "xyz", "[a-f]", "[^0-9\\n]", "[0-9]", "\\.", "[A-Z][a-z]", " ", "é", "(?:true|false)", "/", "\\\\"]
    if depth < 2:
        atoms += [f"({_regex(chance, depth + 1)}|{_regex(chance, depth + 1)})", f"(?:{_regex(chance, depth + 1)})"]
    counts = ["", "", "?", "{2}", "{1,4}", "{0,2}", "{3,5}"]
    return "".join(chance.choice(atoms) + chance.choice(counts) for _ in range(chance.randint(1, 4)))


def ebnf_cases(count: int, seed: int) -> list[Case]:
    """GBNF grammars: sums, nested lists, records, options and repetitions, some of them recursive."""
    chance = random.Random(seed)
    makers = [_sums, _lists, _records, _sentences]
    return [makers[index % len(makers)](chance) for index in range(count)]


def _sums(chance: random.Random) -> Case:
    signs = "".join(chance.sample("+*/%", 2))
    grammar = (
        f'root ::= term (op term){{1,{chance.randint(1, 4)}}}\nop ::= " "? [{signs}] " "?\n'
        'term ::= number | "(" number op number ")"\nnumber ::= [1-9] [0-9]{0,2}\n'
    )
    term, op = r"(?:[1-9][0-9]{0,2})", f" ?[{re.escape(signs)}] ?"
    term = f"(?:{term}|\\({term}{op}{term}\\))"
    return Case("ebnf", grammar, lambda text: re.fullmatch(f"{term}(?:{op}{term})+", text) is not None)


def _lists(chance: random.Random) -> Case:
    leaf = chance.choice(["x", "leaf", "no"])

    def check(text: str) -> bool:
        value = json.loads(re.sub(leaf, "0", text))
        return all(item == 0 or isinstance(item, list) for item in value)

    grammar = f'root ::= list\nlist ::= "[" (item ("," item){{0,2}})? "]"\nitem ::= "{leaf}" | list\n'
    return Case("ebnf", grammar, check)


def _records(chance: random.Random) -> Case:
    keys = chance.sample(["host", "port", "user", "mode"], 2)
    grammar = (
        f'# settings\nroot ::= "{keys[0]}=" word "\\n" "{keys[1]}=" word\nword ::= [a-z] [a-z0-9_]{{0,{chance.randint(2, 9)}}}\n'
    )
    pattern = f"{keys[0]}=[a-z][a-z0-9_]*\n{keys[1]}=[a-z][a-z0-9_]*"
    return Case("ebnf", grammar, lambda text: re.fullmatch(pattern, text) is not None)


def _sentences(chance: random.Random) -> Case:
    who, does, what = ["The cat", "A dog", "Somebody"], ["sees", "finds"], ["a mouse", "the house", "nothing"]
    rules = [
        f"{name} ::= " + " | ".join(f'"{option}"' for option in options)
        for name, options in zip("wdt", (who, does, what), strict=True)
    ]
    grammar = 'root ::= w " " d " " t end\nend ::= "." | "!" | " and" " " d " " t "."\n' + "\n".join(rules)
    w, d, t = ("|".join(options) for options in (who, does, what))
    return Case("ebnf", grammar, lambda text: re.fullmatch(f"({w}) ({d}) ({t})(\\.|!| and ({d}) ({t})\\.)", text) is not None)
