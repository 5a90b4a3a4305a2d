"""From hidden rows to the one vector that a prompt's request wants: an embedding, or scores of classes.

Knows slots and rows of a plan, not requests. Invariant: what a slot gathers is its present request's alone; a vector comes with
the row that computes the last prompt position, whatever chunks the prompt was computed in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from sapwood.core.plan import RowRun, SlotStart
from sapwood.core.pooling import PoolingKind
from sapwood.errors import ConfigError

Final = Callable[[Tensor], Tensor]
"""The model's last norm."""


class Pooler(Protocol):
    """What a step's hidden rows are read with, beside sampling."""

    def start(self, start: SlotStart) -> None:
        """A request takes a slot."""
        ...

    def read(self, rows: Sequence[RowRun], hidden: Tensor) -> dict[int, Tensor]:
        """Vectors (float32) by index into `rows`, from the step's hidden rows [T, hidden]."""
        ...


class NoPooler:
    """The twin for models that make text."""

    def start(self, start: SlotStart) -> None:
        """Nothing to gather."""

    def read(self, rows: Sequence[RowRun], hidden: Tensor) -> dict[int, Tensor]:
        """None."""
        return {}


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A request that wants its vector: its prompt's length, and with mean pooling the sum of the rows so far."""

    num_prompt: int
    total: Tensor | None = None


class HiddenPooler:
    """Last or mean pooling over the rows of a decoder; `head` [classes, hidden] turns the vector into scores of classes."""

    def __init__(self, final: Final, kind: PoolingKind, head: Tensor | None = None) -> None:
        if kind is PoolingKind.CLS:
            raise ConfigError("--pooling cls: the first row of this model has seen only itself; take last or mean")
        self._final, self._is_mean, self._head = final, kind is PoolingKind.MEAN, head
        self._slots: dict[int, _Wanted] = {}

    def start(self, start: SlotStart) -> None:
        """Begin to gather for a request that wants a vector."""
        self._slots.pop(start.slot, None)
        if start.pooling is not None:
            self._slots[start.slot] = _Wanted(start.num_prompt)

    def read(self, rows: Sequence[RowRun], hidden: Tensor) -> dict[int, Tensor]:
        """Add the rows to what their slots gather; those that end a prompt give its vector."""
        found: dict[int, Tensor] = {}
        token = 0
        for index, row in enumerate(rows):
            wanted = self._slots.get(row.slot)
            if wanted is not None:
                vector = self._gather(row, wanted, hidden[token : token + row.count])
                if vector is not None:
                    found[index] = vector if self._head is None else self._head @ vector
            token += row.count
        return found

    def _gather(self, row: RowRun, wanted: _Wanted, part: Tensor) -> Tensor | None:
        is_last = row.first + row.count == wanted.num_prompt
        if not self._is_mean:
            return self._final(part[-1:])[0] if is_last else None
        total = self._final(part).sum(dim=0)
        if wanted.total is not None:
            total = total + wanted.total
        self._slots[row.slot] = _Wanted(wanted.num_prompt, total)
        return total / wanted.num_prompt if is_last else None


def as_bytes(vector: Tensor) -> bytes:
    """A vector as it travels, little-endian float32; waits for the device."""
    return bytes(vector.detach().float().cpu().numpy().astype("<f4").tobytes())
