"""The facts about an encoder of the BERT family, whatever its file calls them.

Filled by `weights/encoder.py`. Imports no torch. Invariant: every field is resolved; an option that is not supported never gets
this far.
"""

from __future__ import annotations

from dataclasses import dataclass

from sapwood.core.pooling import PoolingKind


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """Post-norm transformer layers in which every position of a prompt sees every other.

    Position p of a prompt has row `first_position + p` of the position table (RoBERTa begins after its padding row);
    `max_position` counts the positions that a prompt may have, `num_segments` the rows of the segment table, of which the
    second of two texts has the second where the model `tells_texts_apart` (RoBERTa does not). `activation`: gelu, gelu_tanh
    or relu. `labels` are the classes of a classification head, empty without one; `head` names the layers that make its input
    from the first row: pooler (BERT: `pooler.dense`, tanh, `classifier`) or dense (RoBERTa: `classifier.dense`, tanh,
    `classifier.out_proj`). `pooling` is what the checkpoint asks for.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    max_position: int
    first_position: int
    num_segments: int
    tells_texts_apart: bool
    norm_eps: float
    activation: str
    pooling: PoolingKind
    labels: tuple[str, ...]
    head: str
    eos_token_ids: tuple[int, ...]
