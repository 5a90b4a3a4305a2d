"""How deeply a body may nest objects and lists.

Looks at brackets alone, before anything is decoded; whether the bytes are JSON is found out later. Invariant: time and memory are
linear in the body, whatever it holds.
"""

from __future__ import annotations

import re

import numpy as np

from sapwood.errors import InvalidRequest

SLICE_BYTES = 1 << 20
_OPENS, _CLOSES, _QUOTE = 1, 255, 2
_MEANING = {**dict.fromkeys(b"[{", _OPENS), **dict.fromkeys(b"]}", _CLOSES), ord('"'): _QUOTE}
_CODES = bytes(_MEANING.get(byte, 0) for byte in range(256))
_LAST_KEY = re.compile(rb'"([A-Za-z_]\w{0,63})"\s*:\s*$')


def check_depth(data: bytes, most: int) -> None:
    """Raise InvalidRequest, naming the body's field, when more than `most` objects and lists are inside of each other."""
    if data.count(b"{") + data.count(b"[") <= most:
        return
    depth, in_text, field_at = 0, 0, 0
    codes = np.frombuffer(data.replace(b"\\\\", b"__").replace(b'\\"', b"__").translate(_CODES), np.int8)
    for start in range(0, len(codes), SLICE_BYTES):
        part = codes[start : start + SLICE_BYTES]
        places = np.flatnonzero(part != 0)
        steps = part[places]
        quotes = steps == _QUOTE
        inside = (np.cumsum(quotes) + in_text) % 2
        steps[quotes | (inside == 1)] = 0
        depths = np.cumsum(steps, dtype=np.int64) + depth
        too_deep = np.flatnonzero(depths > most)
        end = too_deep[0] if len(too_deep) else len(places)
        fields = np.flatnonzero((depths[:end] == 2) & (steps[:end] == 1))
        field_at = start + int(places[fields[-1]]) if len(fields) else field_at
        if len(too_deep):
            raise _too_deep(data[max(0, field_at - 128) : field_at], most)
        if len(places):
            depth, in_text = int(depths[-1]), int(inside[-1])


def _too_deep(before: bytes, most: int) -> InvalidRequest:
    """`before`: the end of what stands before the field's value."""
    key = _LAST_KEY.search(before)
    name = key[1].decode() if key else None
    rule = f"{most} objects and lists inside of each other are the limit"
    return InvalidRequest(f"{name or 'the body'} is nested too deeply: {rule}; flatten it", param=name)
