"""What all tests share: the tree that they lie in is the one they test, and random examples are the same in every run, unless a
long run (SAPWOOD_LONG_TESTS) asks for new ones and for the tests that take long."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

SOURCES = str(Path(__file__).resolve().parents[1] / "src")

settings.register_profile("repeatable", derandomize=True)
if not os.environ.get("SAPWOOD_LONG_TESTS"):
    settings.load_profile("repeatable")


def crew_of(item: pytest.Item) -> str:
    """Whom a run in several processes (`-n 2 --dist loadgroup`) gives a test to: what computes on all cores for long is one
    process's work, and of the rest no file is torn apart."""
    path = item.path.relative_to(Path(__file__).parent)
    return "engines" if item.get_closest_marker("real_model") or path.parts[0] == "e2e" else str(path)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items if config.pluginmanager.hasplugin("xdist") else ():
        item.add_marker(pytest.mark.xdist_group(crew_of(item)))
    if os.environ.get("SAPWOOD_LONG_TESTS"):
        return
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason="takes long: it runs with SAPWOOD_LONG_TESTS=1"))


# The finder of an editable installation comes before every path; one of another checkout would answer for this one. In processes
# that tests start, an empty module takes the place of the one that puts the finder there.
for name in [name for name in sys.modules if name.split(".")[0] == "sapwood"]:
    if not str(getattr(sys.modules[name], "__file__", SOURCES)).startswith(SOURCES):
        del sys.modules[name]  # the pytest plugin of an installed package
foreign = [finder for finder in sys.meta_path if SOURCES not in getattr(finder, "search_paths", [SOURCES])]
if foreign:
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder not in foreign]
    sys.path.insert(0, SOURCES)
    shadows = tempfile.mkdtemp(prefix="shadows-")
    for finder in foreign:
        Path(shadows, f"{type(finder).__module__}.py").touch()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (shadows, SOURCES, os.environ.get("PYTHONPATH"))))
    atexit.register(shutil.rmtree, shadows, ignore_errors=True)
