"""Request bodies: read within a size limit, decoded strictly, and blamed precisely.

Knows msgspec and JSON; does not know any dialect's fields. Invariant: whatever bytes come, the outcome is the typed value or an
InvalidRequest whose message names the field where that can be known.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping
from typing import Any, Generic, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from sapwood.errors import Aborted, InvalidRequest
from sapwood.server.allowed import allowed_values
from sapwood.server.failures import BodyTooLarge, TooSlow, UnsupportedEncoding

T = TypeVar("T")

_VALIDATION = re.compile(r"(?P<what>.*) - at (?P<key>`key` in )?`\$\.?(?P<path>.*)`", re.DOTALL)
_MISSING = re.compile(r"missing required field `(\w+)`")
_MALFORMED_AT = re.compile(r"\(byte (\d+)\)")
_LAST_KEY = re.compile(rb'"([A-Za-z_]\w{0,63})"\s*:\s*-?$')
_CHOICE = re.compile(r"Invalid (?:enum )?value (.*)", re.DOTALL)
SHOWN_CHARS = 100
"""Of a value that is not allowed."""
BODY_BYTES_PER_S = 16 * 1024
"""A body may take a second longer than its timeout for each of so many bytes that have come."""

_NOTHING = frozenset((b"", b"null", b"false", b'""', b"[]", b"{}", b"0"))


class Decoder(Generic[T]):
    """Decodes bodies of one type; made once, used for every request."""

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._decoder = msgspec.json.Decoder(kind)

    def decode(self, data: bytes) -> T:
        """The typed body; raises InvalidRequest."""
        try:
            return self._decoder.decode(data)
        except msgspec.ValidationError as error:
            raise _blame_field(self._kind, str(error)) from None
        except msgspec.DecodeError as error:
            raise _blame_place(data, str(error)) from None
        except RecursionError:
            raise InvalidRequest("the body is nested too deeply; flatten it") from None


async def read_body(request: Request, max_bytes: int, timeout_s: float) -> bytes:
    """The body's bytes; raises BodyTooLarge before more than `max_bytes` are held in memory, TooSlow, UnsupportedEncoding."""
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared[:20]) > max_bytes:
        raise _too_large(max_bytes)
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedEncoding("compressed bodies are not supported by this server; send it without content-encoding")
    chunks, size = [], 0
    started_s = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout_at(started_s + timeout_s) as deadline:
            async for chunk in request.stream():
                size += len(chunk)
                if size > max_bytes:
                    raise _too_large(max_bytes)
                chunks.append(chunk)
                deadline.reschedule(started_s + timeout_s + size / BODY_BYTES_PER_S)
    except ClientDisconnect:
        raise Aborted("the client went away before its request was complete") from None
    except TimeoutError:
        raise TooSlow(f"the body did not arrive within {timeout_s:g} s; send it faster") from None
    return b"".join(chunks)


def make_refusals(title: str, names: tuple[str, ...]) -> type[msgspec.Struct]:
    """A struct type of fields that exist in other servers and cannot be honoured here; see `refuse`."""
    return msgspec.defstruct(title, [(name, msgspec.Raw, msgspec.Raw(b"null")) for name in names], kw_only=True)


def refuse(fields: msgspec.Struct, prefix: str = "") -> None:
    """Raise InvalidRequest for the first field of a `make_refusals` struct that asks for something."""
    for name in fields.__struct_fields__:
        if bytes(getattr(fields, name)) not in _NOTHING:
            raise InvalidRequest(f"{prefix}{name} is not supported by this server; leave it out", param=prefix + name)


def check_off(fields: msgspec.Struct, harmless: Mapping[str, Collection[float]], prefix: str = "") -> None:
    """Raise InvalidRequest for the first field that is not supported and has no value at which it does nothing anyway."""
    for name, values in harmless.items():
        if getattr(fields, name) not in (None, *values):
            off = next(iter(values))
            raise InvalidRequest(
                f"{prefix}{name} is supported only as {off}, which turns it off; leave it out", param=prefix + name
            )


def as_list(value: Any) -> list[Any]:
    """A single value or a list of them, as a list."""
    return value if isinstance(value, list) else [value]


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body may have at most {max_bytes} bytes; send less at a time")


def _blame_field(kind: Any, text: str) -> InvalidRequest:
    """From msgspec's account of a mismatch with `kind`: it holds type names and the path, a value only where few are allowed."""
    match = _VALIDATION.fullmatch(text)
    missing = _MISSING.search(text)
    if missing is not None:
        parent = f"{match['path']}." if match is not None and match["path"] else ""
        return InvalidRequest(f"{parent}{missing[1]} is missing; send it", param=parent + missing[1])
    if match is None:
        return InvalidRequest(f"the body must be a JSON object of the documented shape: {_lower(text)}")
    path = match["path"]
    where = f"a key of {path}" if match["key"] else path
    choice = _CHOICE.fullmatch(match["what"])
    if choice is None:
        return InvalidRequest(f"{where}: {_lower(match['what'])}", param=path or None)
    value, allowed = choice[1], allowed_values(kind, path)
    shown = value if len(value) <= SHOWN_CHARS else f"{value[:SHOWN_CHARS]}..."
    advice = f"choose one of {', '.join(allowed)}" if allowed else "choose another"
    return InvalidRequest(f"{where}: {shown} is not allowed; {advice}", param=path or None)


def _blame_place(data: bytes, text: str) -> InvalidRequest:
    """From the place at which the body stops being JSON: the field before it, if one is near."""
    found = _MALFORMED_AT.search(text)
    if found is None:
        problem = "it is not UTF-8" if "UTF-8" in text else "it ends too early, or holds half of a surrogate pair"
        return InvalidRequest(f"the body is not valid JSON: {problem}")
    place = int(found[1])
    key = _LAST_KEY.search(data[max(0, place - 128) : place])
    if key is None:
        return InvalidRequest(f"the body is not valid JSON at byte {place}")
    name = key[1].decode()
    return InvalidRequest(f"{name}: the value is not valid JSON (byte {place}); NaN and Infinity are not JSON either", param=name)


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:].replace("`", "")
