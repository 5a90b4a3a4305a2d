"""Who binds where: the addresses of one replica's processes, as sockets in one private folder.

Every receiver binds, every sender connects (see the picture in `types.py`). A process that is started again binds a new
address, so that what was meant for its earlier life never reaches it. Invariant: the folder is readable by its owner alone and
goes with `close`.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

from sapwood.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Topology:
    """The addresses of one replica in one epoch. `lives` counts how often a process (all ranks are one) was started again."""

    folder: str
    epoch: int = 0
    lives: dict[str, int] = field(default_factory=dict)

    @property
    def server(self) -> str:
        """Where the server listens to everybody."""
        return f"ipc://{self.folder}/server"

    @property
    def worker(self) -> str:
        """Where rank 0 listens to the server."""
        return f"ipc://{self.folder}/worker.{self.life('worker')}"

    @property
    def detokenizer(self) -> str:
        """Where a detokenizer process listens to the server and to rank 0."""
        return f"ipc://{self.folder}/detokenizer.{self.life('detokenizer')}"

    def tokenizer(self, index: int) -> str:
        """Where tokenizer process `index` listens to the server."""
        return f"ipc://{self.folder}/tokenizer{index}.{self.life(f'tokenizer {index}')}"

    @property
    def ranks(self) -> str:
        """The rendezvous file of the tensor-parallel ranks."""
        return f"{self.folder}/ranks.{self.life('worker')}"

    @property
    def flight(self) -> str:
        """Rank 0's mapped record of its last steps."""
        return f"{self.folder}/flight.{self.life('worker')}"

    def stacks(self, process: str) -> str:
        """Where the process of that name writes what its threads are doing, when it is asked or dies."""
        return f"{self.folder}/stacks.{process.replace(' ', '-')}"

    def life(self, unit: str) -> int:
        """How often the unit (`worker` for all ranks, else a process's name) was started again."""
        return self.lives.get(unit, 0)

    def reborn(self, *units: str) -> Topology:
        """The addresses after these units were started again."""
        return replace(self, lives={**self.lives, **{unit: self.life(unit) + 1 for unit in units}})

    def next_epoch(self) -> Topology:
        """The same addresses in the next epoch."""
        return replace(self, epoch=self.epoch + 1)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def create_topology() -> Topology:
    """A topology in a fresh folder with mode 0700; short, since socket paths end at about 100 characters.

    Raises ConfigError where there is no place for the folder.
    """
    try:
        return Topology(str(Path(tempfile.mkdtemp(prefix="sapwood-"))))
    except OSError as error:
        reason = error.strerror or "it cannot be written"
        raise ConfigError(
            f"no folder for sockets can be made in $TMPDIR or /tmp ({reason}); make room there, or set TMPDIR"
        ) from None
