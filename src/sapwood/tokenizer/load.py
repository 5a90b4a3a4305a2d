"""Finding a model's tokenizer: the one place that knows which file formats there are.

Does not know what is in them. Invariant: what cannot be loaded is a WeightsError that says what to put where.
"""

from __future__ import annotations

from pathlib import Path

from sapwood.errors import ConfigError, WeightsError
from sapwood.tokenizer.byte_vocabulary import byte_tokenizer
from sapwood.tokenizer.chat import ChatRenderer
from sapwood.tokenizer.gguf_vocabulary import parts_from_gguf
from sapwood.tokenizer.hf_folder import parts_from_folder
from sapwood.tokenizer.tokenizer import Tokenizer
from sapwood.weights.gguf import GgufFile

NULL_MODEL = "null"
_FOLDER = Path(__file__).parent / "templates"
TEMPLATES = tuple(sorted(path.stem for path in _FOLDER.glob("*.jinja")))
"""The chat templates that come with the package; `hermes` shows tools to any model that speaks ChatML."""


def open_tokenizer(name: str) -> Tokenizer:
    """The tokenizer at a path, or the byte tokenizer of the model called "null"."""
    return byte_tokenizer() if name == NULL_MODEL else load_tokenizer(Path(name))


def open_chat(tokenizer: Tokenizer, template: str | None) -> ChatRenderer:
    """The chat templates: the model's own, or the one that replaces them: a name in `TEMPLATES`, or a Jinja file.

    Raises ConfigError when that is of no use.
    """
    if template is None:
        return ChatRenderer(tokenizer)
    path = _FOLDER / f"{template}.jinja" if template in TEMPLATES else Path(template)
    try:
        return ChatRenderer(tokenizer, path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        message = f"--chat-template {template}: {error}; give a readable Jinja file, or one of {', '.join(TEMPLATES)}"
        raise ConfigError(message, param="chat_template") from None


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a checkpoint folder, a GGUF file, or a tokenizer.json; raises WeightsError when there is none."""
    if path.is_dir():
        return _load_folder(path)
    if path.name == "tokenizer.json":
        return Tokenizer(parts_from_folder(path.parent))
    return _load_gguf(path)


def _load_folder(folder: Path) -> Tokenizer:
    files = sorted(folder.glob("*.gguf"))
    if (folder / "tokenizer.json").is_file() or not files:
        return Tokenizer(parts_from_folder(folder))
    # Of a model in several files the first one carries the metadata.
    firsts = [file for file in files if "-of-" not in file.name or "-00001-of-" in file.name]
    if len(firsts) != 1:
        names = ", ".join(file.name for file in files)
        raise WeightsError(f"{folder} holds several GGUF models ({names}); give the path of one of them")
    return _load_gguf(firsts[0])


def _load_gguf(path: Path) -> Tokenizer:
    file = GgufFile(path)
    try:
        return Tokenizer(parts_from_gguf(file.metadata))
    finally:
        file.close()
