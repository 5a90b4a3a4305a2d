"""Typed, bounded look-ups in a config.json or in GGUF metadata.

Owns the wording of "this field is missing or wrong". Does not know what the fields mean. Invariant: a value that comes out has
the type and range that was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sapwood.errors import WeightsError

MAX_SIZE = 1 << 31
MAX_LAYERS = 1 << 12
MAX_NUMBER = 1e300


class Fields:
    """Reads `values[prefix + key]`; a key that is absent or null takes `default`, and without a default is an error."""

    def __init__(self, values: Mapping[str, Any], source: str, prefix: str = "") -> None:
        self.values = values
        self.source = source
        self.prefix = prefix

    def get(self, key: str, default: Any = None) -> Any:
        """The raw value, or `default` when it is absent or null."""
        value = self.values.get(self.prefix + key)
        return default if value is None else value

    def has(self, key: str) -> bool:
        return self.get(key) is not None

    def size(self, key: str, default: int | None = None, limit: int = MAX_SIZE) -> int:
        """An integer from 1 to `limit`."""
        value = self._required(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= limit:
            raise self._wrong(key, value, f"an integer from 1 to {limit}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number."""
        value = self._required(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MAX_NUMBER:
            raise self._wrong(key, value, "a finite number")
        return float(value)

    def positive(self, key: str, default: float | None = None) -> float:
        """A finite number above zero."""
        value = self.number(key, default)
        if value <= 0:
            raise self._wrong(key, value, "a positive number")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._required(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "a string")
        return value

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One token id or a list of them, as a tuple; empty when absent."""
        value = self.get(key, [])
        ids = value if isinstance(value, list) else [value]
        for item in ids:
            if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item <= MAX_SIZE:
                raise self._wrong(key, value, "a token id or a list of token ids")
        return tuple(ids)

    def items(self, key: str) -> list[Any]:
        """A list; empty when absent."""
        value = self.get(key, [])
        if not isinstance(value, list):
            raise self._wrong(key, value, "a list")
        return value

    def section(self, key: str) -> Fields | None:
        """The object stored under `key`, or None when it is absent."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(key, value, "an object")
        return Fields(value, f"{self.source}, {key}")

    def _required(self, key: str, default: Any) -> Any:
        value = self.get(key, default)
        if value is None:
            raise WeightsError(f"{self.source} lacks {self.prefix + key!r}; the model is incomplete, download it again")
        return value

    def _wrong(self, key: str, value: object, wanted: str) -> WeightsError:
        return WeightsError(f"{self.source}: {self.prefix + key!r} is {value!r:.80}, not {wanted}; correct the file")
