"""One request's completion as text: decoding, stops, and what the client already has.

Joins `IncrementalDecoder` and `StopMatcher`. Does not know messages between processes. Invariant: what was given out in all,
and the token at which a stop is found, depend on the ids alone, not on how they were grouped or whether they were replayed.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sapwood.core.sampling import SamplingParams
from sapwood.detokenizer.incremental import IncrementalDecoder
from sapwood.detokenizer.stopping import StopMatcher
from sapwood.messages.types import Finish
from sapwood.tokenizer.tokenizer import Tokenizer


class TextDelta(msgspec.Struct, frozen=True):
    """Text that became certain. `num_tokens` completion tokens count so far; `matched` is the stop that ended the text."""

    text: str
    num_tokens: int
    matched: str | None = None


class TextStream:
    """Feed it ids with `push`; after a finish or a match it takes no more."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        params: SamplingParams,
        context_ids: Sequence[int] = (),
        emitted_ids: Sequence[int] = (),
        num_chars: int = 0,
    ) -> None:
        """`emitted_ids` are completion ids of a replay, of whose text the client already has `num_chars` characters.

        Raises InvalidRequest for a stop_regex that cannot be used.
        """
        self._decoder = IncrementalDecoder(
            tokenizer, context_ids, params.skip_special_tokens, params.spaces_between_special_tokens
        )
        self._stops = StopMatcher(params.stop, params.stop_regex, params.no_stop_trim)
        self._keeps_stop_token = params.no_stop_trim
        self._num_chars_to_skip = num_chars
        self._pending = ""
        self.num_tokens = 0
        self._pending = self._take(emitted_ids)

    @property
    def matched(self) -> str | None:
        """The stop string or pattern that has ended the text, if any."""
        return self._stops.matched

    def push(self, token_ids: Sequence[int], finish: Finish | None = None) -> TextDelta:
        """The next completion ids, with `finish` the last ones; a stop may end the text before the last of them."""
        text, self._pending, stops = self._pending, "", self._stops
        if stops.matched is None:
            text += self._take(token_ids, finish is not None and self._is_trimmed(token_ids, finish))
        if finish is not None and stops.matched is None:
            text += stops.push(self._decoder.finish())
            if stops.matched is None:
                text += stops.finish()
        if self._num_chars_to_skip:
            text = self._skip_delivered(text)
        return TextDelta(text, self.num_tokens, stops.matched)

    def _take(self, token_ids: Sequence[int], last_is_trimmed: bool = False) -> str:
        texts = []
        push_id, push_text = self._decoder.push, self._stops.push
        for token_id in token_ids[:-1] if last_is_trimmed else token_ids:
            texts.append(push_text(push_id(token_id)))
            self.num_tokens += 1
            if self._stops.matched is not None:
                return "".join(texts)
        self.num_tokens += last_is_trimmed
        return "".join(texts)

    def _is_trimmed(self, token_ids: Sequence[int], finish: Finish) -> bool:
        """Whether the last id is the one that ended the request (it counts as a token, its text is not part of the reply)."""
        if finish.kind != "stop" or self._keeps_stop_token:
            return False
        return bool(token_ids) and token_ids[-1] == finish.matched

    def _skip_delivered(self, text: str) -> str:
        num_skipped = min(self._num_chars_to_skip, len(text))
        self._num_chars_to_skip -= num_skipped
        return text[num_skipped:]
