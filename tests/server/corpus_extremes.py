"""Values of the right kind that are too large, too many, too deep, not in the vocabulary, or take for ever to compile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from corpus_fields import Hostile, base_of, spoilt

HUGE, TINY = 10**40, 1e-320
NUMBERS: dict[str, tuple[Any, ...]] = {
    "temperature": (-1, -TINY, b"1e999", b"-Infinity", b"NaN"),
    "top_p": (0, -0.5, 1.0001, b"1e400", b"Infinity"),
    "min_p": (-0.1, 1.5, b"NaN"),
    "frequency_penalty": (-2.1, 2.1, 1e308),
    "presence_penalty": (-2.1, 2.1, -1e308),
    "repetition_penalty": (0, -1, 2.1, 1e300),
    "top_k": (0, -2, 2**31, 2**63, HUGE),
    "n": (0, -1, 129, 2**31, HUGE),
    "seed": (2**63, -(2**63) - 1, HUGE),
    "max_tokens": (-1, 513, 2**31, 2**63, HUGE),
    "logprobs": (-1, 129, 2**31, HUGE),
    "priority": (2**31, -(2**31) - 1, HUGE),
    "timeout_s": (0, -1, 1e10, b"NaN"),
    "stream_interval": (0, -1, 2**31),
}
DEEP_SCHEMA: Any = {"type": "string"}
for _ in range(200):
    DEEP_SCHEMA = {"type": "object", "properties": {"a": DEEP_SCHEMA}, "required": ["a"]}
SCHEMAS: tuple[Any, ...] = (
    DEEP_SCHEMA,
    {"$ref": "#/$defs/nowhere"},
    {"$ref": "http://169.254.169.254/latest/meta-data"},
    {"$ref": "file:///etc/passwd"},
    {"type": "alien"},
    {"type": ["string", 5]},
    {"type": "string", "pattern": "("},
    {"type": "string", "pattern": "(?=a)"},
    {"type": "string", "minLength": 5, "maxLength": 1},
    {"type": "string", "pattern": "^a{1000000}$"},
    {"type": "string", "pattern": "^a*$", "minLength": 10**9},
    {"const": "a" * 20_000},
    {"enum": []},
    {"minimum": HUGE},
    {"const": -HUGE},
    {"extra": [{"deep": HUGE}]},
    {"properties": 5},
    {"anyOf": []},
    {"allOf": [{"type": "object", "properties": {f"p{number}": {"type": "string"}}} for number in range(15_000)]},
)
PATTERNS = ("(", "[", "a{5,1}", "(?=a)", r"(a)\1", "a{1000000000}", "((a{1000}){1000}){1000}", "(ab){500000}", "(?P<x", "*")
STOP_PATTERNS = (
    "(a*)*", ".*", "((a{1,99}){1,99}){1,99}", "(?:(?:.?){99}){99}Q", "a" * 300, r"(a)\1", "(", r"(?:[^\n]{0,50}){0,40}Q",
)  # fmt: skip
GRAMMARS = ("start: nowhere", "root ::= nowhere", "x" * 70_000, "start: /(/", "start: /a{1000000}/")
WRONG_IDS: tuple[Any, ...] = ([259], [-1], [2**31], [2**63 - 1], [2**63], [HUGE], [0.5], [None], ["a"], [1, 2, 300], [[1], [999]])
NAMES = ("../../etc/passwd", "/etc/passwd", "..\\..", "\0", "a" * 100_000, "%2e%2e%2f", "http://169.254.169.254/", "file:///x")


def _field(path: str, name: str, *values: Any, names: str | None = None, also: tuple[int, ...] = ()) -> Iterator[Hostile]:
    """The route's own body with each of the values for a field."""
    for value in values:
        yield Hostile(path, spoilt(base_of(path), name, value), name if names is None else names, (400, *also))


def _sampling(name: str, *values: Any, names: str | None = None) -> Iterator[Hostile]:
    """The same for a field of /generate's sampling_params."""
    for value in values:
        params = spoilt({"max_new_tokens": 4}, name, value)
        yield Hostile("/generate", b'{"text": "a", "sampling_params": %s}' % params, names or name)


