"""Fuzz targets: text on its way to the client, against oracles that look at everything at once; and chat templates."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import hypothesis.strategies as st
import re2
import seeds
from damage import JSON, bounded
from fuzzing import fuzzed

from sapwood.core.sampling import SamplingParams
from sapwood.detokenizer.incremental import IncrementalDecoder
from sapwood.detokenizer.stopping import StopMatcher
from sapwood.detokenizer.text_stream import TextStream
from sapwood.errors import ConfigError, InvalidRequest
from sapwood.messages.types import Finish
from sapwood.tokenizer.byte_vocabulary import byte_tokenizer
from sapwood.tokenizer.chat import ChatRenderer
from sapwood.tokenizer.chat_bounds import MAX_RENDERED_CHARS
from sapwood.tokenizer.gguf_vocabulary import parts_from_gguf
from sapwood.tokenizer.tokenizer import Tokenizer

ALPHABET = "abé\U0001f642\n"
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=4), max_size=4)
ATOMS = ["a", "b", "é", ".", "[ab]", "[^a]", r"\w", r"\b", "^", "$", "(?:ab|b)", "(a|é)", r"\n", "(?i)", r"\pL", r"\Qa.\E", "🙂"]
REPEATS = ["", "?", "*", "+", "{2}", "{1,3}", "{2,}", "??", "+?"]
PATTERNS = st.lists(st.tuples(st.sampled_from(ATOMS), st.sampled_from(REPEATS)).map("".join), min_size=1, max_size=5).map("".join)
BORDERS = st.lists(st.integers(0, 60), max_size=10)


def cut(whole: Any, borders: list[int]) -> list[Any]:
    """`whole` in parts; some may be empty."""
    marks = [0, *sorted(border % (len(whole) + 1) for border in borders), len(whole)]
    return [whole[start:end] for start, end in itertools.pairwise(marks)]


def first_string(text: str, stops: list[str]) -> tuple[int, int, str] | None:
    """(start, end, stop) of the stop string whose last character comes first, the longest of those."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text.endswith(stop, 0, end)]
        if ending:
            longest = max(ending, key=len)
            return end - len(longest), end, longest
    return None


@fuzzed(st.text(ALPHABET, max_size=60), STOPS, st.lists(PATTERNS, max_size=2), BORDERS, st.booleans())
def stops(text: str, strings: list[str], patterns: list[str], borders: list[int], keep: bool) -> None:
    """Stop strings and patterns over a text in parts, against a search of all that came so far."""
    try:
        matcher = StopMatcher(strings, patterns, keep)
    except InvalidRequest as error:
        assert error.param == "stop_regex"
        return
    given_out, so_far = "", ""
    for part in cut(text, borders):
        given_out += matcher.push(part)
        so_far += part
        ends = [(found[0], found[1]) for found in [first_string(so_far, strings)] if found is not None]
        ends += [found.span() for pattern in patterns if (found := re2.compile(pattern).search(so_far)) is not None and part]
        if ends:
            start, end = min(ends, key=lambda found: found[0])
            assert matcher.matched is not None
            is_bounded = all(not set(pattern) & set("*+") and "," + "}" not in pattern for pattern in patterns)
            if is_bounded:
                assert given_out == so_far[: end if keep else start]
            assert so_far.startswith(given_out)
            return
        assert matcher.matched is None and so_far.startswith(given_out)
    assert given_out + matcher.finish() == text


def vocabularies() -> list[Tokenizer]:
    """One of bytes, one of byte-level BPE, one of SentencePiece with byte tokens and the space that a text begins with."""
    texts = ["<unk>", *seeds.CONTROL, *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *"abé", "\u2581ab", "🙂"]
    types = [2, 3, 3, *[6] * 256, *[1] * 6]
    pieces = {"tokens": texts, "token_type": types, "scores": [0.0] * len(texts), "model": "llama", "unknown_token_id": 0}
    level = {
        "tokens": list(seeds.letters()),
        "token_type": [3 if t in seeds.CONTROL else 1 for t in seeds.letters()],
        "model": "gpt2",
    }
    made = [
        Tokenizer(parts_from_gguf({f"tokenizer.ggml.{key}": value for key, value in each.items()})) for each in (pieces, level)
    ]
    return [byte_tokenizer(), *made]


VOCABULARIES = vocabularies()


