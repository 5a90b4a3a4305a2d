"""A constraint in llguidance's own notation.

Owns the translation of every kind; compiles nothing. Invariant: the result means what the client's text means, or an
InvalidRequest names the kind and says what is wrong: nothing is dropped silently.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
from llguidance import LLMatcher

from sapwood.core.constraint import Constraint
from sapwood.errors import InvalidRequest
from sapwood.grammar.api import GrammarOptions
from sapwood.grammar.gbnf import gbnf_to_lark
from sapwood.grammar.runs import check_grammar, check_length, check_regex
from sapwood.grammar.schema import check_schema, with_closed_bounds
from sapwood.grammar.tags import tag_grammar

MAX_CHOICES = 10_000
ANY_WHITESPACE = r"[\x20\x0A\x0D\x09]{0,40}"
"""Enough for any sensible layout; a model that writes nothing but spaces comes to an end."""


def to_source(constraint: Constraint, options: GrammarOptions) -> str:
    """The constraint as llguidance reads it; raises InvalidRequest."""
    _check_size(constraint, options.limits.num_bytes)
    match constraint.kind:
        case "json_schema":
            return schema_source(read_json(constraint.text, "json_schema"), options)
        case "json_object":
            return schema_source({"type": "object"}, options)
        case "regex":
            check_regex(constraint.text, "regex")
            return LLMatcher.grammar_from_regex(constraint.text)
        case "ebnf":
            return LLMatcher.grammar_from_lark(_to_lark(constraint.text))
        case "choice":
            return LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(text) for text in _choices(constraint.text)))
        case "structural_tag":
            value = read_json(constraint.text, "structural_tag")
            grammars = tag_grammar(value, lambda schema: _laid_out(schema, options), _to_lark, options.control_ids)
            for grammar in grammars["grammars"]:
                check_grammar(grammar.get("lark_grammar", ""), "structural_tag")
            return json.dumps(grammars)


def _check_size(constraint: Constraint, most: int) -> None:
    size = len(constraint.text.encode(errors="surrogatepass"))
    if size > most:
        message = f"{constraint.kind} has {size} bytes, {most} are the limit; make it smaller"
        raise InvalidRequest(message, param=constraint.kind)


def read_json(text: str, kind: str) -> Any:
    """The JSON value that `text` spells."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"{kind} is not valid JSON: {error}", param=kind) from None
    except RecursionError:
        raise InvalidRequest(f"{kind} is nested too deeply; flatten it", param=kind) from None


def schema_source(schema: Any, options: GrammarOptions) -> str:
    """A JSON Schema as a grammar."""
    return LLMatcher.grammar_from_json_schema(_laid_out(schema, options))


def _laid_out(schema: Any, options: GrammarOptions) -> Any:
    """The schema, checked, with what llguidance should know of the layout; whatever the client wrote about that is replaced."""
    check_schema(schema, options.limits.schema_depth)
    layout: dict[str, Any]
    if options.any_whitespace:
        layout = {"whitespace_pattern": ANY_WHITESPACE}
    else:
        layout = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    if schema is True:
        schema = {}
    return {**with_closed_bounds(schema), "x-guidance": {**layout, "lenient": False, "coerce_one_of": False}}


def _choices(text: str) -> list[str]:
    choices = read_json(text, "choice")
    if not isinstance(choices, list) or not choices or not all(isinstance(item, str) and item for item in choices):
        raise InvalidRequest("choice must be a list of texts, none of them empty", param="choice")
    if len(choices) > MAX_CHOICES:
        raise InvalidRequest(f"choice has {len(choices)} entries, {MAX_CHOICES} are the limit", param="choice")
    check_length(max(map(len, choices)), "choice")
    return choices


def _to_lark(text: str) -> str:
    """GBNF (llama.cpp's, xgrammar's) as Lark; Lark as it is."""
    check_grammar(lark := gbnf_to_lark(text) if "::=" in text else text, "ebnf")
    return lark
