"""Constraints for one rank's engine: what compiles them, and the engine that obeys them.

Composes tokenizer, grammar backend and engine; decides nothing else. Invariant: nothing is loaded before the first constrained
request, and then in the library's thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from sapwood.config.sections import GrammarSection
from sapwood.core.plan import Engine, EngineLimits
from sapwood.errors import InvalidRequest
from sapwood.grammar import guidance
from sapwood.grammar.api import GrammarBackend, GrammarOptions, Vocabulary, grammar_backends
from sapwood.tokenizer.load import open_tokenizer
from sapwood.worker.constraints import ConstrainedEngine
from sapwood.worker.grammars import GrammarLibrary, Grammars, NoGrammars

__all__ = ["Constrained", "constrain", "guidance"]


@dataclass(frozen=True, slots=True)
class Constrained:
    """The engine for the loop, and who compiles for it."""

    engine: Engine
    grammars: Grammars


def constrain(engine: Engine, section: GrammarSection, tokenizer_path: str, rank: int) -> Constrained:
    """Rank 0 chooses for all, so it alone knows constraints."""
    if rank > 0:
        return Constrained(engine, NoGrammars())
    library = GrammarLibrary(lambda: open_backend(section, tokenizer_path, engine.limits), section.cache_size)
    return Constrained(ConstrainedEngine(engine, library, jumps=section.jump_forward), library)


def open_backend(section: GrammarSection, tokenizer_path: str, limits: EngineLimits) -> GrammarBackend:
    """The backend for the tokenizer at `tokenizer_path`; raises InvalidRequest where there cannot be one."""
    if section.backend == "none":
        raise InvalidRequest("constraints are switched off here (--grammar-backend none); leave the constraint out")
    if not limits.eos_token_ids:
        raise InvalidRequest("this model has no end-of-sequence token, so nothing can be constrained; leave the constraint out")
    tokenizer = open_tokenizer(tokenizer_path)
    size, options = limits.vocab_size, GrammarOptions(section.any_whitespace, tokenizer.control_ids, section.limits)
    vocabulary = Vocabulary(
        tokens=[tokenizer.token_bytes(token_id) for token_id in range(min(tokenizer.vocab_size, size))],
        special_ids=sorted(token_id for token_id in tokenizer.special_ids if token_id < size),
        eos_ids=limits.eos_token_ids,
        size=size,
        encode=lambda text: tokenizer.encode(text, add_special=False, parse_special=False),
    )
    return grammar_backends.get(section.backend)(vocabulary, options)
