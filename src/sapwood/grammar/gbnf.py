"""GBNF as people write it, in the narrower form that llguidance's converter reads.

Owns the spellings: escapes by number, single quotes, comments, alternatives that begin a line; does not know rules. Invariant:
the meaning stays the same.
"""

from __future__ import annotations

import re

from llguidance.gbnf_to_lark import any_to_lark

from sapwood.errors import InvalidRequest

MAX_BYTES = 64 * 1024
"""The converter is written in Python and looks at every character."""

_TOKEN = re.compile(
    r"""(?P<double>"(?:\\.|[^"\\])*")|(?P<single>'(?:\\.|[^'\\])*')|(?P<set>\[(?:\\.|[^\]\\])*\])"""
    r"""|(?P<comment>\#[^\n]*)|(?P<alternative>\s*\n\s*\|)""",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_QUOTE = re.compile(r'''((?<!\\)(?:\\\\)*)"''')
_SPECIAL = frozenset("\"\\[]^-/'")


def gbnf_to_lark(text: str) -> str:
    """A GBNF grammar (`root ::= …`) as Lark; raises InvalidRequest."""
    if len(text) > MAX_BYTES:
        raise InvalidRequest(f"ebnf has {len(text)} characters, {MAX_BYTES} are the limit; make it smaller", param="ebnf")
    try:
        return any_to_lark(_TOKEN.sub(_narrow, _TOKEN.sub(_drop_comment, text)))
    except Exception as error:
        raise InvalidRequest("ebnf is not a grammar that could be read; write `name ::= …` rules", param="ebnf") from error


def _drop_comment(found: re.Match[str]) -> str:
    return "" if found["comment"] else found[0]


def _narrow(found: re.Match[str]) -> str:
    if found["alternative"]:
        return " |"
    if found["single"]:
        return '"' + _QUOTE.sub(r'\1\\"', _ESCAPE.sub(_by_hand, found[0][1:-1])) + '"'
    return _ESCAPE.sub(_by_hand, found[0])


def _by_hand(found: re.Match[str]) -> str:
    """An escape as the character itself, or by two digits where the character means something."""
    code = found[1] or found[2]
    character = chr(int(code, 16)) if code else found[3]
    if not code and (character.isalnum() or character in '"\\[]'):
        return found[0]
    is_plain = character not in _SPECIAL and (character.isprintable() or ord(character) > 127)
    return character if is_plain or character == "'" else f"\\x{ord(character):02x}"
