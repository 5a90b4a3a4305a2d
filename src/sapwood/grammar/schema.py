"""What a JSON Schema may look like before anybody compiles it.

Owns the limits of size and depth, and another spelling of what llguidance reads wrongly. Invariant: a schema that passes is small
enough to be compiled, and to be walked by recursion.
"""

from __future__ import annotations

from typing import Any, TypeGuard

from sapwood.errors import InvalidRequest
from sapwood.grammar.runs import check_node

MAX_NODES = 50_000
NEXT, LARGEST_BOUND = 1e-9, 1e9
"""Of bounds: how far apart, relatively, and up to which size; llguidance writes them with fewer digits than floats have."""
_MAPS = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))
_VALUES = frozenset(("enum", "const", "default", "examples"))


def check_schema(schema: Any, max_depth: int) -> Any:
    """The schema itself; raises InvalidRequest when it is none, or beyond the limits."""
    if not isinstance(schema, dict) and schema is not True:
        raise InvalidRequest("json_schema must be a JSON object (a JSON Schema)", param="json_schema")
    num_nodes, level = 0, [schema]
    for _ in range(max_depth):
        num_nodes += len(level)
        for node in level:
            check_node(node)
            _check_number(node)
        level = [child for node in level for child in _children(node)]
        if not level:
            return schema
        if num_nodes > MAX_NODES:
            raise InvalidRequest(f"json_schema has more than {MAX_NODES} parts; make it smaller", param="json_schema")
    raise InvalidRequest(f"json_schema is nested more than {max_depth} levels deep; flatten it", param="json_schema")


def _check_number(node: Any) -> None:
    """llguidance does not read longer whole numbers."""
    if isinstance(node, int) and not -(2**63) <= node < 2**64:
        message = "json_schema holds a whole number of more than 64 bits; take a smaller one, or leave it out"
        raise InvalidRequest(message, param="json_schema")


def with_closed_bounds(schema: Any) -> Any:
    """The schema with bounds of fractions that exclude themselves (`exclusiveMinimum: 6`) as the number that follows, as far as
    that matters (`minimum: 6.000000006`).

    llguidance 1.9 takes 6 for a number above 6 where the maximum is below 7, and 1.5000000000000001, which every reader of JSON
    takes for 1.5, for one above 1.5; it reads closed bounds rightly.
    """
    if isinstance(schema, list):
        return [with_closed_bounds(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _closed_part(key, value) for key, value in schema.items()}
    if found.get("type") != "integer":
        _close(found, "exclusiveMinimum", "minimum", 1)
        _close(found, "exclusiveMaximum", "maximum", -1)
    return found


def _closed_part(key: str, value: Any) -> Any:
    if key in _VALUES:
        return value
    if key in _MAPS and isinstance(value, dict):
        return {name: with_closed_bounds(part) for name, part in value.items()}
    return with_closed_bounds(value)


def _close(schema: dict[str, Any], exclusive: str, inclusive: str, sign: int) -> None:
    """Replace one bound, unless there is none (in older drafts it is true or false)."""
    bound, other = schema.get(exclusive), schema.get(inclusive)
    if not _is_number(bound) or abs(bound) > LARGEST_BOUND:
        return
    if sign * bound < 0:  # towards zero llguidance would no longer take what is a beginning of the bound
        return
    if inclusive in schema and not _is_number(other):
        return
    del schema[exclusive]
    following = bound + sign * NEXT * max(abs(bound), 1)
    schema[inclusive] = following if other is None else sign * max(sign * following, sign * other)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _children(node: Any) -> list[Any]:
    if isinstance(node, dict):
        return list(node.values())
    return node if isinstance(node, list) else []
