"""The ranks of one engine: collectives on tensors, and a link that carries rank 0's step inputs to the others.

Knows no model and no scheduler. Invariant: after a collective all ranks hold bitwise the same values, because sums are formed in
rank order and the same way whatever the size of the tensor; the control link never shares a connection with the collectives.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch import Tensor

from sapwood.distributed.rendezvous import c10d, gloo_options, open_store
from sapwood.errors import ConfigError, EngineFailed
from sapwood.messages.control import ControlLink, SoloLink

_HEADER_BYTES = 8
_FIRST_BYTES = 4096  # a message that fits with its length takes one broadcast; a longer one takes a second


class Group(Protocol):
    """Collectives among the ranks. Every rank calls the same ones in the same order, from one thread."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce_(self, tensor: Tensor) -> Tensor:
        """Replace `tensor` by its sum over the ranks, in place; returns it."""
        ...

    def all_gather(self, tensor: Tensor, dim: int = -1) -> Tensor:
        """The ranks' tensors (equal shapes) joined along `dim` in rank order."""
        ...

    def broadcast_(self, tensor: Tensor, src: int = 0) -> Tensor:
        """Replace `tensor` by the one of rank `src`, in place; returns it."""
        ...

    def barrier(self) -> None:
        """Return when every rank has come here."""
        ...

    def close(self) -> None:
        """Drop the connections; peers that still wait in a collective get EngineFailed."""
        ...


class SoloGroup:
    """The only rank: every collective is the identity."""

    rank = 0
    size = 1

    def all_reduce_(self, tensor: Tensor) -> Tensor:
        return tensor

    def all_gather(self, tensor: Tensor, dim: int = -1) -> Tensor:
        return tensor

    def broadcast_(self, tensor: Tensor, src: int = 0) -> Tensor:
        return tensor

    def barrier(self) -> None:
        return None

    def close(self) -> None:
        return None


class TorchGroup:
    """Collectives of torch.distributed on a process group of its own (torch's global group is left alone)."""

    def __init__(self, process_group: Any, rank: int, size: int, sums_in_rank_order: bool) -> None:
        self._group = process_group
        self.rank = rank
        self.size = size
        self._sums_in_rank_order = sums_in_rank_order

    def all_reduce_(self, tensor: Tensor) -> Tensor:
        if not self._sums_in_rank_order:
            with self._collective("all_reduce") as group:
                group.allreduce([tensor]).wait()
            return tensor
        parts = self._gather(tensor)
        total = parts[0].float()
        for part in parts[1:]:
            total = total + part
        return tensor.copy_(total)

    def all_gather(self, tensor: Tensor, dim: int = -1) -> Tensor:
        return torch.cat(self._gather(tensor), dim=dim)

    def _gather(self, tensor: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(self.size)]
        with self._collective("all_gather") as group:
            group.allgather([parts], [tensor.contiguous()]).wait()
        return parts

    def broadcast_(self, tensor: Tensor, src: int = 0) -> Tensor:
        options = c10d.BroadcastOptions()
        options.rootRank = src
        buffer = tensor.contiguous()
        with self._collective("broadcast") as group:
            group.broadcast([buffer], options).wait()
        return tensor if buffer is tensor else tensor.copy_(buffer)

    def barrier(self) -> None:
        with self._collective("barrier") as group:
            group.barrier().wait()

    def close(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.shutdown()

    @contextlib.contextmanager
    def _collective(self, name: str) -> Iterator[Any]:
        """The process group; errors of the transport become EngineFailed, since a rank without its peers is of no use."""
        if self._group is None:
            raise EngineFailed(f"rank {self.rank} is closed: the engine is shutting down; send the request to a running server")
        try:
            yield self._group
        except RuntimeError as error:
            raise EngineFailed(
                f"rank {self.rank} lost its peers during {name}: another rank died or hangs; see its log, restart the server"
            ) from error


class TorchLink:
    """A control link over a group of its own."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def share(self, data: bytes | None = None) -> bytes:
        first = torch.zeros(_FIRST_BYTES, dtype=torch.uint8)
        if self._group.rank == 0:
            assert data is not None, "rank 0 must pass the bytes to share"
            head = len(data).to_bytes(_HEADER_BYTES, "little") + data[: _FIRST_BYTES - _HEADER_BYTES]
            first[: len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
        received = self._group.broadcast_(first).numpy().tobytes()
        length = int.from_bytes(received[:_HEADER_BYTES], "little")
        rest = length - (_FIRST_BYTES - _HEADER_BYTES)
        if rest <= 0:
            return received[_HEADER_BYTES : _HEADER_BYTES + length]
        tail = torch.empty(rest, dtype=torch.uint8)
        if data is not None:
            tail = torch.frombuffer(bytearray(data[-rest:]), dtype=torch.uint8)
        return received[_HEADER_BYTES:] + self._group.broadcast_(tail).numpy().tobytes()

    def close(self) -> None:
        self._group.close()


@dataclass(frozen=True, slots=True)
class Ranks:
    """This rank's two connections to the others."""

    group: Group
    control: ControlLink

    def close(self) -> None:
        """Drop both."""
        self.group.close()
        self.control.close()


def connect(rank: int, size: int, address: str = "", backend: str = "gloo", timeout_s: float = 60.0) -> Ranks:
    """Join the other ranks; returns when all have come, raises EngineFailed when they have not within `timeout_s`.

    `address`: "file:///path" (a fresh file that all ranks can reach) or "tcp://host:port" (rank 0 listens there); unused for one
    rank. `backend`: gloo, or nccl for tensors on CUDA. The timeout also bounds every later collective.
    """
    if size == 1:
        return Ranks(SoloGroup(), SoloLink())
    if backend not in ("gloo", "nccl"):
        raise ConfigError(f"unknown collective backend {backend!r}; known: gloo, nccl")
    timeout = timedelta(seconds=timeout_s)
    try:
        store = open_store(address, rank, size, timeout)
        control = _gloo_group(c10d.PrefixStore("control", store), rank, size, address, timeout)
        if backend == "nccl":
            options = c10d.ProcessGroupNCCL.Options()
            options._timeout = timeout
            nccl = c10d.ProcessGroupNCCL(c10d.PrefixStore("compute", store), rank, size, options)
            group = TorchGroup(nccl, rank, size, sums_in_rank_order=False)
        else:
            group = _gloo_group(c10d.PrefixStore("compute", store), rank, size, address, timeout)
    except RuntimeError as error:
        raise EngineFailed(
            f"rank {rank} of {size} could not meet the others at {address} within {timeout_s:g} s; see whether they started"
        ) from error
    return Ranks(group, TorchLink(control))


def _gloo_group(store: Any, rank: int, size: int, address: str, timeout: timedelta) -> TorchGroup:
    process_group = c10d.ProcessGroupGloo(store, rank, size, gloo_options(address, timeout))
    return TorchGroup(process_group, rank, size, sums_in_rank_order=True)
