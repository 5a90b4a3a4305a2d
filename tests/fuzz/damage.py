"""What a fuzzer does to things that were whole: bytes with damage, JSON documents with other values in some places."""

from __future__ import annotations

import copy
import resource
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import hypothesis.strategies as st

MAX_EXAMPLE_S = 20.0
MAX_GROWTH_KIB = 512 << 10
INTERESTING = (
    0,
    1,
    2,
    7,
    8,
    127,
    128,
    255,
    256,
    1 << 15,
    (1 << 16) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 62,
    (1 << 63) - 1,
    (1 << 64) - 1,
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(INTERESTING),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["", "\x00", "\ud800", "a" * 300, "<|im_end|>", "../x", "-1", "1e999", "(" * 50, "{{", "{% if"]),
)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3), max_leaves=6
)


@contextmanager
def bounded() -> Iterator[None]:
    """What runs inside may take neither long nor much memory, whatever it reads."""
    began_s, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    took_s, grew = time.monotonic() - began_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert took_s < MAX_EXAMPLE_S, f"it took {took_s:.1f} s"
    assert grew < MAX_GROWTH_KIB, f"it took {grew >> 10} MiB"


@st.composite
def damaged(draw: st.DrawFn, whole: Sequence[bytes], reach: int = 1 << 30) -> bytes:
    """One of `whole` with up to four changes, each within its first `reach` bytes; sometimes bytes of no origin at all."""
    if draw(st.integers(0, 9)) == 9:
        return draw(st.binary(max_size=200))
    content = bytearray(draw(st.sampled_from(whole)))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, min(len(content), reach) - 1)))
        match draw(st.integers(0, 6)):
            case 0:
                content[place : place + 1] = draw(st.binary(min_size=1, max_size=1))
            case 1:
                content[place : place + 4] = struct.pack("<I", draw(st.sampled_from(INTERESTING)) & 0xFFFFFFFF)
            case 2:
                content[place : place + 8] = struct.pack("<Q", draw(st.sampled_from(INTERESTING)))
            case 3:
                del content[place:]
            case 4:
                del content[place : place + draw(st.integers(1, 32))]
            case 5:
                content[place:place] = draw(st.binary(min_size=1, max_size=16))
            case _:
                source = draw(st.integers(0, max(0, len(content) - 1)))
                content[place : place + 16] = content[source : source + 16]
    return bytes(content)


@st.composite
def altered(draw: st.DrawFn, whole: Sequence[Any]) -> Any:
    """One of `whole` (documents of JSON) with up to three values replaced, removed or added."""
    document = [copy.deepcopy(draw(st.sampled_from(whole)))]
    for _ in range(draw(st.integers(1, 3))):
        holder, key = _descend(draw, document)
        match draw(st.integers(0, 3)):
            case 0 if isinstance(holder, dict):
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[draw(st.text(max_size=6))] = draw(JSON)
            case 2 if isinstance(holder[key], dict) and holder[key]:
                value = holder[key]
                value[draw(st.sampled_from(sorted(value)))] = draw(st.sampled_from([copy.deepcopy(document[0]), *value.values()]))
            case _:
                holder[key] = draw(JSON)
    return document[0]


def _descend(draw: st.DrawFn, document: list[Any]) -> tuple[Any, Any]:
    """A place somewhere in the document: what holds it, and its key or index."""
    holder: Any = document
    key: Any = 0
    while isinstance(holder[key], dict | list) and holder[key] and draw(st.integers(0, 4)):
        holder = holder[key]
        key = draw(st.sampled_from(sorted(holder)) if isinstance(holder, dict) else st.integers(0, len(holder) - 1))
    return holder, key
