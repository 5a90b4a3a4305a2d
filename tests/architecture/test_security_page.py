"""docs/security.md names a test for each known hole of other servers; these tests exist."""

from __future__ import annotations

import ast
import re

import source_tree

PAGE = (source_tree.REPO / "docs" / "security.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.partition("## Known holes")[2].partition("\n## ")[0].splitlines() if line.startswith("| ")][1:]


def test_every_row_names_a_test_that_exists() -> None:
    assert len(ROWS) >= 30
    for row in ROWS:
        named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", row)
        assert named, row
        for path, name in named:
            tree = ast.parse((source_tree.REPO / path).read_text(encoding="utf-8"))
            assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{path} has no {name}"


def test_the_page_names_options_that_exist() -> None:
    options = (source_tree.REPO / "docs" / "reference" / "options.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(--[a-z][a-z-]+[a-z])`", PAGE))
    assert named and [flag for flag in named if flag not in options] == []
