"""Every field of every body with values of the wrong kind, made from the types that decode the bodies: 400s that name it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from sapwood.server.examples import examples
from sapwood.server.openapi import BODIES

MODEL = "fake"
RAW_NAN, RAW_HUGE, RAW_HALF, RAW_DEEP = b"NaN", b"9" * 5000, b'"\\ud800x"', b"[" * 5000 + b"]" * 5000
BY_KIND: dict[str, tuple[Any, ...]] = {
    "str": ("x",),
    "int": (7,),
    "float": (0.5,),
    "bool": (True,),
    "list": ([[None]],),
    "dict": ({"": {"": None}},),
    "nan": (RAW_NAN,),
    "deep": (RAW_DEEP,),
    "half": (RAW_HALF,),
}
"""One value of each kind of JSON, and some that are no JSON."""
KINDS = {
    msgspec.inspect.IntType: {"int"},
    msgspec.inspect.FloatType: {"int", "float"},
    msgspec.inspect.StrType: {"str"},
    msgspec.inspect.BoolType: {"bool"},
    msgspec.inspect.ListType: {"list"},
    msgspec.inspect.VarTupleType: {"list"},
    msgspec.inspect.DictType: {"dict"},
    msgspec.inspect.StructType: {"dict"},
    msgspec.inspect.LiteralType: {"str"},
    msgspec.inspect.EnumType: {"str"},
    msgspec.inspect.NoneType: set(),
}


@dataclass(frozen=True)
class Hostile:
    """One request, the statuses that its documentation allows, and what the answer must speak of."""

    path: str
    data: bytes
    names: str = ""
    statuses: tuple[int, ...] = (400,)
    method: str = "POST"
    content_type: str = "application/json"


def base_of(path: str) -> dict[str, Any]:
    """A body that the route takes."""
    body: dict[str, Any] = next(iter(examples(MODEL)[path].values()))
    return dict(body)


def spoilt(body: dict[str, Any], name: str, value: Any) -> bytes:
    """The body with another value for one field; bytes are put in as they are."""
    mark = "\0hole"
    text = json.dumps({**body, name: mark if isinstance(value, bytes) else value}).encode()
    return text.replace(json.dumps(mark).encode(), value) if isinstance(value, bytes) else text


def wrong_kinds(hint: Any) -> Iterator[str]:
    """Kinds of values that a field of this type does not take; none where the type says nothing."""
    branches = hint.types if isinstance(hint, msgspec.inspect.UnionType) else (hint,)
    takes: set[str] = set()
    for branch in branches:
        branch = branch.type if isinstance(branch, msgspec.inspect.Metadata) else branch
        if type(branch) not in KINDS:
            return
        takes |= KINDS[type(branch)]
    yield from (kind for kind in BY_KIND if kind not in takes)


def typed_cases() -> Iterator[Hostile]:
    """Every field of every body, each with every kind of value that it does not take."""
    for path, structs in BODIES.items():
        body, seen = base_of(path), set()
        for struct in structs:
            for field in msgspec.inspect.type_info(struct).fields:
                if field.encode_name in seen:
                    continue
                seen.add(field.encode_name)
                for kind in wrong_kinds(field.type):
                    for value in BY_KIND[kind]:
                        names = "" if kind in ("deep", "half") else field.encode_name
                        yield Hostile(path, spoilt(body, field.encode_name, value), names)
