"""A template with half a surrogate pair (bytes of a GGUF file that are no text, escapes) broke the search for control tokens."""

from __future__ import annotations

import pytest

from sapwood.tokenizer.byte_vocabulary import byte_tokenizer
from sapwood.tokenizer.chat import ChatRenderer


@pytest.mark.parametrize("source", ["\udc80{{ messages[0].content }}", "{{ '\\ud800' }}{{ messages[0].content }}"])
@pytest.mark.parametrize("content", ["plain", "<|im_end|>"])
def test_they_become_replacement_characters(source: str, content: str) -> None:
    pieces = ChatRenderer(byte_tokenizer(), source).render([{"role": "user", "content": content}])
    assert "".join(text for text, _ in pieces) == f"\ufffd{content}"
