"""What the scheduler asks of the cache's storage, and what it hears back.

Pages of KV reach storage by way of host pages, which plans fill and read (`StepPlan.saves`, `StepPlan.loads`). Invariant: a host
page that an order names belongs to that order until its `TransferDone` has been heard; no plan touches it meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True)
class Probe:
    """How many of these pages, from the first on, does the storage hold? `keys` are chained hashes."""

    ticket: int
    keys: list[bytes]


@dataclass(frozen=True, slots=True)
class Fetch:
    """Read these pages into these host pages; stop at the first that is missing or damaged."""

    ticket: int
    keys: list[bytes]
    host_pages: list[int]


@dataclass(frozen=True, slots=True)
class Store:
    """Write these host pages under these keys, those that the storage does not hold yet."""

    ticket: int
    keys: list[bytes]
    host_pages: list[int]


TransferOrder = Probe | Fetch | Store


class TransferDone(msgspec.Struct, frozen=True, array_like=True):
    """An order is done: how many pages are held (Probe), were read (Fetch) or are stored (Store)."""

    ticket: int
    count: int
