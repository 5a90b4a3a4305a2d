"""The words of the language: what programs write inside `s += ...`.

Owns SGLang's public names and their options; makes parts and runs nothing. Invariant: a word with a mistake in it raises where it
is written, not where it is run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Unpack, overload

from sapwood.errors import InvalidRequest
from sapwood.lang.choices import ChoiceMethod, token_length_normalized
from sapwood.lang.ir import Expr, Gen, Media, RoleBegin, RoleEnd, Select, as_expr
from sapwood.lang.program import Program
from sapwood.lang.reasoning import check_reasoning_format
from sapwood.lang.settings import GenOptions, gen_settings
from sapwood.lang.state import role_expr

PATTERNS: dict[Any, str] = {
    int: r"-?(0|[1-9][0-9]{0,17})",
    float: r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?",
    bool: r"(True|False|true|false)",
    str: r'"([^"\\\x00-\x1f]|\\["\\/bfnrt])*"',
}
"""What a generation of a type may look like."""
PATTERNS |= {kind.__name__: pattern for kind, pattern in PATTERNS.items()}


@overload
def function(func: Callable[..., Any], num_api_spec_tokens: int | None = None) -> Program: ...
@overload
def function(func: None = None, num_api_spec_tokens: int | None = None) -> Callable[[Callable[..., Any]], Program]: ...
def function(
    func: Callable[..., Any] | None = None, num_api_spec_tokens: int | None = None
) -> Program | Callable[[Callable[..., Any]], Program]:
    """Make a program of a function whose first parameter is `s`. With `num_api_spec_tokens` the first generation asks for so many
    tokens without a stop, and the following ones take theirs from what came, as long as the text agrees."""
    if func is not None:
        return Program(func, num_api_spec_tokens)
    return lambda body: Program(body, num_api_spec_tokens)


def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    *,
    dtype: type | str | None = None,
    choices: Sequence[str] | None = None,
    choices_method: ChoiceMethod | None = None,
    **options: Unpack[GenOptions],
) -> Expr:
    """What the model writes here, kept as variable `name`. Options that are not given are those of `run`.

    `dtype` (int, float, bool, str) or `regex`, `json_schema` or `ebnf` say what may be written; with `choices` the best of them
    is taken, as by `select`.
    """
    if choices is not None:
        return select(name, choices, options.get("temperature") or 0.0, choices_method or token_length_normalized)
    settings = gen_settings({"max_tokens": max_tokens, **options})
    if dtype is not None:
        settings = gen_settings({"max_tokens": max_tokens, **options, "regex": _pattern(dtype)})
    if sum(value is not None for value in (settings.regex, settings.json_schema, settings.ebnf)) > 1:
        raise InvalidRequest("give one of dtype, regex, json_schema and ebnf", param="regex")
    if settings.regex is not None:
        re.compile(settings.regex)
    return Expr((Gen(name, settings),))


def gen_int(name: str | None = None, max_tokens: int | None = None, **options: Unpack[GenOptions]) -> Expr:
    """`gen` of a whole number in decimal; the variable is its text."""
    return gen(name, max_tokens, dtype=int, **options)


def gen_string(name: str | None = None, max_tokens: int | None = None, **options: Unpack[GenOptions]) -> Expr:
    """`gen` of a text in double quotes, as JSON writes it; the quotes belong to the variable."""
    return gen(name, max_tokens, dtype=str, **options)


def select(
    name: str | None = None,
    choices: Sequence[str] | None = None,
    temperature: float = 0.0,
    choices_method: ChoiceMethod = token_length_normalized,
) -> Expr:
    """The choice that `choices_method` finds best, kept as variable `name`; the scores of all are its meta data."""
    if isinstance(choices, str) or not choices or not all(isinstance(choice, str) and choice for choice in choices):
        raise InvalidRequest("choices must be a list of texts that are not empty", param="choices")
    if temperature > 1e-5:
        raise InvalidRequest("select takes the best choice; sample with gen(regex=...)", param="temperature")
    return Expr((Select(name, tuple(choices), choices_method),))


def image(expr: object) -> Expr:
    """A picture (path, address or bytes). No model that is served so far looks at pictures: running it fails and says so."""
    return Expr((Media("image", expr),))


def video(path: object, num_frames: int = -1) -> Expr:
    """A film; like `image`."""
    return Expr((Media("video", (path, num_frames)),))


def system(expr: object = None) -> Expr:
    """A message of the system."""
    return role_expr("system", expr)


def user(expr: object = None) -> Expr:
    """A message of the user."""
    return role_expr("user", expr)


def assistant(expr: object = None) -> Expr:
    """A message of the assistant."""
    return role_expr("assistant", expr)


def system_begin() -> Expr:
    """The beginning of a message of the system."""
    return Expr((RoleBegin("system"),))


def system_end() -> Expr:
    """The end of a message of the system."""
    return Expr((RoleEnd("system"),))


def user_begin() -> Expr:
    """The beginning of a message of the user."""
    return Expr((RoleBegin("user"),))


def user_end() -> Expr:
    """The end of a message of the user."""
    return Expr((RoleEnd("user"),))


def assistant_begin() -> Expr:
    """The beginning of a message of the assistant."""
    return Expr((RoleBegin("assistant"),))


def assistant_end() -> Expr:
    """The end of a message of the assistant."""
    return Expr((RoleEnd("assistant"),))


def separate_reasoning(expr: object, model_type: str) -> Expr:
    """`expr`, in which what the model thinks before it answers goes to NAME_reasoning_content and only the answer to NAME.

    `model_type` names the format, as --reasoning-parser does. The text keeps both, messages only the answer.
    """
    check_reasoning_format(model_type)
    return Expr(tuple(Gen(p.name, p.settings, model_type) if isinstance(p, Gen) else p for p in as_expr(expr).parts))


def _pattern(dtype: type | str) -> str:
    if dtype not in PATTERNS:
        raise InvalidRequest(f"dtype must be int, float, bool or str, got {dtype!r}", param="dtype")
    return PATTERNS[dtype]
