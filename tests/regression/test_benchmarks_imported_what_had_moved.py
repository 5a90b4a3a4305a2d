"""When benchmarks/compare.py was split, two scripts that imported from it no longer started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "benchmarks"
LOAD_ALL = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    assert callable(getattr(importlib.import_module(name), "main", print)), name
print("all loaded")
"""


def test_every_benchmark_finds_what_it_imports() -> None:
    names = sorted(path.stem for path in FOLDER.glob("*.py"))
    assert {"compare", "latency_target", "programs", "simulated"} <= set(names)
    done = subprocess.run([sys.executable, "-c", LOAD_ALL, str(FOLDER), *names], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "all loaded\n"), done.stderr
