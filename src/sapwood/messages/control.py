"""The link that carries rank 0's step inputs to the other ranks.

Owns the protocol and the link of a rank that is alone; needs no torch. Invariant: every rank gets the same bytes, in order.
"""

from __future__ import annotations

from typing import Protocol


class ControlLink(Protocol):
    """Bytes from rank 0 to all ranks."""

    def share(self, data: bytes | None = None) -> bytes:
        """Rank 0 passes `data`, the others nothing; everyone gets rank 0's bytes. Waits at most the link's timeout."""
        ...

    def close(self) -> None:
        """Drop the connections."""
        ...


class SoloLink:
    """The only rank's control link."""

    def share(self, data: bytes | None = None) -> bytes:
        assert data is not None, "rank 0 must pass the bytes to share"
        return data

    def close(self) -> None:
        return None
