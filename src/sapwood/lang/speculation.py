"""API speculation: one long completion, asked for once, serves the program's next texts and generations.

Owns what the model wrote ahead of the program; does not ask it. Invariant: what is taken was written by the model at this place
of the text; where the program says something else, what was written ahead is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

from sapwood.errors import InvalidRequest


class Ahead:
    """Text beyond what the program has said. `is_loose`: it comes from a model that answers whole messages in its own words."""

    def __init__(self, is_loose: bool) -> None:
        self._is_loose = is_loose
        self._text = ""
        self._has_ended = False

    def fill(self, text: str, has_ended: bool) -> None:
        """The model wrote this; `has_ended`: it would write no more."""
        self._text, self._has_ended = text, has_ended

    def drop(self) -> None:
        """The place in the text is another one now."""
        self._text, self._has_ended = "", False

    def pass_over(self, text: str) -> None:
        """The program says `text` itself; raises InvalidRequest when an answer in own words has nothing of the kind."""
        if not self._text and not self._has_ended:
            return
        if self._text.startswith(text):
            self._text = self._text[len(text) :]
        elif not self._is_loose:
            self.drop()
        elif text.strip() in self._text:
            rest = self._text.split(text.strip(), 1)[1]
            self._text = rest.lstrip(" ") if text.endswith(" ") else rest
        else:
            raise InvalidRequest(
                f"the model's answer has no {text.strip()[:80]!r} in it; show it the format, and give every gen a stop"
            )

    def take(self, stops: Sequence[str]) -> str | None:
        """The next generation, up to the first of its stop strings; None when the model must be asked."""
        ends = [position for stop in stops if (position := self._text.find(stop)) >= 0]
        if ends:
            taken, self._text = self._text[: min(ends)], self._text[min(ends) :]
            return taken
        if not self._has_ended:
            return None
        taken, self._text = self._text, ""
        return taken
