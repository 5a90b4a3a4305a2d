"""One request's text: stops found at the right token, the same text however ids are grouped, replays that go on seamlessly."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from sapwood.core.sampling import SamplingParams
from sapwood.detokenizer.text_stream import TextDelta, TextStream
from sapwood.errors import InvalidRequest
from sapwood.messages.types import Finish
from sapwood.tokenizer.byte_vocabulary import byte_tokenizer

TOKENIZER = byte_tokenizer()
LENGTH, END = Finish("length"), Finish("stop", 258)
PARAMS = st.builds(
    SamplingParams,
    stop=st.lists(st.text(alphabet="abé", min_size=1, max_size=3), max_size=2).map(tuple),
    stop_regex=st.lists(st.sampled_from(["a[ab]b", "b+é", "é$", "aaaa|bb"]), max_size=1).map(tuple),
    no_stop_trim=st.booleans(),
    skip_special_tokens=st.booleans(),
)
COMPLETIONS = st.lists(st.sampled_from([*b"ab", *"é".encode(), 256, 258]), max_size=24)


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special=False, parse_special=True)


def run(stream: TextStream, groups: list[list[int]], finish: Finish | None = LENGTH) -> TextDelta:
    """The whole text and the last delta's facts; stops pushing at a match, as the detokenizer does."""
    text = ""
    for index, group in enumerate(groups):
        delta = stream.push(group, finish if index == len(groups) - 1 else None)
        text += delta.text
        if delta.matched is not None:
            break
    return TextDelta(text, delta.num_tokens, delta.matched)


def grouped(ids: list[int], borders: list[int]) -> list[list[int]]:
    marks = [0, *sorted(border % (len(ids) + 1) for border in borders), len(ids)]
    return [ids[start:end] for start, end in pairwise(marks)]


@given(params=PARAMS, ids=COMPLETIONS, borders=st.lists(st.integers(0, 99), max_size=6))
@settings(max_examples=400, deadline=None)
def test_text_is_a_function_of_the_ids(params: SamplingParams, ids: list[int], borders: list[int]) -> None:
    one_by_one = run(TextStream(TOKENIZER, params), [*([token_id] for token_id in ids), []])
    assert run(TextStream(TOKENIZER, params), grouped(ids, borders)) == one_by_one
    if one_by_one.matched is None:
        assert one_by_one == TextDelta(TOKENIZER.decode(ids, params.skip_special_tokens), len(ids))


@given(params=PARAMS, ids=COMPLETIONS, data=st.data())
@settings(max_examples=300, deadline=None)
def test_a_replay_goes_on_where_the_client_is(params: SamplingParams, ids: list[int], data: st.DataObject) -> None:
    """Whatever part of the ids had been emitted, and whatever part of their text delivered, the rest is the same."""
    whole = run(TextStream(TOKENIZER, params), [*([token_id] for token_id in ids), []])
    num_emitted = data.draw(st.integers(0, len(ids)))
    first = TextStream(TOKENIZER, params)
    delivered = first.push(ids[:num_emitted]).text
    num_chars = data.draw(st.integers(0, len(delivered)))
    again = TextStream(TOKENIZER, params, emitted_ids=ids[:num_emitted], num_chars=num_chars)
    rest = run(again, [*([token_id] for token_id in ids[num_emitted:]), []])
    assert delivered[:num_chars] + rest.text == whole.text
    assert (rest.num_tokens, rest.matched) == (whole.num_tokens, whole.matched)


def test_the_stopping_token_counts_and_later_ones_do_not() -> None:
    stream = TextStream(TOKENIZER, SamplingParams(stop=("END",)))
    assert stream.push(ids_of("so E")) == TextDelta("so ", 4)
    assert stream.push(ids_of("ND and more")) == TextDelta("", 6, "END")
    assert stream.push(ids_of("x"), LENGTH) == TextDelta("", 6, "END")


def test_held_text_comes_at_the_end() -> None:
    stream = TextStream(TOKENIZER, SamplingParams(stop=("END",)))
    assert stream.push(ids_of("EN"), None).text == ""
    assert stream.push([0xC3], LENGTH) == TextDelta("EN\ufffd", 3)


@pytest.mark.parametrize(
    ("changes", "finish", "text"),
    [
        ({}, END, "hi"),
        ({"skip_special_tokens": False}, END, "hi"),
        ({"no_stop_trim": True}, END, "hi"),
        ({"no_stop_trim": True, "skip_special_tokens": False}, END, "hi<|im_end|>"),
        ({"skip_special_tokens": False}, LENGTH, "hi<|im_end|>"),
        ({"stop": ("<|im_end|>",), "skip_special_tokens": False}, END, "hi"),
    ],
)
def test_the_token_that_ends_a_request_is_trimmed(changes: dict[str, Any], finish: Finish, text: str) -> None:
    stream = TextStream(TOKENIZER, SamplingParams(**changes))
    assert stream.push(ids_of("hi<|im_end|>"), finish) == TextDelta(text, 3)


def test_an_ordinary_stop_token_is_trimmed_or_kept() -> None:
    for keep, text in ((False, "hi"), (True, "hi!")):
        stream = TextStream(TOKENIZER, SamplingParams(no_stop_trim=keep))
        assert stream.push(ids_of("hi!"), Finish("stop", ord("!"))).text == text


def test_a_finish_without_ids() -> None:
    assert TextStream(TOKENIZER, SamplingParams()).push([], Finish("abort")) == TextDelta("", 0)


def test_unusable_regex_is_refused_at_once() -> None:
    with pytest.raises(InvalidRequest):
        TextStream(TOKENIZER, SamplingParams(stop_regex=("(",)))
