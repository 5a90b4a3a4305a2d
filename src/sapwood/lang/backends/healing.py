"""Token healing: where a program's text ends in the middle of what would be one token, the model may finish that token.

Owns the choice of the token at the border; generates nothing else. Invariant: the token that is chosen spells the end of the text
and perhaps more, so the text stays what the program said; where no token goes on from the last one, nothing is asked.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from sapwood.core.sampling import GREEDY_BELOW_TEMPERATURE, MAX_TOP_LOGPROBS, LogprobOptions, SamplingParams, TokenLogprobs
from sapwood.lang.settings import GenSettings
from sapwood.lang.transcript import Prompt
from sapwood.tokenizer.tokenizer import Tokenizer

ONE_TOKEN = SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class Border:
    """The last token of a prompt, which others go on from. `before` is the prompt without it."""

    before: list[int]
    last_id: int
    piece: bytes

    @property
    def logprobs(self) -> LogprobOptions:
        """What has to be known about the place of the last token."""
        return LogprobOptions(output=True, top_n=MAX_TOP_LOGPROBS, token_ids=(self.last_id,))


@dataclass(frozen=True, slots=True)
class Healed:
    """The prompt to go on from, and the text that its last token brings beyond the program's."""

    ids: list[int]
    text: str


def is_healable(prompt: Prompt, settings: GenSettings) -> bool:
    """Whether the program's own text is at the border, and the settings leave the next token free."""
    if settings.is_constrained or (settings.n or 1) > 1 or (settings.max_new_tokens or 0) < 2 or settings.return_logprob:
        return False
    return bool(prompt.partial) and not prompt.runs[-1].is_generated


def find_border(tokenizer: Tokenizer, prompt: Prompt, ids: Sequence[int], settings: GenSettings) -> Border | None:
    """The border of a prompt, where it can be healed: not after a mark or a generation, nor under a constraint."""
    if not is_healable(prompt, settings) or len(ids) < 2 or ids[-1] in tokenizer.special_ids:
        return None
    piece = tokenizer.pieces.piece(ids[-1])
    if not piece or not prompt.partial.encode().endswith(piece) or not _goes_on(tokenizer, piece):
        return None
    return Border(list(ids[:-1]), ids[-1], piece)


def heal(tokenizer: Tokenizer, border: Border, entry: TokenLogprobs, settings: GenSettings) -> Healed:
    """The token for the border: of those that spell its text, the likeliest, or one drawn at the settings' temperature."""
    found = {border.last_id: entry.asked_logprobs[0]} | {
        token: logprob
        for token, logprob in zip(entry.top_ids, entry.top_logprobs, strict=True)
        if token not in tokenizer.special_ids and may_follow(_text_beyond(tokenizer, border, token), settings)
    }
    chosen = choose(found, settings)
    return Healed([*border.before, chosen], _text_beyond(tokenizer, border, chosen) or "")


def choose(found: Mapping[int, float], settings: GenSettings) -> int:
    """One of some tokens by their log-probabilities: the likeliest, or one drawn at the settings' temperature."""
    temperature = 1.0 if settings.temperature is None else settings.temperature
    if temperature < GREEDY_BELOW_TEMPERATURE or settings.top_k == 1:
        return max(found, key=lambda token: found[token])
    best = max(found.values())
    weights = [math.exp((logprob - best) / temperature) for logprob in found.values()]
    return random.Random(settings.sampling_seed).choices(list(found), weights)[0]


def _text_beyond(tokenizer: Tokenizer, border: Border, token: int) -> str | None:
    """What a token spells beyond the border's text; None where it does not begin with that, or ends inside a character."""
    piece = tokenizer.pieces.piece(token)
    if not piece.startswith(border.piece):
        return None
    try:
        return piece[len(border.piece) :].decode()
    except UnicodeDecodeError:
        return None


def may_follow(text: str | None, settings: GenSettings) -> bool:
    """Whether a generation may begin with it: not where it holds a stop string."""
    return text is not None and not any(stop in text for stop in settings.stops)


def _goes_on(tokenizer: Tokenizer, piece: bytes) -> bool:
    """Whether some token begins with `piece` and is longer."""
    pieces = _sorted_pieces(tokenizer)
    following = bisect_right(pieces, piece)
    return following < len(pieces) and pieces[following].startswith(piece)


@lru_cache(maxsize=4)
def _sorted_pieces(tokenizer: Tokenizer) -> list[bytes]:
    ids = (token for token in range(tokenizer.vocab_size) if token not in tokenizer.special_ids)
    return sorted({tokenizer.pieces.piece(token) for token in ids})
