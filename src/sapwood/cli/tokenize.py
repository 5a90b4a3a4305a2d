"""Turns texts into token ids: `echo '["Hello"]' | sapwood tokenize MODEL_OR_FILE --json`.

Reads one JSON list of texts from standard input and prints the list of their lists of ids, in the same order. Loads a tokenizer
and no weights. Invariant: no special tokens are added; control tokens that a text spells count as such unless --plain.
"""

from __future__ import annotations

import argparse
import sys

import msgspec

from sapwood.config.raw import Parser
from sapwood.errors import InvalidRequest
from sapwood.observability.progress import Bars
from sapwood.tokenizer.load import load_tokenizer
from sapwood.weights import catalog


def add_arguments(parser: Parser) -> None:
    """The model, and how the texts are given and read."""
    parser.add_argument("model", metavar="MODEL_OR_FILE", help="catalog name, folder, GGUF file or tokenizer.json")
    parser.add_argument("--json", action="store_true", help="standard input is a JSON list of texts, not one plain text")
    parser.add_argument("--plain", action="store_true", help="text that looks like a control token stays text")


def run(args: argparse.Namespace) -> int:
    """Encode standard input; prints JSON."""
    texts = _read_texts(args.json)
    with Bars() as bars:
        path = catalog.resolve(args.model, bars)
    ids = load_tokenizer(path).encode_batch(texts, add_special=False, parse_special=not args.plain)
    print(msgspec.json.encode(ids if args.json else ids[0]).decode())
    return 0


def _read_texts(is_json: bool) -> list[str]:
    data = sys.stdin.buffer.read()
    try:
        return msgspec.json.decode(data, type=list[str]) if is_json else [data.decode()]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        wanted = 'a JSON list of texts, such as ["Hello"]' if is_json else "text in UTF-8"
        raise InvalidRequest(f"standard input must be {wanted}: {error}") from None
