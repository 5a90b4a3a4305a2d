"""What all tests share: the tree that they lie in is the one they test, and random examples are the same in every run, unless a
long run asks for new ones."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

from hypothesis import settings

SOURCES = str(Path(__file__).resolve().parents[1] / "src")

settings.register_profile("repeatable", derandomize=True)
if not os.environ.get("SAPWOOD_LONG_TESTS"):
    settings.load_profile("repeatable")

# The finder of an editable installation comes before every path; one of another checkout would answer for this one. In processes
# that tests start, an empty module takes the place of the one that puts the finder there.
foreign = [finder for finder in sys.meta_path if SOURCES not in getattr(finder, "search_paths", [SOURCES])]
if foreign:
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder not in foreign]
    sys.path.insert(0, SOURCES)
    shadows = tempfile.mkdtemp(prefix="shadows-")
    for finder in foreign:
        Path(shadows, f"{type(finder).__module__}.py").touch()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (shadows, SOURCES, os.environ.get("PYTHONPATH"))))
    atexit.register(shutil.rmtree, shadows, ignore_errors=True)
