"""Constraints as clients ask for them, under whatever name: at most one for a request, as the internal kind.

Knows how values are spelled as text; compiles nothing. Invariant: two constraints at once are refused, and errors speak of the
field that the client used.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from sapwood.core.constraint import Constraint, ConstraintKind
from sapwood.errors import InvalidRequest

ANY_OBJECT = "$$ANY$$"
"""What SGLang's clients send as a schema when any JSON object will do."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A constraint, and the field that it came in."""

    field: str
    constraint: Constraint

    @property
    def names(self) -> dict[str, str]:
        """The kind's name and the client's."""
        return {self.constraint.kind: self.field}


def want(field: str, kind: ConstraintKind, value: Any) -> Wanted:
    """`value` as it came over the wire: a text, or (where the kind is JSON) the value itself."""
    if kind == "json_object" or (kind == "json_schema" and value == ANY_OBJECT):
        return Wanted(field, Constraint("json_object"))
    if kind in ("json_schema", "structural_tag", "choice") and not isinstance(value, str):
        return Wanted(field, Constraint(kind, msgspec.json.encode(value).decode()))
    if not isinstance(value, str):
        raise InvalidRequest(f"{field} must be a text", param=field)
    return Wanted(field, Constraint(kind, value))


def only_one(found: Iterable[Wanted | None]) -> Wanted | None:
    """The one constraint among those, if there is any; raises InvalidRequest for a second one."""
    wanted = [each for each in found if each is not None]
    if len(wanted) > 1:
        message = f"{wanted[1].field} and {wanted[0].field} are two constraints; send one of them"
        raise InvalidRequest(message, param=wanted[1].field)
    return wanted[0] if wanted else None
