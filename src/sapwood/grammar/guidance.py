"""llguidance as a grammar backend: compiles in native code without the interpreter lock, fills many masks in parallel.

Owns the limits that keep any grammar cheap, and llguidance's tokenizer; does not know requests. Invariant: every error text that
leaves this file is about the client's grammar, and short.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from sapwood.config.sections import GrammarLimits
from sapwood.core.constraint import Constraint
from sapwood.core.plan import UInt32Array
from sapwood.errors import InvalidRequest
from sapwood.grammar.api import Grammar, GrammarOptions, Matcher, Vocabulary, grammar_backends
from sapwood.grammar.source import to_source

FILL_THREADS = 2
MAX_ERROR_CHARS = 300


def parser_limits(limits: GrammarLimits) -> LLParserLimits:
    """Fuel for compiling and for each step, in llguidance's units; enough for any schema that people write."""
    return LLParserLimits(
        max_items_in_row=2_000,
        initial_lexer_fuel=limits.regex_size,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=limits.regex_states,
        max_grammar_size=200_000,
        precompute_large_lexemes=False,
        verbose_errors=False,
    )


class GuidanceMatcher:
    """One completion; see `api.Matcher`."""

    __slots__ = ("inner",)

    def __init__(self, inner: LLMatcher) -> None:
        self.inner = inner

    @property
    def error(self) -> str:
        """llguidance's words, in short."""
        return shorten(self.inner.get_error()) if self.inner.is_error() else ""

    @property
    def is_complete(self) -> bool:
        """Whether only an end can follow."""
        return bool(self.inner.is_stopped()) and not self.inner.is_error()

    def accept(self, token_id: int) -> bool:
        """Take in one id."""
        return bool(self.inner.consume_token(token_id))

    def forced(self) -> list[int]:
        """The ids of the bytes that must come, as the tokenizer writes them."""
        return self.inner.compute_ff_tokens()


@dataclass(frozen=True, slots=True)
class GuidanceGrammar:
    """A matcher at the beginning, to be copied."""

    template: LLMatcher

    def start(self) -> GuidanceMatcher:
        """A matcher of its own; what is learnt about the lexer is shared."""
        return GuidanceMatcher(self.template.deep_copy())


class GuidanceBackend:
    """Compiles for one vocabulary; see `api.GrammarBackend`."""

    def __init__(self, vocabulary: Vocabulary, options: GrammarOptions) -> None:
        self._options = options
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(_Tokens(vocabulary)), n_vocab=vocabulary.size, eos_token=list(vocabulary.eos_ids)
        )
        self._executor = LLExecutor(FILL_THREADS)

    def compile(self, constraint: Constraint) -> Grammar:
        """Compile, without the interpreter lock for the most part."""
        source = to_source(constraint, self._options)
        matcher = LLMatcher(self._tokenizer, source, limits=parser_limits(self._options.limits), log_level=0)
        if matcher.is_error():
            raise refusal(constraint, matcher.get_error())
        return GuidanceGrammar(matcher)

    def fill(self, rows: Sequence[tuple[Matcher, int]], masks: UInt32Array) -> None:
        """All rows in one native call, without the interpreter lock."""
        targets = [(matcher.inner, index) for matcher, index in rows if isinstance(matcher, GuidanceMatcher)]
        row_bytes = masks.shape[1] * masks.itemsize
        if len(targets) == 1:
            [(matcher, index)] = targets
            matcher.unsafe_compute_mask_ptr(masks[index].ctypes.data, row_bytes)
        elif targets:
            self._executor.unsafe_compute_mask_ptr(targets, masks.ctypes.data, row_bytes, len(masks))


@grammar_backends.register("llguidance")
def create_guidance(vocabulary: Vocabulary, options: GrammarOptions) -> GuidanceBackend:
    """The backend for a model's vocabulary; takes up to a second."""
    return GuidanceBackend(vocabulary, options)


def refusal(constraint: Constraint, error: str) -> InvalidRequest:
    """The error for a constraint that llguidance does not take."""
    return InvalidRequest(f"{constraint.kind} cannot be honoured: {shorten(error)}", param=constraint.kind)


def shorten(error: str) -> str:
    """The first lines of an account by llguidance, without the grammar that it may repeat."""
    text = " ".join(error.split("<state>")[0].split())
    return text if len(text) <= MAX_ERROR_CHARS else text[:MAX_ERROR_CHARS] + "…"


class _Tokens:
    """A vocabulary as llguidance's wrapper wants it."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = vocabulary.tokens
        self.special_token_ids = list(vocabulary.special_ids)
        self.eos_token_id = vocabulary.eos_ids[0]
        self._encode = vocabulary.encode

    def __call__(self, text: str) -> list[int]:
        if not isinstance(text, str):
            raise TypeError("text, please")  # llguidance tries bytes first
        return self._encode(text)
