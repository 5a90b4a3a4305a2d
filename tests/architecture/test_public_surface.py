"""What the package shows to the world: names, documents, and nothing about the machine it was written on."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest
import source_tree

import sapwood
from sapwood.config.reference import render

TEXT_SUFFIXES = {".py", ".md", ".toml", ".txt", ".yml", ".yaml", ".json", ".jinja", ".sh", ".cpp", ".h", ""}

# In halves, so that this file does not contain what it looks for: folders of a workplace, hosts of package indexes.
_FOLDERS = (("/wo", "rk/"), ("/ro", "ot/"), ("/tmp", "/dl"), ("/ho", "me/"))
_INDEXES = (("pypi", ".org"), ("pythonhosted", ".org"), ("download.pytorch", ".org"), ("index", "-url"), ("find", "-links"))
LEAKS = tuple(re.escape(left + right) for left, right in _FOLDERS + _INDEXES)


def test_all_is_sorted_and_resolves() -> None:
    for module in source_tree.modules():
        for node in module.tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                names = ast.literal_eval(node.value)
                assert list(names) == sorted(names), module.name
    for name in sapwood.__all__:
        assert getattr(sapwood, name).__doc__ or name == "__version__"
    assert set(sapwood.__all__) <= set(dir(sapwood))


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = sapwood.no_such_name


def test_importing_sapwood_loads_no_torch() -> None:
    script = "import sys, sapwood; sapwood.SamplingParams; sapwood.SapwoodError; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_options_page_is_current() -> None:
    page = source_tree.REPO / "docs/reference/options.md"
    assert page.read_text(encoding="utf-8") == render(), "run: python -m sapwood.config.reference > docs/reference/options.md"


def test_the_architecture_page_names_every_package() -> None:
    page = (source_tree.REPO / "docs/ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `(\w+)(?:/|\.py)` \|", page, flags=re.MULTILINE))
    assert named == {module.area for module in source_tree.modules()} - {"sapwood"}


def committed_files() -> list[str]:
    """What the repository holds, or will hold once it is added; not what builds and tools leave behind."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=source_tree.REPO, capture_output=True, text=True, check=True)
    return sorted(filter(None, listed.stdout.split("\0")))


def test_no_word_about_the_machine() -> None:
    wrong = []
    for relative in committed_files():
        path = source_tree.REPO / relative
        if path.suffix not in TEXT_SUFFIXES or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        wrong += [f"{relative}: {leak}" for leak in LEAKS if re.search(leak, text)]
    assert wrong == []


def test_examples_are_short() -> None:
    examples = sorted((source_tree.REPO / "examples").glob("*.py"))
    assert examples
    for example in examples:
        assert len(example.read_text(encoding="utf-8").splitlines()) <= 60, example.name