def number_cases() -> Iterator[Hostile]:
    """Numbers out of range, under the names of each dialect."""
    for name, values in NUMBERS.items():
        if name in ("max_tokens", "logprobs", "seed"):
            native = {"max_tokens": "max_new_tokens", "seed": "sampling_seed"}.get(name)
            yield from _sampling(native, *values) if native else ()
        elif name in ("priority", "timeout_s"):
            yield from _field("/generate", name, *values)
        else:
            yield from _sampling(name, *values)
        wrong = tuple(value for value in values if (name, value) not in (("top_k", 0), ("max_tokens", -1)))  # all, and no limit
        if name not in ("stream_interval", "timeout_s"):
            yield from _field("/v1/completions", name, *wrong)
        if name in ("temperature", "top_p", "top_k", "max_tokens"):
            clamped = [value for value in values if (name, value) not in (("top_k", 0), ("max_tokens", 513))]
            yield from _field("/v1/messages", name, *clamped)
        if name in ("temperature", "top_p", "n", "max_tokens", "seed"):
            yield from _field("/v1/chat/completions", name, *wrong)
    yield from _field("/open_session", "capacity_of_str_len", -1, HUGE)
    yield from _field("/start_profile", "num_steps", 0, -1, HUGE)


def list_cases() -> Iterator[Hostile]:
    """Too many of anything, and ids that no token has."""
    many = [f"stop {number}" for number in range(10_000)]
    yield from _sampling("stop", many, ["a", ""], ["x" * 5000], [5])
    for path, name in (("/v1/completions", "stop"), ("/v1/chat/completions", "stop"), ("/v1/messages", "stop_sequences")):
        yield from _field(path, name, many, [""], ["x" * 5000], [None])
    yield from _sampling("logit_bias", {str(number): 1 for number in range(5000)}, {"259": 1}, {"-1": 1}, {"x": 1}, {"1": "x"})
    yield from _field("/v1/completions", "logit_bias", {"259": 1}, {"1.5": 1}, {"1": "x"}, {str(HUGE): 1})
    yield from _sampling("stop_token_ids", *WRONG_IDS[:-1])
    for asked in ([259], [HUGE], list(range(200)) * 6):
        body = {"text": "a", "return_logprob": True, "token_ids_logprob": asked}
        yield Hostile("/generate", json.dumps(body).encode(), "token_ids_logprob")
    for ids in WRONG_IDS:
        yield Hostile("/generate", json.dumps({"input_ids": ids}).encode(), "input_ids")
        yield from _field("/v1/completions", "prompt", *([] if ids == ["a"] else [ids]))
        yield from _field("/detokenize", "tokens", ids)
    for path, name in (("/v1/embeddings", "input"), ("/v1/rerank", "documents"), ("/v1/score", "items")):
        yield from _field(path, name, ["a"] * 100_000, names="")
    yield from _field("/generate", "text", ["a"] * 5000, names="n")
    yield from _field("/v1/chat/completions", "tools", [{"type": "function", "function": {"name": "f"}}] * 2000)
    yield from _field("/v1/chat/completions", "messages", [], [{}], [{"role": "user", "content": ["a"]}])


def compile_cases() -> Iterator[Hostile]:
    """Schemas, expressions and grammars that are wrong, endless or catastrophic."""
    for schema in SCHEMAS:
        is_deep = schema is DEEP_SCHEMA  # the body's own limit comes first, and names the outermost field
        yield from _sampling("json_schema", schema, names="sampling_params" if is_deep else None)
        wrapped = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        yield from _field("/v1/chat/completions", "response_format", wrapped)
        yield from _field("/api/chat", "format", schema)
    yield from _sampling("regex", *PATTERNS)
    yield from _sampling("stop_regex", *STOP_PATTERNS, [f"{'(?:[a-z]{0,9}){0,40}'}Q{number}" for number in range(33)])
    yield from _sampling("ebnf", *GRAMMARS)
    yield from _sampling("structural_tag", "{", {"type": "alien"}, {"structures": 5})


def name_cases() -> Iterator[Hostile]:
    """Names that look like paths, addresses or templates."""
    for name in NAMES:
        yield from _field("/v1/completions", "model", name, also=(404,))
        yield from _field("/update_weights_from_disk", "model_path", name, names="", also=(403,))
        yield from _field("/close_session", "session_id", name, names="", also=(404,))
        yield from _field("/parse_function_call", "tool_call_parser", name)
    yield from _field("/generate", "rid", "", "x" * 300, names="rid")
    yield from _field("/v1/chat/completions", "chat_template", "{{ cycler.__init__.__globals__ }}")
    kwargs: tuple[Any, ...] = ({"messages": []}, {"add_generation_prompt": 5}, {"tools": "x"})
    yield from _field("/v1/chat/completions", "chat_template_kwargs", *kwargs)
    for url in ("http://127.0.0.1:1/x", "file:///etc/passwd", "data:image/png;base64,AAAA"):
        content = [{"type": "image_url", "image_url": {"url": url}}]
        yield from _field("/v1/chat/completions", "messages", [{"role": "user", "content": content}])
        yield from _field("/generate", "image_data", url)
