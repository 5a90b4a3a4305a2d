"""What all tests share: the tree that they lie in is the one they test, and random examples are the same in every run, unless a
long run asks for new ones."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hypothesis import settings

SOURCES = str(Path(__file__).resolve().parents[1] / "src")

settings.register_profile("repeatable", derandomize=True)
if not os.environ.get("SAPWOOD_LONG_TESTS"):
    settings.load_profile("repeatable")

# The finder of an editable installation comes before every path; one of another checkout would answer for this one.
if any(SOURCES not in getattr(finder, "search_paths", [SOURCES]) for finder in sys.meta_path):
    sys.meta_path[:] = [finder for finder in sys.meta_path if SOURCES in getattr(finder, "search_paths", [SOURCES])]
    sys.path.insert(0, SOURCES)
