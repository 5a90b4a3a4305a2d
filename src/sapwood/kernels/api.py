"""The kernel vocabulary: one method per operation that a backend implements, and the small containers that they share.

Knows shapes and arithmetic, not models, pages or ranks. Invariant: between operations activations are float32 (the residual
stream `hidden` above all), K and V are read only from the KV store (after rounding to its dtype), and lanes that a mask hides
contribute exactly zero.

Letters in shapes: T tokens of the step, S selected tokens, E hidden size, H query heads, G key/value heads (H is a multiple of
G; query head h reads key/value head h // (H / G)), D head size, F MLP width, L locations, P positions, V vocabulary rows. All
counts are one rank's own: an operation never communicates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from sapwood.core.plan import RowRun
from sapwood.registry import Registry


@dataclass(frozen=True, slots=True)
class Linear:
    """A weight matrix with optional bias, prepared by a backend; `data` is that backend's own packing."""

    in_features: int
    out_features: int
    data: Any


@dataclass(frozen=True, slots=True)
class Norm:
    """RMSNorm over the last dimension: x / sqrt(mean(x^2) + eps) * weight, weight float32."""

    weight: Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary tables, float32 [P, D/2]: element i of a head is rotated with element i + D/2."""

    cos: Tensor
    sin: Tensor


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """One kind of attention on one rank. A query at position p sees keys in (p - window, p]; window 0 sees all of [0, p].

    Scores are `scale * q·k`, then `softcap * tanh(score / softcap)` when softcap is not 0.0.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    softcap: float
    window: int


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """What turns a normed hidden row into q, k and v. `qkv` has H*D query rows, then G*D key rows, then G*D value rows.

    `q_norm` and `k_norm` (weights of D elements, both or neither) are applied per head before the rotation.
    """

    qkv: Linear
    q_norm: Norm | None
    k_norm: Norm | None
    rope: Rope


@dataclass(frozen=True, slots=True)
class KVLayer:
    """One layer's rows of the KV store: k and v of shape [L, G, D], in the store's dtype."""

    k: Tensor
    v: Tensor


@dataclass(frozen=True, slots=True)
class StepGeometry:
    """Where the tokens of a step are: the plan's rows, flattened in order to T tokens.

    `positions` and `locations` are int64 [T]; `page_table` is int32 [slots, P] and holds the location of every position that
    a row may read, those written by this step included.
    """

    rows: tuple[RowRun, ...]
    positions: Tensor
    locations: Tensor
    page_table: Tensor


@dataclass(frozen=True, slots=True)
class Step:
    """A geometry that a backend has prepared once for all layers; `attention` is the backend's own."""

    positions: Tensor
    locations: Tensor
    attention: Any


class Kernels(Protocol):
    """A backend. Methods return new tensors unless they say "in place"."""

    def prepare_linear(self, parts: Sequence[Tensor], bias: Tensor | None) -> Linear:
        """Stack weight matrices `[rows_i, in_features]` by rows, in order, into one prepared matrix; bias has all the rows.

        Tensors may be kept, so callers must not change them afterwards. The embedding table is prepared in the same way.
        """
        ...

    def begin_step(self, geometry: StepGeometry, shapes: Sequence[AttentionShape]) -> Step:
        """Prepare whatever all layers of a step share; `shapes` lists the model's kinds of attention."""
        ...

    def embed(self, token_ids: Tensor, table: Linear, first_id: int, scale: float) -> Tensor:
        """Rows `token_ids - first_id` of `table` times `scale`, float32 [T, E]; ids outside the table give zero rows."""
        ...

    def qkv(
        self, hidden: Tensor, norm: Norm, weights: AttentionWeights, shape: AttentionShape, step: Step, kv: KVLayer
    ) -> Tensor:
        """Norm, project, normalise per head, rotate; store k and v at the step's locations (in place); q as [T, H, D]."""
        ...

    def attend(self, q: Tensor, kv: KVLayer, shape: AttentionShape, step: Step) -> Tensor:
        """Attention of every query over its request's stored rows, as [T, H*D]: prefill, decode and mixtures alike."""
        ...

    def project(self, x: Tensor, linear: Linear) -> Tensor:
        """x [T, in_features] times the transposed matrix, plus bias: float32 [T, out_features]."""
        ...

    def mlp(self, hidden: Tensor, norm: Norm, gate_up: Linear, down: Linear, activation: str) -> Tensor:
        """down(activation(gate(x)) * up(x)) of x = norm(hidden), [T, E]; `gate_up` stacks F gate rows on F up rows."""
        ...

    def add(self, hidden: Tensor, delta: Tensor, norm: Norm | None) -> None:
        """In place: hidden += delta, or norm(delta) where a norm is given."""
        ...

    def logits(self, hidden: Tensor, rows: Tensor, norm: Norm, head: Linear, softcap: float) -> Tensor:
        """Final norm and head on `hidden[rows]` (rows int64 [S]), soft-capped when softcap is not 0.0: float32 [S, V]."""
        ...

    def copy_rows(self, kv: KVLayer, sources: Tensor, targets: Tensor) -> None:
        """In place: rows `targets[i]` become rows `sources[i]` as they were before the call (both int64 [C])."""
        ...


KERNEL_BACKENDS: Registry[Callable[[], Kernels]] = Registry("kernel backend")
