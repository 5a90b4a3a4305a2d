"""Structural tags: free text in which certain openings oblige the model to a form.

Owns the translation of SGLang's `structures`/`triggers` and of the newer nested `format`; compiles nothing. Invariant: text
outside of the tags stays free, and inside nothing but their content can be written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def tag_grammar(value: Any, schema: Callable[[Any], Any]) -> str:
    """The grammar of a structural tag; `schema` makes a checked schema with its layout."""
    raise NotImplementedError
