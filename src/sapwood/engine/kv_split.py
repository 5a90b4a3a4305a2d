"""How KV memory is divided between layers that see everything and layers that see a window.

Pure arithmetic. Invariant: both pools together take no more than what they were given, and the window's is never larger than the
other in tokens, because a window page stands beside another page.

The window's pool is as large as it can be of use: the claims of all running requests, as much again for windows that the prefix
cache keeps, and two chunks of prompts in flight; at most `MOST_WINDOW_TOKENS` of the other pool, so that long contexts fit where
memory is short.
"""

from __future__ import annotations

from dataclasses import dataclass

from sapwood.core.model_config import ModelConfig
from sapwood.core.plan import window_claim
from sapwood.core.units import align_up

MOST_WINDOW_TOKENS = 0.8
"""SGLang's default for the same ratio."""


@dataclass(frozen=True, slots=True)
class KVSplit:
    """Sizes are bytes per token, and tokens. `window` 0: all layers share one pool.

    `most_tokens` is what requests could ever use, `ratio` the window's tokens per other token where the user chose it.
    """

    window: int
    token_bytes: int
    window_token_bytes: int
    most_tokens: int
    window_tokens: int
    ratio: float | None

    @property
    def least_bytes(self) -> int:
        """Bytes of one token in both pools."""
        return self.token_bytes + self.window_token_bytes

    def divide(self, budget_bytes: int) -> tuple[int, int]:
        """Tokens of both pools."""
        if not self.window:
            return budget_bytes // self.token_bytes, 0
        if not self.token_bytes:
            return self.most_tokens, min(self.window_tokens, budget_bytes // self.window_token_bytes)
        ratio = MOST_WINDOW_TOKENS if self.ratio is None else self.ratio
        window_tokens = int(budget_bytes * ratio / (self.token_bytes + ratio * self.window_token_bytes))
        if self.ratio is None:
            window_tokens = min(window_tokens, self.window_tokens)
        return (budget_bytes - window_tokens * self.window_token_bytes) // self.token_bytes, window_tokens


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine is made for: running requests, tokens of context and of a prompt's chunk."""

    running: int
    context: int
    chunk: int


def split_kv(config: ModelConfig, token_bytes: int, page_size: int, load: Load, ratio: float | None) -> KVSplit:
    """Two pools for a model with layers that see a window; a token takes `token_bytes` in all layers."""
    window = config.widest_window
    window_token_bytes = token_bytes // config.num_layers * sum(kind.window > 0 for kind in config.layers)
    claims = 2 * load.running * window_claim(window, page_size) * page_size
    return KVSplit(
        window=window,
        token_bytes=token_bytes - window_token_bytes,
        window_token_bytes=window_token_bytes,
        most_tokens=2 * load.running * align_up(load.context, page_size),
        window_tokens=claims + 2 * align_up(min(load.chunk, window), page_size),
        ratio=ratio,
    )


def one_pool(token_bytes: int, page_size: int, load: Load) -> KVSplit:
    """One pool for all layers."""
    return KVSplit(0, token_bytes, 0, 2 * load.running * align_up(load.context, page_size), 0, None)
