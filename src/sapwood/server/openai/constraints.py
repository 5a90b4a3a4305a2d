"""Constraints on the OpenAI routes: `response_format`, and what vLLM, SGLang and llama-server call it.

Owns the names; compiles nothing. Invariant: a field or a type that is not known here is refused by name, not dropped.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sapwood.core.constraint import ConstraintKind
from sapwood.errors import InvalidRequest
from sapwood.server.body import Decoder
from sapwood.server.constraints import Wanted, only_one, want

_KINDS: dict[str, ConstraintKind] = {
    "json_schema": "json_schema",
    "regex": "regex",
    "ebnf": "ebnf",
    "structural_tag": "structural_tag",
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "ebnf",
    "grammar": "ebnf",
}
_OUTPUTS: dict[str, ConstraintKind] = {
    "json": "json_schema",
    "regex": "regex",
    "choice": "choice",
    "grammar": "ebnf",
    "json_object": "json_object",
    "structural_tag": "structural_tag",
}


class ConstraintFields(msgspec.Struct, kw_only=True):
    """`response_format`; the same directly (SGLang, llama-server), as `guided_…` (vLLM before) and in `structured_outputs`."""

    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    json_schema: dict[str, Any] | str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: dict[str, Any] | str | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    grammar: str | None = None


_fields: Decoder[ConstraintFields] = Decoder(ConstraintFields)


def read_constraint(data: bytes) -> Wanted | None:
    """The constraint that a body asks for; raises InvalidRequest for one that is not known, or for two."""
    fields = _fields.decode(data)
    direct = [want(name, kind, value) for name, kind in _KINDS.items() if (value := getattr(fields, name))]
    return only_one([_response_format(fields.response_format), _outputs(fields.structured_outputs), *direct])


def _response_format(value: dict[str, Any] | None) -> Wanted | None:
    match value:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object", "schema": dict(schema)}:
            return want("response_format.schema", "json_schema", schema)
        case {"type": "json_object"}:
            return want("response_format", "json_object", None)
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return want("response_format.json_schema.schema", "json_schema", schema)
        case {"type": "json_schema"}:
            message = "response_format.json_schema.schema is missing, or no object; send the schema"
            raise InvalidRequest(message, param="response_format.json_schema.schema")
        case {"type": "structural_tag"}:
            return want("response_format", "structural_tag", value)
    message = "response_format must have the type text, json_object, json_schema or structural_tag"
    raise InvalidRequest(message, param="response_format")


def _outputs(value: dict[str, Any] | None) -> Wanted | None:
    given = {name: each for name, each in (value or {}).items() if each is not None and each is not False}
    unknown = given.keys() - _OUTPUTS.keys()
    if unknown:
        name = f"structured_outputs.{min(unknown)}"
        raise InvalidRequest(f"{name} is not supported by this server; leave it out", param=name)
    return only_one(want(f"structured_outputs.{name}", _OUTPUTS[name], each) for name, each in given.items())
