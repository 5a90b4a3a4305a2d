"""The arithmetic of answers that are numbers: unit vectors, probabilities of classes, relevance.

Pure functions on float32 arrays; knows no HTTP and no engine. Invariant: numbers that come out are finite when those that go in
are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sapwood.errors import InvalidRequest

Vector = NDArray[np.float32]

TINIEST_LENGTH = 1e-12
JUDGE_SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
"""How decoder-only rerankers (Qwen3-Reranker) are trained to be asked."""
DEFAULT_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


def unpack_vector(data: bytes) -> Vector:
    """A vector as it travels; read-only."""
    return np.frombuffer(data, dtype="<f4")


def unit(vector: Vector, dimensions: int | None = None) -> Vector:
    """The first `dimensions` numbers (None: all), scaled to length one; a zero vector stays as it is."""
    part = vector if dimensions is None else vector[:dimensions]
    return part / np.float32(max(float(np.linalg.norm(part)), TINIEST_LENGTH))


def check_dimensions(dimensions: int | None, size: int) -> None:
    """Raise InvalidRequest unless a vector of `size` numbers can be cut to `dimensions`."""
    if dimensions is not None and not 1 <= dimensions <= size:
        raise InvalidRequest(f"dimensions must be from 1 to {size}, got {dimensions}", param="dimensions")


def softmax(values: Sequence[float] | Vector) -> list[float]:
    """Probabilities from scores."""
    scores = np.asarray(values, dtype=np.float64)
    weights = np.exp(scores - scores.max())
    found: list[float] = (weights / weights.sum()).tolist()
    return found


def sigmoid(value: float) -> float:
    """A probability from a log-odds."""
    return 1.0 / (1.0 + math.exp(-value)) if value >= 0 else math.exp(value) / (1.0 + math.exp(value))


def class_probabilities(scores: Vector) -> list[float]:
    """Probabilities of a classifier's classes; a single one has a probability of its own."""
    return softmax(scores) if len(scores) > 1 else [sigmoid(float(scores[0]))]


def label_scores(logprobs: Sequence[float], apply_softmax: bool) -> list[float]:
    """Scores of label tokens: their probabilities among all tokens, or among each other."""
    return softmax(logprobs) if apply_softmax else [math.exp(value) for value in logprobs]


def relevance_logit(scores: Vector) -> float:
    """How relevant a cross-encoder finds a pair, as log-odds: its one score, or the second class over the first."""
    if len(scores) > 2:
        raise InvalidRequest(
            f"this model has {len(scores)} classes, a reranker has one or two; ask /v1/classify or /v1/score", param="model"
        )
    return float(scores[0]) if len(scores) == 1 else float(scores[1] - scores[0])


def judge_messages(query: str, document: str, instruction: str | None) -> list[dict[str, str]]:
    """The conversation whose answer, yes or no, says whether `document` is relevant."""
    asked = f"<Instruct>: {instruction or DEFAULT_INSTRUCTION}\n<Query>: {query}\n<Document>: {document}"
    return [{"role": "system", "content": JUDGE_SYSTEM}, {"role": "user", "content": asked}]
