"""Both ends of a decoder: token ids to hidden rows, hidden rows to logits, with the vocabulary split over the ranks.

Does not know what lies between. Invariant: logits have exactly `vocab_size` columns and are the same on every rank.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sapwood.kernels.api import Norm
from sapwood.layers.loader import WeightLoader
from sapwood.layers.sharding import split_vocab


class Vocabulary:
    """Embedding table, final norm and head; a tied head is the table itself."""

    def __init__(self, load: WeightLoader, embedding: str, final_norm: str, head: str) -> None:
        config, group = load.config, load.group
        rows = split_vocab(config.vocab_size, group.rank, group.size)
        self._kernels, self._group, self._config = load.kernels, group, config
        self._first_id = rows.start
        self._table = load.vocab(embedding, rows)
        self._head = self._table if config.tie_embeddings else load.vocab(head, rows)
        self._norm: Norm = load.norm(final_norm)

    def embed(self, token_ids: Tensor) -> Tensor:
        """Hidden rows of `token_ids` (integers [T]): float32 [T, hidden_size]."""
        hidden = self._kernels.embed(token_ids, self._table, self._first_id, self._config.embedding_scale)
        self._group.all_reduce_(hidden)
        return hidden

    def final(self, rows: Tensor) -> Tensor:
        """`rows` [R, hidden_size] with the final norm: float32, a new tensor."""
        normed = torch.zeros_like(rows)
        self._kernels.add(normed, rows, self._norm)
        return normed

    def logits(self, hidden: Tensor, rows: Tensor) -> Tensor:
        """Logits that follow `hidden[rows]`: float32 [len(rows), vocab_size]."""
        mine = self._kernels.logits(hidden, rows, self._norm, self._head, self._config.logit_softcap)
        return self._group.all_gather(mine, dim=-1)[:, : self._config.vocab_size]
