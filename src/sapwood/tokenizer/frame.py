"""What a model's tokenizer puts around one text, and around and between two.

Knows ids alone. Invariant: a prompt that is cut to fit keeps what surrounds it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PromptFrame:
    """`prefix` text `suffix`, or `prefix` first `middle` second `suffix`, as ids."""

    prefix: tuple[int, ...] = ()
    middle: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()

    def single(self, ids: list[int], most: int | None = None) -> list[int]:
        """A prompt of one text, at most `most` ids long."""
        room = None if most is None else max(most - len(self.prefix) - len(self.suffix), 0)
        return [*self.prefix, *ids[:room], *self.suffix]

    def pair(self, first: list[int], second: list[int], most: int | None = None) -> tuple[list[int], int]:
        """A prompt of two texts, and the position at which the second begins; too long a prompt loses the second one's end."""
        start = len(self.prefix) + len(first) + len(self.middle)
        room = None if most is None else max(most - start - len(self.suffix), 0)
        return [*self.prefix, *first, *self.middle, *second[:room], *self.suffix], start
