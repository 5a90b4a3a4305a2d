"""Models of the Hugging Face hub, where the hub can be reached.

Owns what is fetched and how failures read. Does not know the catalog. Invariant: only data files are fetched, never code or
pickled weights, and every failure of the client library is a `WeightsError` that says what else to do.
"""

from __future__ import annotations

import re
from pathlib import Path

from huggingface_hub import hf_hub_download, snapshot_download

from sapwood.errors import WeightsError

DATA_FILES = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.txt", "*.model", "*.jinja"]
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


def is_repository(name: str) -> bool:
    """Whether `name` has the form owner/model."""
    return _REPOSITORY.fullmatch(name) is not None and ".." not in name


def fetch_repository(repository: str) -> Path:
    """The local folder of the hub's `repository`; raises WeightsError when it cannot be had."""
    try:
        return Path(snapshot_download(repository, allow_patterns=DATA_FILES))
    except Exception as error:  # the client's transport, and so its exceptions, differ from version to version
        raise _unreachable(repository, error) from error


def fetch_file(repository: str, name: str, folder: Path) -> Path:
    """Downloads one file of the hub's `repository` into `folder`; raises WeightsError when it cannot be had."""
    try:
        return Path(hf_hub_download(repository, name, local_dir=folder))
    except Exception as error:  # as above
        raise _unreachable(repository, error) from error


def _unreachable(repository: str, error: Exception) -> WeightsError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return WeightsError(
        f"the hub's {repository!r} cannot be had ({reason}). Without the hub, give a local folder or GGUF file, or one of the"
        " names that `sapwood models` lists."
    )
