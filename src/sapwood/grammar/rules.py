"""The rules of a grammar in llguidance's Lark, while it is being written.

Owns names of rules and terminals, the spelling of literal texts and of free ones; knows no forms. Invariant: a control token in a
literal text is its id, and a free text that a control token ends, or that one begins after, never holds that token's spelling:
whoever reads the text afterwards could not tell the two apart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

TEXT = "TEXT: /(.|\\n)*/"


class RuleBook:
    """The rules of one grammar; `control_ids`: the model's control tokens by their spelling."""

    def __init__(self, control_ids: Mapping[str, int]) -> None:
        self._control_ids = control_ids
        parts = sorted(filter(None, control_ids), key=len, reverse=True)
        self._controls = re.compile("|".join(map(re.escape, parts))) if parts else None
        self._rules: list[str] = []

    def lark(self, start: str) -> str:
        """The grammar whose texts are those of `start`."""
        return "\n".join(["%llguidance {}", f"start: {start}", TEXT, *self._rules])

    def rule(self, right: str, suffix: str = "") -> str:
        """A new rule's name; `suffix` holds its attributes."""
        name = f"part_{len(self._rules)}"
        self._rules.append(f"{name}{suffix}: {right}")
        return name

    def terminal(self, right: str) -> str:
        """A new terminal's name; only terminals know `&` and `~`."""
        name = f"PART_{len(self._rules)}"
        self._rules.append(f"{name}: {right}")
        return name

    def any_of(self, options: Sequence[str]) -> str:
        """One of several right sides."""
        return options[0] if len(options) == 1 else self.rule(" | ".join(options) or '""')

    def literal(self, text: str) -> str:
        """A text, its control tokens by their ids."""
        if self._controls is None:
            return json.dumps(text)
        parts, end = [], 0
        for found in self._controls.finditer(text):
            parts += [json.dumps(text[end : found.start()]), f"<[{self._control_ids[found[0]]}]>"]
            end = found.end()
        return " ".join(part for part in (*parts, json.dumps(text[end:])) if part != '""') or '""'

    def opening_control(self, text: str) -> str:
        """The spelling of the control token that `text` begins with; "" where it begins with none."""
        found = self._controls.match(text) if self._controls is not None else None
        return found[0] if found else ""

    def holds_control(self, text: str) -> bool:
        """Whether there is a control token in `text`."""
        return self._controls is not None and self._controls.search(text) is not None

    def free(self, without: Sequence[str] = (), no_starts: Sequence[str] = ()) -> str:
        """A terminal for any text in which nothing of `without` occurs, and that begins with nothing of `no_starts`."""
        bans = [f"~(TEXT ({_either(without)}) TEXT)"] if without else []
        bans += [f"~(({_either(no_starts)}) TEXT)"] if no_starts else []
        return self.terminal(" & ".join(["TEXT", *bans])) if bans else "TEXT"

    def up_to(self, terminal: str, ends: Sequence[str]) -> str:
        """A text that the terminal takes, and the first of `ends`, all of them texts or all of them beginning with a control
        token; an empty one among them means that the end may be left out."""
        closing = [self.literal(end) for end in ends if end]
        can_stay_open = "" in ends
        if any(self.opening_control(end) for end in ends):
            return f"{terminal} ({self.any_of(closing)}){'?' if can_stay_open else ''}"
        lazy = self.rule(f"{terminal} ({' | '.join(closing)})", "[lazy]") if closing else terminal
        return self.any_of([lazy, terminal]) if can_stay_open and closing else lazy


def _either(texts: Sequence[str]) -> str:
    return " | ".join(json.dumps(text) for text in dict.fromkeys(texts))
