"""The scanner against Python's own decoder."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from test_parsers import MANY, VALUES

from sapwood.parsing.json_scanner import JsonScanner
from sapwood.parsing.partial import partial_object

NEAR = st.lists(
    st.sampled_from(
        ["{", "}", "[", "]", ",", ":", '"', '"a"', "1", "-", "0", ".5", "e3", "true", "nul", " ", "\\", "\\u00e9", "\n"]
    ),
    max_size=10,
).map("".join)


def scan(text: str) -> tuple[bool, str, int]:
    scanner = JsonScanner()
    place, read = scanner.feed(text, 0)
    return (scanner.is_done or (not scanner.has_failed and scanner.finish())), read, place


def refuse(name: str) -> None:
    raise ValueError(name)


@settings(max_examples=MANY, deadline=None)
@given(text=NEAR)
def test_it_accepts_what_the_decoder_accepts(text: str) -> None:
    stripped = text.strip(" \t\n\r")
    try:
        value, end = json.JSONDecoder(parse_constant=refuse, strict=False).raw_decode(stripped)
    except ValueError:
        return
    is_whole, read, place = scan(stripped)
    if not (isinstance(value, (int, float)) and not isinstance(value, bool)) or end == len(stripped):
        assert is_whole and place == end and json.loads(read) == value


@settings(max_examples=MANY, deadline=None)
@given(text=NEAR)
def test_what_it_accepts_the_decoder_accepts(text: str) -> None:
    is_whole, read, _ = scan(text)
    if is_whole:
        json.loads(read)


@settings(max_examples=MANY, deadline=None)
@given(value=VALUES, rest=st.text(max_size=3), indent=st.sampled_from([None, 1]))
def test_values_are_found_and_end_where_they_end(value: object, rest: str, indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    is_whole, read, place = scan(text + (" " if isinstance(value, int) else "") + rest)
    assert is_whole and read == text and place == len(text)


@settings(max_examples=MANY, deadline=None)
@given(value=st.dictionaries(st.text(max_size=4), VALUES, max_size=4), cut=st.integers(0, 200))
def test_a_broken_object_keeps_what_is_complete(value: dict[str, object], cut: int) -> None:
    text = json.dumps(value)
    assert partial_object(text) == value
    partial = partial_object(text[:cut])
    complete = list(value)[: max(0, len(partial) - 1)]
    assert list(partial) == list(value)[: len(partial)] and all(partial[name] == value[name] for name in complete)


def test_partial_objects() -> None:
    assert partial_object('{"a": 1, "b": [1, 2, {"c": "x"}, "y') == {"a": 1, "b": [1, 2, {"c": "x"}]}
    assert partial_object('{"a": {"b": 1}, "c') == {"a": {"b": 1}}
    assert partial_object("") == partial_object("[1]") == partial_object("x") == {}
