"""What an option is: its type, its legal values, and how text, YAML and keywords become a value.

Knows no particular option. Invariant: `coerce` returns a value of the option's type that passed its check, or raises
ConfigError naming the source, the flag and the rule.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sapwood.errors import ConfigError

Check = Callable[[Any], str | None]
"""Returns the rule that a value breaks ("must be >= 1"), or None."""

ENV_PREFIX = "SAPWOOD_"
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_BYTE_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `kind` is str, int, float, bool or bytes (a size such as 512MiB, held as an int).

    `default=None` means "chosen at start"; `automatic` then says how. `values` maps every accepted spelling to the value it
    stands for. `refused` is the reason why switching the option on is always an error.
    """

    name: str
    group: str
    kind: str
    default: Any
    aliases: tuple[str, ...] = ()
    values: tuple[tuple[str, str], ...] = ()
    check: Check | None = None
    automatic: str = ""
    refused: str = ""
    secret: bool = False
    help: str = ""

    @property
    def flags(self) -> tuple[str, ...]:
        """Command-line spellings, the main one first."""
        return tuple("--" + name.replace("_", "-") for name in (self.name, *self.aliases))

    @property
    def env(self) -> str:
        """The environment variable."""
        return ENV_PREFIX + self.name.upper()

    @property
    def choices(self) -> tuple[str, ...]:
        """Accepted spellings, empty when the option is free."""
        return tuple(spelling for spelling, _ in self.values)


def coerce(option: Option, value: Any, source: str) -> Any:
    """`value` (text, or what YAML and keywords hold) as the option's type; raises ConfigError naming the source."""
    shown = "a secret" if option.secret else repr(value)
    try:
        typed = _PARSERS[option.kind](value)
        if option.values:
            typed = dict(option.values)[typed.lower()]
    except (ValueError, KeyError, OverflowError):
        wanted = "one of " + ", ".join(option.choices) if option.values else _KIND_NAMES[option.kind]
        raise ConfigError(f"{source}: {option.flags[0]} takes {wanted}, got {shown}", param=option.name) from None
    rule = option.check(typed) if option.check else None
    if rule:
        raise ConfigError(f"{source}: {option.flags[0]} {rule}, got {shown}", param=option.name)
    if option.refused and typed:
        raise ConfigError(f"{source}: {option.flags[0]} is refused: {option.refused}", param=option.name)
    return typed


def same(*names: str) -> tuple[tuple[str, str], ...]:
    """`Option.values` in which every spelling stands for itself."""
    return tuple((name, name) for name in names)


def at_least(bound: float) -> Check:
    """A number >= bound."""
    return lambda value: None if value >= bound else f"must be >= {bound:g}"


def within(low: float, high: float) -> Check:
    """A number from low to high, both included."""
    return lambda value: None if low <= value <= high else f"must be between {low:g} and {high:g}"


def one_of(*values: int) -> Check:
    """One of a few numbers."""
    return lambda value: None if value in values else f"must be {' or '.join(map(str, values))}"


def fraction(value: float) -> str | None:
    """A number strictly between 0 and 1."""
    return None if 0.0 < value < 1.0 else "must be greater than 0 and less than 1"


def positive(value: float) -> str | None:
    """A number above 0."""
    return None if value > 0.0 else "must be greater than 0"


def power_of_two(value: int) -> str | None:
    """1, 2, 4, 8, ..."""
    return None if value >= 1 and value & (value - 1) == 0 else "must be a power of two (1, 16, 32, 64, ...)"


def chunk_size(value: int) -> str | None:
    """A count of tokens, or -1 for no limit."""
    return None if value == -1 or value >= 1 else "must be >= 1 token, or -1 to compute every prompt in one step"


def not_blank(value: str) -> str | None:
    """Text with something in it."""
    return None if value.strip() else "must not be empty"


def _parse_str(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _parse_int(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError
    return int(value)


def _parse_float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str) or not math.isfinite(float(value)):
        raise ValueError
    return float(value)


def _parse_bool(value: Any) -> bool:
    text = str(value).lower()
    if text not in _TRUE + _FALSE:
        raise ValueError
    return text in _TRUE


def _parse_bytes(value: Any) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", str(value).strip().lower())
    if isinstance(value, bool) or match is None or match[2] not in _BYTE_UNITS:
        raise ValueError
    return int(float(match[1]) * _BYTE_UNITS[match[2]]) if "." in match[1] else int(match[1]) * _BYTE_UNITS[match[2]]


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "str": _parse_str,
    "int": _parse_int,
    "float": _parse_float,
    "bool": _parse_bool,
    "bytes": _parse_bytes,
}
_KIND_NAMES = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "bytes": "a size such as 512MiB",
}
