"""The named pre-tokenizers of GGUF files: how a byte-level vocabulary cuts text into words before it merges bytes.

A GGUF carries a name, not the rules; this table holds the rules, as the regular expressions that the models' own
tokenizer.json files use. Knows nothing of vocabularies. Invariant: an unknown name is an error that lists the known ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sapwood.errors import WeightsError

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGIT = r"\p{N}"
_THREE_DIGITS = r"[0-9][0-9][0-9]"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_TAIL_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_CASED_LOWER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
_CASED_UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
_PUNCTUATION = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"

_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_TAIL}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_TAIL}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_TEKKEN = rf"{_CASED_LOWER}|{_CASED_UPPER}|\p{{N}}|{_TAIL_SLASH}"
_GPT4O = rf"{_CASED_LOWER}{_CONTRACTION}?|{_CASED_UPPER}{_CONTRACTION}?|\p{{N}}{{1,3}}|{_TAIL_SLASH}"
_BLOOM = r" ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{0964}\x{06D4}\x{060C})]+"
_CASED_LETTERS = """
    41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C 38E-3A1 3A3-3F5
    3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D
    1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB
    1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 213C-213F
    2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF
    FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943
"""


def _char_class(ranges: str) -> str:
    """A regular expression's character class of hexadecimal code points and ranges."""
    escaped = ("-".join(rf"\x{{{code}}}" for code in entry.split("-")) for entry in ranges.split())
    return f"[{''.join(escaped)}]"


_DEEPSEEK_LETTERS = rf"\s?{_char_class(_CASED_LETTERS)}+"
_DEEPSEEK_MARKS = rf"\s?{_char_class('21-2F 3A-7E FF01-FF0F FF1A-FF5E 2018-201F 3000-3002')}+"
_DEEPSEEK_SCRIPTS = _char_class("800-9FA5 AC00-D7FF") + "+"
_DEEPSEEK3_SCRIPTS = _char_class("4E00-9FA5 3040-30FF") + "+"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """Splits applied one after the other, each inside the pieces that the former left.

    `ignore_merges`: a word that is in the vocabulary is taken whole. `add_bos`: what the name implies when the file does not
    say. `normalizer`: the Unicode form that the model's tokenizer.json asks for.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    normalizer: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The `pre_tokenizer` entry of a tokenizer.json."""
        splits: list[dict[str, Any]] = [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False} for pattern in self.patterns
        ]
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
        return {"type": "Sequence", "pretokenizers": [*splits, byte_level]}


_FAMILIES: tuple[tuple[str, PreTokenizer], ...] = (
    ("default", PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", _THREE_DIGITS))),
    (
        "gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat a.x-4.0 mellum modern-bert roberta-bpe"
        " jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code",
        PreTokenizer((_GPT2,)),
    ),
    (
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True),
    ),
    ("dbrx smaug-bpe glm4 chatglm-bpe", PreTokenizer((_LLAMA3,))),
    ("qwen2 deepseek-r1-qwen megrez kormo f2llmv2", PreTokenizer((_QWEN2,), normalizer="NFC")),
    ("stablelm2 hunyuan solar-open grok-2", PreTokenizer((_QWEN2,))),
    ("qwen35", PreTokenizer((_QWEN35,), normalizer="NFC")),
    ("smollm starcoder refact command-r codeshell exaone minerva-7b mellum2", PreTokenizer((_DIGIT, _GPT2))),
    ("falcon", PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, _THREE_DIGITS))),
    (
        "deepseek-llm",
        PreTokenizer((r"[\r\n]", _DEEPSEEK_LETTERS, _DEEPSEEK_MARKS, r"\s+$", _DEEPSEEK_SCRIPTS, r"\p{N}+")),
    ),
    ("deepseek-coder", PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_SCRIPTS, _DIGIT))),
    (
        "deepseek-v3 hunyuan-dense joyai-llm",
        PreTokenizer(
            (
                r"\p{N}{1,3}",
                _DEEPSEEK3_SCRIPTS,
                rf"{_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
            )
        ),
    ),
    ("tekken", PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True)),
    ("gpt-4o llama4 kanana2 minimax-m2", PreTokenizer((_GPT4O,))),
    ("bloom poro-chat gpt3-finnish", PreTokenizer((_BLOOM,))),
    ("viking", PreTokenizer((_BLOOM, _DIGIT))),
    (
        "bailingmoe bailingmoe2 llada-moe",
        PreTokenizer(
            (
                r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
                r"|\s*[\r\n]|\s+(?!\S)|\s+",
            )
        ),
    ),
    (
        "seed-coder",
        PreTokenizer((rf"{_CONTRACTION}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",)),
    ),
)
PRE_TOKENIZERS: dict[str, PreTokenizer] = {name: rules for names, rules in _FAMILIES for name in names.split()}


def pre_tokenizer(name: str) -> PreTokenizer:
    """The rules called `name` in `tokenizer.ggml.pre`; raises WeightsError listing the known names."""
    try:
        return PRE_TOKENIZERS[name]
    except KeyError:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise WeightsError(
            f"the file's pre-tokenizer {name!r} is not known (known: {known}); use a checkpoint folder with tokenizer.json"
        ) from None
