"""The tokenizer of a checkpoint folder in Hugging Face's layout.

Reads tokenizer.json and what its neighbours say about special tokens, ends of a reply and chat templates. Does not know GGUF.
Invariant: a BPE rule that would make a control token out of ordinary text is left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from sapwood.errors import WeightsError
from sapwood.tokenizer.assembly import AddedToken, TokenizerParts
from sapwood.tokenizer.pieces import PieceKind, PieceRule

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_PROBE = "a"


def parts_from_folder(folder: Path) -> TokenizerParts:
    """The parts of the tokenizer in `folder`; raises WeightsError for one that is missing, damaged or not supported."""
    try:
        return _read_parts(folder)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise WeightsError(
            f"the tokenizer files in {folder} are not in their usual form ({type(error).__name__}: {error}); download them again"
        ) from None


def _read_parts(folder: Path) -> TokenizerParts:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise WeightsError(f"{folder} has no tokenizer.json; save one with transformers' AutoTokenizer, or use a GGUF file")
    description = _read_json(path)
    config = _read_optional(folder / "tokenizer_config.json")
    named = _named_texts(config, _read_optional(folder / "special_tokens_map.json"))
    added = _added_tokens(description, config, named)
    library = _load_library(path, description, frozenset(token.text for token in added if token.special))
    prefix_ids, suffix_ids = _surrounding_ids(library)
    middle_ids = _middle_ids(library, len(prefix_ids), len(suffix_ids))
    eos_ids = [library.token_to_id(named["eos_token"])] if "eos_token" in named else []
    for name in ("generation_config.json", "config.json"):
        declared = _read_optional(folder / name).get("eos_token_id")
        eos_ids += declared if isinstance(declared, list) else [declared]
    return TokenizerParts(
        model=library.model,
        rule=_piece_rule(description.get("decoder")),
        added=added,
        vocab_size=max(library.get_vocab_size(with_added_tokens=True), *(token.id + 1 for token in added), 1),
        normalizer=description.get("normalizer"),
        pre_tokenizer=description.get("pre_tokenizer"),
        prefix_ids=prefix_ids,
        suffix_ids=suffix_ids,
        middle_ids=middle_ids,
        bos_token_id=library.token_to_id(named["bos_token"]) if "bos_token" in named else None,
        eos_token_ids=tuple(dict.fromkeys(token_id for token_id in eos_ids if isinstance(token_id, int))),
        chat_templates=_chat_templates(folder, config),
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsError(f"cannot read {path}: {error}. Download it again.") from None
    if not isinstance(content, dict):
        raise WeightsError(f"{path} does not hold a JSON object; download it again")
    return content


def _read_optional(path: Path) -> dict[str, Any]:
    return _read_json(path) if path.is_file() else {}


def _text_of(entry: Any) -> str | None:
    """A special token's text; files give it as a string or as an object."""
    text = entry.get("content") if isinstance(entry, Mapping) else entry
    return text if isinstance(text, str) and text else None


def _named_texts(config: Mapping[str, Any], tokens_map: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens with a role: name to text."""
    found = {name: _text_of(config.get(name)) or _text_of(tokens_map.get(name)) for name in _NAMED_TOKENS}
    return {name: text for name, text in found.items() if text is not None}


def _added_tokens(description: Mapping[str, Any], config: Mapping[str, Any], named: Mapping[str, str]) -> tuple[AddedToken, ...]:
    entries = {int(entry["id"]): entry for entry in description.get("added_tokens") or ()}
    for token_id, entry in (config.get("added_tokens_decoder") or {}).items():
        entries.setdefault(int(token_id), entry)
    roles = frozenset(named.values())
    return tuple(
        AddedToken(
            token_id,
            entry["content"],
            special=bool(entry.get("special")) or entry["content"] in roles,
            single_word=bool(entry.get("single_word")),
            lstrip=bool(entry.get("lstrip")),
            rstrip=bool(entry.get("rstrip")),
            normalized=bool(entry.get("normalized")),
        )
        for token_id, entry in sorted(entries.items())
    )


def _load_library(path: Path, description: dict[str, Any], control_texts: frozenset[str]) -> tokenizers.Tokenizer:
    model = description.get("model") or {}
    merges = model.get("merges") or ()
    kept = [merge for merge in merges if _merged(merge) not in control_texts]
    try:
        if len(kept) == len(merges):
            library = tokenizers.Tokenizer.from_file(str(path))
        else:
            library = tokenizers.Tokenizer.from_str(json.dumps({**description, "model": {**model, "merges": kept}}))
    except Exception as error:  # the library raises bare Exception for a file that it cannot use
        raise WeightsError(f"cannot use {path}: {error}. Save it again with a current transformers.") from None
    library.no_padding()
    library.no_truncation()
    return library


def _merged(merge: Any) -> str:
    return "".join(merge) if isinstance(merge, list) else str(merge).replace(" ", "", 1)


def _surrounding_ids(library: tokenizers.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the file's post-processor puts before and after a prompt."""
    bare = library.encode(_PROBE, add_special_tokens=False).ids
    full = library.encode(_PROBE, add_special_tokens=True).ids
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return tuple(full[:start]), tuple(full[start + len(bare) :])
    return (), ()


def _middle_ids(library: tokenizers.Tokenizer, num_before: int, num_after: int) -> tuple[int, ...]:
    """What the file's post-processor puts between two texts."""
    bare = library.encode(_PROBE, add_special_tokens=False).ids
    full = library.encode(_PROBE, _PROBE, add_special_tokens=True).ids
    return tuple(full[num_before + len(bare) : len(full) - num_after - len(bare)])


def _piece_rule(decoder: Mapping[str, Any] | None) -> PieceRule:
    if decoder is None:
        return PieceRule(PieceKind.CHARACTERS)
    steps = decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]
    by_type = {step["type"]: step for step in steps}
    if "ByteLevel" in by_type:
        return PieceRule(PieceKind.BYTE_LEVEL)
    if "WordPiece" in by_type:
        step = by_type["WordPiece"]
        return PieceRule(PieceKind.WORDPIECE, glues_punctuation=step["cleanup"], subword_prefix=step["prefix"])
    if "Metaspace" in by_type:
        return PieceRule(PieceKind.SENTENCEPIECE, strips_first_space=by_type["Metaspace"].get("prepend_scheme") != "never")
    if "Replace" in by_type or "ByteFallback" in by_type:
        return PieceRule(PieceKind.SENTENCEPIECE, strips_first_space=by_type.get("Strip", {}).get("start", 0) > 0)
    if "BPEDecoder" in by_type:
        return PieceRule(PieceKind.CHARACTERS, word_end=by_type["BPEDecoder"]["suffix"])
    raise WeightsError(
        f"the tokenizer's decoder ({', '.join(by_type)}) is not supported; supported: ByteLevel, WordPiece, Metaspace, "
        "Replace/ByteFallback, BPEDecoder"
    )


def _chat_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Templates by name; a template's own file wins over the configuration."""
    declared = config.get("chat_template")
    found: dict[str, str] = {}
    if isinstance(declared, str):
        found["default"] = declared
    elif isinstance(declared, list):
        found |= {entry["name"]: entry["template"] for entry in declared}
    from_json = _read_optional(folder / "chat_template.json").get("chat_template")
    if isinstance(from_json, str):
        found["default"] = from_json
    files = {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if (folder / "chat_template.jinja").is_file():
        files["default"] = folder / "chat_template.jinja"
    return found | {name: path.read_text(encoding="utf-8") for name, path in files.items()}
