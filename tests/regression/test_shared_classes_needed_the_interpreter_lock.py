"""Masks and host pages that the compute thread let go of last took the interpreter lock to die, which waited for ever at exit.

nanobind frees an object that Python and C++ share through the interpreter, unless its class has `enable_shared_from_this`. So
each class that Python hands to native code by shared pointer must have it.
"""

from __future__ import annotations

import re
from pathlib import Path

CSRC = Path(__file__).parents[2] / "csrc"


def shared_classes() -> set[str]:
    """The bound classes that somewhere in the sources are held by a shared pointer."""
    sources = "\n".join(path.read_text() for path in CSRC.glob("[a-z]*/*.*") if path.suffix in (".h", ".cpp"))
    bound = set(re.findall(r"nb::class_<(\w+)>", sources))
    return bound & set(re.findall(r"(?:shared_ptr|make_shared)<(?:const )?(\w+)>", sources))


def test_every_shared_class_is_freed_without_the_interpreter() -> None:
    headers = "\n".join(path.read_text() for path in CSRC.glob("[a-z]*/*.h"))
    shared = shared_classes()
    assert {"Masks", "HostPages", "Program"} <= shared
    free = {name for name in shared if f"{name} : public std::enable_shared_from_this<{name}>" in headers}
    assert free == shared
