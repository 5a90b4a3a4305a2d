"""What a JSON Schema may look like before anybody compiles it.

Owns the limits of size and depth; does not know what keywords mean. Invariant: a schema that passes is small enough to be
compiled, and to be walked by recursion.
"""

from __future__ import annotations

from typing import Any

from sapwood.errors import InvalidRequest

MAX_DEPTH = 64
MAX_NODES = 50_000


def check_schema(schema: Any) -> Any:
    """The schema itself; raises InvalidRequest when it is none, or beyond the limits."""
    if not isinstance(schema, dict) and schema is not True:
        raise InvalidRequest("json_schema must be a JSON object (a JSON Schema)", param="json_schema")
    num_nodes, level = 0, [schema]
    for _ in range(MAX_DEPTH):
        num_nodes += len(level)
        level = [child for node in level for child in _children(node)]
        if not level:
            return schema
        if num_nodes > MAX_NODES:
            raise InvalidRequest(f"json_schema has more than {MAX_NODES} parts; make it smaller", param="json_schema")
    raise InvalidRequest(f"json_schema is nested more than {MAX_DEPTH} levels deep; flatten it", param="json_schema")


def _children(node: Any) -> list[Any]:
    if isinstance(node, dict):
        return list(node.values())
    return node if isinstance(node, list) else []
