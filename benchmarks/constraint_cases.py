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
from random_schemas import random_schema

Check = Callable[[str], bool]


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
        schema = random_schema(chance)
        cases.append(Case("json_schema", json.dumps(schema), _validator(schema)))
    return cases


def _validator(schema: Any) -> Check:
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    checker = kind(schema, format_checker=kind.FORMAT_CHECKER)

    def check(text: str) -> bool:
        return bool(checker.is_valid(json.loads(text)))

    return check


def regex_cases(count: int, seed: int) -> list[Case]:
    """Regular expressions that Rust and Python read alike."""
    chance = random.Random(seed)
    return [_regex_case(_regex(chance, 0)) for _ in range(count)]


def _regex_case(pattern: str) -> Case:
    compiled = re.compile(pattern)
    return Case("regex", pattern, lambda text: compiled.fullmatch(text) is not None)


def _regex(chance: random.Random, depth: int) -> str:
    atoms = ["a", "xyz", "[a-f]", "[^0-9\\n]", "[0-9]", "\\.", "[A-Z][a-z]", " ", "é", "(?:true|false)", "/", "\\\\"]
    atoms += ["\\d", "\\s", ".", "[\\u4e00-\\u4e20]", "(?i:ok)", "\\[", "[\\]^-]", "\\u00fc"]
    if depth < 2:
        atoms += [f"({_regex(chance, depth + 1)}|{_regex(chance, depth + 1)})", f"(?:{_regex(chance, depth + 1)})"]
    counts = ["", "", "?", "{2}", "{1,4}", "{0,2}", "{3,5}", "??", "{1,3}?", "+", "*"]
    return "".join(chance.choice(atoms) + chance.choice(counts) for _ in range(chance.randint(1, 4)))


def ebnf_cases(count: int, seed: int) -> list[Case]:
    """GBNF grammars: sums, nested lists, records, options and repetitions, some of them recursive."""
    chance = random.Random(seed)
    makers = [_sums, _lists, _records, _sentences, _json, _chains, _rows]
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


def _json(chance: random.Random) -> Case:
    """The grammar of JSON that llama.cpp's users copy."""
    depth = chance.choice(["object", "array", "object | array"])
    grammar = (
        f'root ::= {depth}\nvalue ::= object | array | string | number | ("true" | "false" | "null") ws\n'
        'object ::=\n  "{" ws (\n    string ":" ws value\n    ("," ws string ":" ws value)*\n  )? "}" ws\n'
        'array ::=\n  "[" ws (\n    value\n    ("," ws value)*\n  )? "]" ws\n'
        'string ::= "\\"" ([^"\\\\\\x7F\\x00-\\x1F] | "\\\\" (["\\\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\\"" ws\n'
        'number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws\n'
        'ws ::= | " " | "\\n" [ \\t]{0,20}\n'
    )
    return Case("ebnf", grammar, lambda text: isinstance(json.loads(text), dict | list))


def _chains(chance: random.Random) -> Case:
    """A rule that begins with itself, and one that ends so."""
    last = chance.choice(";.!")
    grammar = f'root ::= chain "{last}"\nchain ::= chain ">" step | step\nstep ::= "a" step | "b"\n'
    return Case("ebnf", grammar, lambda text: re.fullmatch(f"a*b(>a*b)*{re.escape(last)}", text) is not None)


def _rows(chance: random.Random) -> Case:
    """A table: sets of characters, escapes by number, alternatives on lines of their own, a comment."""
    count = chance.randint(2, 4)
    grammar = (
        f'root ::= row{{{count}}}  # "rows"\nrow ::= cell ("," cell){{2}} "\\n"\n'
        'cell ::=\n  [^,"\\n\\r]{1,8}\n  | "\\x22" [^"\\n\\r]{0,8} "\\x22"\n  | "\\u00e9\\u4e2d"\n'
    )
    cell = '(?:[^,"\\n\\r]{1,8}|"[^"\\n\\r]{0,8}"|é中)'
    return Case("ebnf", grammar, lambda text: re.fullmatch(f"(?:{cell}(?:,{cell}){{2}}\\n){{{count}}}", text) is not None)


def _sentences(chance: random.Random) -> Case:
    who, does, what = ["The cat", "A dog", "Somebody"], ["sees", "finds"], ["a mouse", "the house", "nothing"]
    rules = [
        f"{name} ::= " + " | ".join(f'"{option}"' for option in options)
        for name, options in zip("wdt", (who, does, what), strict=True)
    ]
    grammar = 'root ::= w " " d " " t end\nend ::= "." | "!" | " and" " " d " " t "."\n' + "\n".join(rules)
    w, d, t = ("|".join(options) for options in (who, does, what))
    return Case("ebnf", grammar, lambda text: re.fullmatch(f"({w}) ({d}) ({t})(\\.|!| and ({d}) ({t})\\.)", text) is not None)
