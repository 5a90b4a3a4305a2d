"""SGLang's default stream: every event repeats the whole sample so far, and only what is new in it is encoded.

Keeps the JSON of what grows; what an event holds is `reply`'s business. Invariant: the bytes are those of
`reply(..., incremental=False)`.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw

from sapwood.server.native.reply import Reply, ReplyShape, reply
from sapwood.server.record import RequestRecord, Update

_OUTPUTS = ("output_token_logprobs", "output_top_logprobs", "output_token_ids_logprobs")
_INPUTS = ("input_token_logprobs", "input_top_logprobs", "input_token_ids_logprobs")
_encode = msgspec.json.Encoder().encode


class Growing:
    """The JSON of a text or of a list that only ever becomes longer."""

    __slots__ = ("_begin", "_between", "_end", "_inner")

    def __init__(self, begin: bytes, between: bytes, end: bytes) -> None:
        self._begin, self._between, self._end = begin, between, end
        self._inner = bytearray()

    def add(self, news: Any) -> Raw:
        """All of it, `news` at its end."""
        fresh = _encode(news)[1:-1]
        if fresh:
            self._inner += self._between + fresh if self._inner else fresh
        return Raw(b"".join((self._begin, self._inner, self._end)))


class Cumulative:
    """The events of one sample."""

    def __init__(self, shape: ReplyShape) -> None:
        self._shape = shape
        self._text = Growing(b'"', b"", b'"')
        self._ids = Growing(b"[", b",", b"]")
        self._outputs = {name: Growing(b"[", b",", b"]") for name in _OUTPUTS}
        self._inputs: dict[str, Raw] = {}
        self._inputs_of: Any = None

    def reply(self, update: Update) -> Reply:
        """The answer with everything so far, in part encoded already."""
        found = reply(self._shape, update, incremental=True, in_stream=True)
        record, info = update.record, found.meta_info
        _grow(found, "text", self._text)
        _grow(found, "output_ids", self._ids)
        for name, growing in self._outputs.items():
            _grow(info, name, growing)
        if info.output_token_logprobs_length is not UNSET:
            info.output_token_logprobs_length = len(record.logprobs)
        if self._inputs_of is not record.prompt_logprobs:
            self._note_inputs(record)
        for name, encoded in self._inputs.items():
            setattr(info, name, encoded)
        return found

    def _note_inputs(self, record: RequestRecord) -> None:
        """What is said of the prompt, when that has come."""
        info = reply(self._shape, Update(record, "", 0, None), incremental=True, in_stream=True).meta_info
        self._inputs_of = record.prompt_logprobs
        self._inputs = {name: Raw(_encode(value)) for name in _INPUTS if (value := getattr(info, name)) is not UNSET}


def _grow(target: msgspec.Struct, name: str, growing: Growing) -> None:
    """Let the field hold all, where it holds what is new; what is left out stays so."""
    news = getattr(target, name)
    if news is not UNSET:
        setattr(target, name, growing.add(news))