@fuzzed(
    tokenizer=st.sampled_from(VOCABULARIES),
    ids=st.lists(st.integers(-3, 320) | st.sampled_from([0x1F642, 240, 159, 153, 130, 1 << 31]), max_size=40),
    num_context=st.integers(0, 8),
    borders=BORDERS,
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    strings=STOPS,
    num_emitted=st.integers(0, 40),
)
def detokenizer(
    tokenizer: Tokenizer,
    ids: list[int],
    num_context: int,
    borders: list[int],
    flags: tuple[bool, bool, bool],
    strings: list[str],
    num_emitted: int,
) -> None:
    """Ids in groups, with a context and a replay in between, against one decode of them all and one search in it."""
    skips, spaces, keeps = flags
    context, completion = ids[:num_context], ids[num_context:]
    whole = tokenizer.decode(ids, skips, spaces)
    decoder = IncrementalDecoder(tokenizer, (), skips, spaces)
    assert "".join(map(decoder.push, ids)) + decoder.finish() == whole
    params = SamplingParams(
        stop=tuple(strings), no_stop_trim=keeps, skip_special_tokens=skips, spaces_between_special_tokens=spaces
    )
    decoder = IncrementalDecoder(tokenizer, context, skips, spaces)
    expected = "".join(map(decoder.push, completion)) + decoder.finish()
    found = first_string(expected, strings)
    if found is not None:
        expected = expected[: found[1] if keeps else found[0]]
    num_emitted = min(num_emitted, len(completion))
    first = TextStream(tokenizer, params, context)
    delivered = first.push(completion[:num_emitted]).text
    again = TextStream(tokenizer, params, context, completion[:num_emitted], len(delivered))
    for stream, rest in ((first, completion[num_emitted:]), (again, completion[num_emitted:])):
        text = delivered
        for group in cut(rest, borders):
            text += stream.push(group).text
        text += stream.push([], Finish("length")).text
        assert text == expected, (text, expected)


NUMBERS = st.sampled_from(["0", "1", "-1", "7", "100000000", "10**9", "2**62", "1e308", "'ab'", "messages", "none"])
FILTERS = [
    "upper", "trim", "tojson", "length", "list", "string", "join({n})", "center({n})", "indent({n})", "replace('a', {n})",
    "batch({n})",
    "wordwrap({n})", "truncate({n})", "round({n})", "default({n})", "map('upper')", "selectattr('role')", "format({n})",
    "slice({n})",
    "attr('__class__')", "reverse", "sort", "urlize", "xmlattr", "tojson(indent={n})", "sum", "int", "e",
]  # fmt: skip
METHODS = [
    "center({n})", "ljust({n})", "zfill({n})", "split({n})", "replace('', {n})", "format({n})", "join(messages)",
    "expandtabs({n})",
    "encode()", "__class__", "items()", "get({n})", "startswith({n})", "append({n})", "format_map({n})", "strip({n})",
]  # fmt: skip


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pick = st.tuples
    return st.one_of(
        pick(inner, st.sampled_from(FILTERS), NUMBERS).map(lambda t: f"({t[0]}|{t[1].format(n=t[2])})"),
        pick(inner, st.sampled_from(METHODS), NUMBERS).map(lambda t: f"({t[0]}).{t[1].format(n=t[2])}"),
        pick(inner, st.sampled_from(["+", "*", "**", "%", "/", "//", "~", "-", "in", "==", "and"]), inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        pick(inner, inner).map(lambda t: f"{t[0]}[{t[1]}]"),
        inner.map(lambda text: f"range({text})"),
    )


EXPRESSIONS = st.recursive(
    st.sampled_from(["'%1000000000d'", "'{:>1000000000}'", "'a'", "messages", "messages[0].content", "loop", "x", "ns", "cycler"])
    | NUMBERS,
    _grown,
    max_leaves=6,
)


def _nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(EXPRESSIONS, inner).map(lambda t: f"{{% for x in {t[0]} %}}{t[1]}{{% endfor %}}"),
        st.tuples(EXPRESSIONS, inner, inner).map(lambda t: f"{{% if {t[0]} %}}{t[1]}{{% else %}}{t[2]}{{% endif %}}"),
        EXPRESSIONS.map(lambda text: f"{{% set x = {text} %}}{{% set ns = namespace(a=x) %}}"),
        inner.map(lambda text: f"{{% macro m(x) %}}{text}{{{{ m(x) }}}}{{% endmacro %}}{{{{ m(1) }}}}"),
        st.tuples(inner, inner).map("".join),
        EXPRESSIONS.map(lambda text: f"{{% include {text} %}}"),
    )


PROGRAMS = st.recursive(EXPRESSIONS.map(lambda text: f"{{{{ {text} }}}}") | st.text(max_size=5), _nested, max_leaves=5)


@fuzzed(
    source=PROGRAMS | st.text("{}%#-|'\"() abx[]", max_size=40),
    contents=st.lists(st.text(max_size=9), min_size=1, max_size=3),
    tools=JSON,
)
def template(source: str, contents: list[str], tools: object) -> None:
    """A template that a model brings is refused, refuses, or renders, in bounded time and memory."""
    messages = [{"role": "user", "content": content} for content in contents]
    with bounded(), contextlib.suppress(ConfigError, InvalidRequest):
        pieces = ChatRenderer(VOCABULARIES[0], source).render(messages)
        assert sum(len(text) for text, _ in pieces) <= MAX_RENDERED_CHARS
