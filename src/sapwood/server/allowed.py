"""Which values a field of a body may have, for the message about one that it may not have.

Knows msgspec's description of types and the path of a mistake in its messages. Invariant: nothing here runs for a valid body.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import inspect

_STEP = re.compile(r"\.?(?P<name>[^.\[\]]+)|\[[^\]]*\]")


def allowed_values(kind: Any, path: str) -> list[str]:
    """The values that a body of type `kind` may have at `path` (as in msgspec's messages, without `$`), sorted; empty where they
    cannot be listed."""
    places = [inspect.type_info(kind)]
    for step in _STEP.finditer(path):
        places = list(_inside(places, step["name"]))
    return sorted({str(value) for place in _branches(places) if isinstance(place, inspect.LiteralType) for value in place.values})


def _branches(places: Iterable[inspect.Type]) -> Iterator[inspect.Type]:
    for place in places:
        if isinstance(place, inspect.UnionType):
            yield from _branches(place.types)
        else:
            yield place


def _inside(places: Iterable[inspect.Type], name: str | None) -> Iterator[inspect.Type]:
    """One step further: the field `name`, or what lists and objects hold where it is None."""
    for place in _branches(places):
        if name is not None:
            if isinstance(place, inspect.StructType):
                yield from (field.type for field in place.fields if field.encode_name == name)
        elif isinstance(place, inspect.DictType):
            yield place.value_type
        elif isinstance(place, inspect.CollectionType):
            yield place.item_type
