"""Who binds where: the addresses of one replica's processes, as sockets in one private folder.

Every receiver binds, every sender connects (see the picture in `types.py`). Addresses carry the epoch, so that a process of an
earlier life can never reach the present one. Invariant: the folder is readable by its owner alone and goes with `close`.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Topology:
    """The addresses of one replica in one epoch."""

    folder: str
    epoch: int = 0

    @property
    def server(self) -> str:
        """Where the server listens to everybody."""
        return f"ipc://{self.folder}/server"

    @property
    def worker(self) -> str:
        """Where rank 0 listens to the server."""
        return f"ipc://{self.folder}/worker.{self.epoch}"

    @property
    def detokenizer(self) -> str:
        """Where a detokenizer process listens to the server and to rank 0."""
        return f"ipc://{self.folder}/detokenizer.{self.epoch}"

    def tokenizer(self, index: int) -> str:
        """Where tokenizer process `index` listens to the server."""
        return f"ipc://{self.folder}/tokenizer{index}.{self.epoch}"

    @property
    def ranks(self) -> str:
        """The rendezvous file of the tensor-parallel ranks."""
        return f"{self.folder}/ranks.{self.epoch}"

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def create_topology() -> Topology:
    """A topology in a fresh folder with mode 0700; short, since socket paths end at about 100 characters."""
    return Topology(str(Path(tempfile.mkdtemp(prefix="sapwood-"))))
