"""The stand-alone C++ tests under the address sanitizer, with two instruction sets' kernels. scripts/test-native runs them with
more sanitizers, optimised, with all of them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).parents[3]
BUILD = REPO / "build" / "native-short"  # kept: only the first run compiles everything
OPTIONS = (
    "-DSAPWOOD_PYTHON=OFF", "-DSAPWOOD_FEW_KERNELS=ON", "-DSAPWOOD_SANITIZE=address", "-DSAPWOOD_SANITIZE_LEVEL=-O0",
    "-DCMAKE_BUILD_TYPE=None",
)  # fmt: skip


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-5000:]}\n{done.stderr[-5000:]}"
    return done.stdout


@pytest.mark.timeout(900)
def test_stand_alone_tests_pass_under_the_address_sanitizer() -> None:
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    missing = [name for name in ("cmake", "ninja") if shutil.which(name) is None] + ([] if compiler else ["a C++ compiler"])
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    run("cmake", "-S", str(REPO / "csrc"), "-B", str(BUILD), "-G", "Ninja", *OPTIONS)
    run("cmake", "--build", str(BUILD), "--target", "sapwood_tests", "-j", str(len(os.sched_getaffinity(0))))
    last = run(str(BUILD / "sapwood_tests")).splitlines()[-1]
    ran, _, of = last.removesuffix(" passed").partition(" of ")
    assert ran == of and int(ran) > 30
