"""Text that can be encoded: Python strings may hold halves of surrogate pairs, UTF-8 may not.

Invariant: what `valid_text` returns encodes as UTF-8; valid text comes back as it is.
"""

from __future__ import annotations


def valid_text(text: str) -> str:
    """`text` with surrogate pairs joined to the character they mean and lone surrogates replaced by U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
