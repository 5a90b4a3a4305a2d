"""Ids to text one at a time: whole characters only, and together exactly one decode of everything."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from texts import TEXTS, names, vocabulary

from sapwood.detokenizer.incremental import IncrementalDecoder, token_spans
from sapwood.tokenizer.byte_vocabulary import byte_tokenizer


def stream(name: str, ids: list[int], context: list[int], skip: bool = True, spaces: bool = True) -> list[str]:
    decoder = IncrementalDecoder(vocabulary(name), context, skip, spaces)
    return [*map(decoder.push, ids), decoder.finish()]


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("text", TEXTS)
def test_deltas_join_to_one_decode(name: str, text: str) -> None:
    tokenizer = vocabulary(name)
    for parse_special in (False, True):
        ids = tokenizer.encode(text, add_special=True, parse_special=parse_special)
        for skip in (False, True):
            for spaces in (False, True):
                assert "".join(stream(name, ids, [], skip, spaces)) == tokenizer.decode(ids, skip, spaces)


@given(data=st.data())
@settings(max_examples=200, deadline=None)
@pytest.mark.parametrize("name", names())
def test_any_ids_after_any_context(name: str, data: st.DataObject) -> None:
    """The completion's text is what one decode of everything has after the context's text, whole characters counted."""
    tokenizer = vocabulary(name)
    some_id = st.integers(0, 400) | st.integers(0, tokenizer.vocab_size - 1) | st.sampled_from(sorted(tokenizer.special_ids))
    context, ids = data.draw(st.lists(some_id, max_size=4)), data.draw(st.lists(some_id, max_size=12))
    deltas = stream(name, ids, context)
    whole = tokenizer.decode(context + ids)
    assert whole.endswith("".join(deltas))
    decoder = IncrementalDecoder(tokenizer)
    before = "".join(map(decoder.push, context))
    assert before + "".join(deltas) == whole


@pytest.mark.parametrize("text", ["🦙", "é", "日本語", "a🇳🇴b"])
def test_no_replacement_character_while_more_may_come(text: str) -> None:
    tokenizer = byte_tokenizer()
    decoder = IncrementalDecoder(tokenizer)
    deltas = [decoder.push(byte) for byte in text.encode()]
    assert [delta for delta in deltas if delta] == list(text)
    assert decoder.finish() == ""


def test_bytes_that_never_become_a_character() -> None:
    decoder = IncrementalDecoder(byte_tokenizer())
    assert [decoder.push(byte) for byte in (0xF0, 0x9F, ord("a"), 0x80, 0xE6, 0x97)] == ["", "", "\ufffda", "\ufffd", "", ""]
    assert decoder.finish() == "\ufffd"


def test_control_tokens_inside_a_character() -> None:
    first, second = "é".encode()
    for skip, expected in ((True, "é"), (False, "\ufffd<|im_end|>\ufffd")):
        decoder = IncrementalDecoder(byte_tokenizer(), skip_special_tokens=skip)
        assert "".join(decoder.push(token_id) for token_id in (first, 258, second)) == expected


def test_sentencepiece_space_depends_on_the_context() -> None:
    tokenizer = vocabulary("llama-spm")
    hello = tokenizer.token_id("\u2581Hello")
    assert hello is not None
    assert stream("llama-spm", [hello, hello], [])[:2] == ["Hello", " Hello"]
    assert stream("llama-spm", [hello], [1])[0] == "Hello"
    assert stream("llama-spm", [hello], [1, hello])[0] == " Hello"


def test_a_character_may_begin_in_the_context() -> None:
    first, second = "é".encode()
    decoder = IncrementalDecoder(byte_tokenizer(), [first])
    assert decoder.push(second) == "é"


def test_wordpiece_spaces_between_special_tokens() -> None:
    ids = [101, 102, 7592, 102, 102]
    assert "".join(stream("bert-bge", ids, [], skip=False)) == "[CLS] [SEP] hello [SEP] [SEP]"
    assert "".join(stream("bert-bge", ids, [], skip=False, spaces=False)) == "[CLS][SEP] hello [SEP][SEP]"


def test_spans_tell_where_tokens_lie() -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode("aé<|im_end|>b", add_special=False, parse_special=True)
    spans = token_spans(tokenizer, ids, first_offset=10)
    assert [(span.text, span.offset) for span in spans] == [("a", 10), ("", 11), ("é", 11), ("", 12), ("b", 12)]
