"""The tokenizer that a GGUF file's metadata describes.

Reads the `tokenizer.*` keys: byte-level BPE ("gpt2"), SentencePiece with scores ("llama") and WordPiece ("bert"). Does not know
the container format. Invariant: no rule of the built model can produce a control token from text.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from tokenizers import models

from sapwood.errors import WeightsError
from sapwood.registry import Registry
from sapwood.tokenizer.assembly import AddedToken, TokenizerParts
from sapwood.tokenizer.pieces import PieceKind, PieceRule
from sapwood.tokenizer.pretokenizers import pre_tokenizer

_SPACE_MARK = "\u2581"
_MAX_WORD_CHARS = 100
_TEMPLATE_KEY = "tokenizer.chat_template"

END_OF_TURN_TEXTS = frozenset(
    {
        "<|endoftext|>",
        "<|im_end|>",
        "<|end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end_of_text|>",
        "<|endofturn|>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<｜end▁of▁sentence｜>",
        "<EOT>",
    }
)
"""Control tokens that end a reply wherever they occur; files name only one of theirs."""


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_SPECIAL_TYPES = frozenset({TokenType.UNKNOWN, TokenType.CONTROL})


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """The vocabulary's columns, checked: `types[i]` and `scores[i]` belong to `texts[i]`, texts are unique."""

    metadata: Mapping[str, Any]
    texts: Sequence[str]
    types: Sequence[int]
    scores: Sequence[float]

    def get(self, key: str, default: Any = None) -> Any:
        """The value of `tokenizer.ggml.<key>`."""
        return self.metadata.get(f"tokenizer.ggml.{key}", default)

    def token_id(self, key: str) -> int | None:
        """The id under `tokenizer.ggml.<key>`, None when absent or outside the vocabulary."""
        value = self.get(key)
        return value if isinstance(value, int) and 0 <= value < len(self.texts) else None

    def of_types(self, kinds: frozenset[TokenType]) -> list[int]:
        """The ids of these types, ascending."""
        return [token_id for token_id, kind in enumerate(self.types) if kind in kinds]

    def unknown_text(self) -> str | None:
        unknown = self.token_id("unknown_token_id")
        return None if unknown is None else self.texts[unknown]


_KINDS: Registry[Callable[[GgufVocabulary], TokenizerParts]] = Registry("GGUF tokenizer model")


def parts_from_gguf(metadata: Mapping[str, Any]) -> TokenizerParts:
    """The parts of the tokenizer in `metadata`; raises WeightsError for one that is missing, damaged or not supported."""
    try:
        return _read_parts(metadata)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise WeightsError(
            f"the file's tokenizer metadata is damaged ({type(error).__name__}: {error}); download the file again"
        ) from None


def _read_parts(metadata: Mapping[str, Any]) -> TokenizerParts:
    vocabulary = _read_vocabulary(metadata)
    model = str(metadata.get("tokenizer.ggml.model"))
    if model not in _KINDS:
        raise WeightsError(
            f"the file's tokenizer model {model!r} is not supported (supported: {', '.join(_KINDS)}); "
            "use a checkpoint folder with tokenizer.json instead"
        )
    with _quiet_collector():
        return _KINDS.get(model)(vocabulary)


def _read_vocabulary(metadata: Mapping[str, Any]) -> GgufVocabulary:
    texts = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(texts, Sequence) or not texts:
        raise WeightsError("the file has no tokenizer (tokenizer.ggml.tokens); use another conversion of the model")
    texts = _valid_texts(texts)
    if len(set(texts)) != len(texts):
        raise WeightsError("the file's vocabulary lists a token twice; convert the model again")
    types = metadata.get("tokenizer.ggml.token_type") or [TokenType.NORMAL] * len(texts)
    scores = metadata.get("tokenizer.ggml.scores") or [0.0] * len(texts)
    if len(types) != len(texts) or len(scores) < len(texts):
        raise WeightsError("the file's token types or scores do not match its tokens; download it again")
    return GgufVocabulary(metadata, texts, types, scores)


def _valid_texts(texts: Sequence[str]) -> Sequence[str]:
    """The texts as valid Unicode: bytes that a file could not spell in UTF-8 are escaped."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return [text.encode("utf-8", "backslashreplace").decode() for text in texts]
    return texts


@contextmanager
def _quiet_collector() -> Iterator[None]:
    """Without cycle collection: building a large vocabulary makes millions of small objects and no cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _added_tokens(vocabulary: GgufVocabulary) -> tuple[AddedToken, ...]:
    matched = vocabulary.of_types(_SPECIAL_TYPES | {TokenType.USER_DEFINED})
    return tuple(
        AddedToken(token_id, vocabulary.texts[token_id], special=vocabulary.types[token_id] in _SPECIAL_TYPES)
        for token_id in matched
    )


def _eos_ids(vocabulary: GgufVocabulary) -> tuple[int, ...]:
    named = [vocabulary.token_id(key) for key in ("eos_token_id", "eot_token_id", "eom_token_id")]
    by_text = [token_id for token_id in vocabulary.of_types(_SPECIAL_TYPES) if vocabulary.texts[token_id] in END_OF_TURN_TEXTS]
    return tuple(dict.fromkeys(token_id for token_id in [*named, *by_text] if token_id is not None))


def _chat_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    if isinstance(metadata.get(_TEMPLATE_KEY), str):
        found["default"] = metadata[_TEMPLATE_KEY]
    for key, value in metadata.items():
        if key.startswith(_TEMPLATE_KEY + ".") and isinstance(value, str):
            found[key.removeprefix(_TEMPLATE_KEY + ".")] = value
    return found


