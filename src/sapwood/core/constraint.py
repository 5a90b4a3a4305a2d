"""What a completion may consist of, as a request asks for it.

Owns the kinds of constraints and their limits of size; does not compile them (`grammar/`). Invariant: a `Constraint` is a value:
equal ones mean the same, so it is the key under which compiled grammars are kept.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from sapwood.errors import InvalidRequest

ConstraintKind = Literal["json_schema", "json_object", "regex", "ebnf", "structural_tag", "choice"]

MAX_CONSTRAINT_BYTES = 256 * 1024
MAX_START_IDS = 64


class Constraint(msgspec.Struct, frozen=True, omit_defaults=True):
    """The completion must be a text of this language; it ends when nothing can follow.

    `text` by kind: json_schema: a JSON Schema; json_object: "" (any JSON object); regex: a regular expression that the whole
    completion matches; ebnf: a GBNF grammar (`root ::= …`) or a Lark grammar (`start: …`); structural_tag: JSON that says which
    parts of free text are constrained; choice: a JSON list of strings. With `starts_after`, the completion is free (but cannot
    end) until these ids have come in a row: how a model that thinks first is constrained.
    """

    kind: ConstraintKind
    text: str = ""
    starts_after: tuple[int, ...] = ()


def validate_constraint(constraint: Constraint, vocab_size: int) -> None:
    """Raise InvalidRequest for what is too long or not in the vocabulary; whether it compiles is not looked at."""
    try:
        size = len(constraint.text.encode())
    except UnicodeEncodeError:
        raise InvalidRequest(f"{constraint.kind} holds half of a surrogate pair; send text", param=constraint.kind) from None
    if size > MAX_CONSTRAINT_BYTES:
        message = f"{constraint.kind} has {size} bytes, {MAX_CONSTRAINT_BYTES} are the limit; make it smaller"
        raise InvalidRequest(message, param=constraint.kind)
    if len(constraint.starts_after) > MAX_START_IDS or not all(0 <= token < vocab_size for token in constraint.starts_after):
        message = f"starts_after must be at most {MAX_START_IDS} ids of the vocabulary (0..{vocab_size - 1})"
        raise InvalidRequest(message, param="starts_after")


class PrepareGrammar(msgspec.Struct, frozen=True):
    """Compile what request `number` will need."""

    number: int
    constraint: Constraint


class ForgetGrammar(msgspec.Struct, frozen=True):
    """Request `number` has ended."""

    number: int


GrammarOrder = PrepareGrammar | ForgetGrammar


class GrammarDone(msgspec.Struct, frozen=True, array_like=True):
    """The grammar of request `number` is compiled, or cannot be: then `error` says why."""

    number: int
    error: str = ""