def _surrounding_ids(
    vocabulary: GgufVocabulary, bos_id: int | None, eos_id: int | None, adds: tuple[bool, bool]
) -> dict[str, Any]:
    """What every kind shares: the ids around a prompt, the ends of a reply and the chat templates."""
    adds_bos = bool(vocabulary.get("add_bos_token", adds[0])) and bos_id is not None
    adds_eos = bool(vocabulary.get("add_eos_token", adds[1])) and eos_id is not None
    return {
        "added": _added_tokens(vocabulary),
        "vocab_size": len(vocabulary.texts),
        "prefix_ids": (bos_id,) if adds_bos else (),
        "suffix_ids": (eos_id,) if adds_eos else (),
        "bos_token_id": bos_id,
        "eos_token_ids": _eos_ids(vocabulary),
        "chat_templates": _chat_templates(vocabulary.metadata),
    }


@_KINDS.register("gpt2")
def _byte_level(vocabulary: GgufVocabulary) -> TokenizerParts:
    rules = pre_tokenizer(vocabulary.get("pre", "default"))
    control_texts = {vocabulary.texts[token_id] for token_id in vocabulary.of_types(_SPECIAL_TYPES)}
    merges = [(left, right) for left, right in _read_merges(vocabulary) if left + right not in control_texts]
    vocab = {text: token_id for token_id, text in enumerate(vocabulary.texts)}
    unknown = sorted({part for pair in merges for part in (*pair, "".join(pair)) if part not in vocab})
    if unknown:
        raise WeightsError(f"the file's merges use {unknown[0]!r}, which is not in its vocabulary; download it again")
    return TokenizerParts(
        model=models.BPE(vocab=vocab, merges=merges, ignore_merges=rules.ignore_merges),
        rule=PieceRule(PieceKind.BYTE_LEVEL),
        normalizer={"type": rules.normalizer} if rules.normalizer else None,
        pre_tokenizer=rules.as_json(),
        **_surrounding_ids(
            vocabulary, vocabulary.token_id("bos_token_id"), vocabulary.token_id("eos_token_id"), (rules.add_bos, False)
        ),
    )


def _read_merges(vocabulary: GgufVocabulary) -> Iterator[tuple[str, str]]:
    for line in vocabulary.get("merges") or ():
        # The first part may itself begin with a space, hence the search from 1.
        border = line.find(" ", 1)
        if border < 0:
            raise WeightsError(f"the file's merge {line!r} is not a pair; download it again")
        yield line[:border], line[border + 1 :]


@_KINDS.register("llama")
def _sentencepiece(vocabulary: GgufVocabulary) -> TokenizerParts:
    adds_space = bool(vocabulary.get("add_space_prefix", True))
    unknown = vocabulary.unknown_text()
    model = models.BPE(
        vocab={text: token_id for token_id, text in enumerate(vocabulary.texts)},
        merges=_merges_by_score(vocabulary),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=TokenType.BYTE in vocabulary.types,
        cache_capacity=0,  # nothing cuts a text into words, so whole texts would be kept, by the thousand
    )
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE_MARK}
    prepend = {"type": "Prepend", "prepend": _SPACE_MARK}
    return TokenizerParts(
        model=model,
        rule=PieceRule(PieceKind.SENTENCEPIECE, strips_first_space=adds_space),
        normalizer={"type": "Sequence", "normalizers": [prepend, replace]} if adds_space else replace,
        **_surrounding_ids(vocabulary, vocabulary.token_id("bos_token_id"), vocabulary.token_id("eos_token_id"), (True, False)),
    )


def _merges_by_score(vocabulary: GgufVocabulary) -> list[tuple[str, str]]:
    """Every way to put an ordinary token together from two others, best score first.

    SentencePiece always merges the pair whose result scores best, the leftmost of equals; that is BPE with these ranks. Only
    ordinary tokens take part: control, byte and user-defined tokens are never made from text.
    """
    texts = vocabulary.texts
    ordinary = vocabulary.of_types(frozenset({TokenType.NORMAL}))
    parts = {texts[token_id] for token_id in ordinary}
    by_score = sorted(ordinary, key=vocabulary.scores.__getitem__, reverse=True)
    return [
        (text[:border], text[border:])
        for text in map(texts.__getitem__, by_score)
        for border in range(1, len(text))
        if text[:border] in parts and text[border:] in parts
    ]


@_KINDS.register("bert")
def _wordpiece(vocabulary: GgufVocabulary) -> TokenizerParts:
    vocab = {_wordpiece_text(text): token_id for token_id, text in enumerate(vocabulary.texts)}
    lowercase = bool(vocabulary.get("normalizer.lowercase", True))
    separator = vocabulary.token_id("seperator_token_id")
    shared = _surrounding_ids(vocabulary, None, None, (False, False))
    first = vocabulary.token_id("cls_token_id")
    if first is None:
        first = vocabulary.token_id("bos_token_id")
    return TokenizerParts(
        model=models.WordPiece(
            vocab=vocab, unk_token=vocabulary.unknown_text() or "[UNK]", max_input_chars_per_word=_MAX_WORD_CHARS
        ),
        rule=PieceRule(PieceKind.WORDPIECE),
        normalizer={
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": bool(vocabulary.get("normalizer.strip_accents", lowercase)),
            "lowercase": lowercase,
        },
        pre_tokenizer={"type": "BertPreTokenizer"},
        **shared
        | {
            "prefix_ids": () if first is None else (first,),
            "suffix_ids": () if separator is None else (separator,),
            "bos_token_id": first,
            "eos_token_ids": () if separator is None else (separator,),
        },
    )


def _wordpiece_text(text: str) -> str:
    """GGUF marks the beginnings of words; WordPiece marks their continuations."""
    if text.startswith(_SPACE_MARK):
        return text.removeprefix(_SPACE_MARK)
    return text if text.startswith("[") and text.endswith("]") else f"##{text}"
