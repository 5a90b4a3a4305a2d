"""docs/security.md names a test for each known hole of other servers; these tests exist. The page of limits has them all."""

from __future__ import annotations

import ast
import re

import pytest
import source_tree

from sapwood.config.options import OPTIONS
from sapwood.config.values import Option, coerce
from sapwood.grammar import check, runs, schema, source, tags
from sapwood.server import requests, tooling
from sapwood.tokenizer import chat_bounds

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


LIMITS, _, FIXED = (source_tree.REPO / "docs" / "guide" / "limits.md").read_text(encoding="utf-8").partition("## Fixed")
CELLS = [[cell.strip() for cell in line.strip("| ").split("|")] for line in LIMITS.splitlines() if "| `--" in line]
DEFAULTS = {flag.strip("`"): default for _, flag, default, _ in CELLS}


@pytest.mark.parametrize("option", [option for option in OPTIONS if option.flags[0] in DEFAULTS], ids=lambda option: option.name)
def test_the_page_of_limits_tells_defaults(option: Option) -> None:
    told = DEFAULTS[option.flags[0]]
    if option.default is not None:
        number = re.match(r"[\d.]+( [KM]iB)?", told)
        assert number and coerce(option, number[0].replace(" ", ""), "the page") == option.default
    else:
        assert told in (option.automatic, "the model's"), told


def test_the_page_of_limits_has_them_all() -> None:
    limits = {option.flags[0] for option in OPTIONS if option.name.startswith("max_") and option.group in ("server", "engine")}
    timeouts = {"--head-timeout-s", "--body-timeout-s", "--read-timeout-s", "--constraint-timeout-s", "--queue-timeout-s"}
    assert (limits | timeouts) - DEFAULTS.keys() == set()
    assert DEFAULTS.keys() - {option.flags[0] for option in OPTIONS} == set()


@pytest.mark.parametrize(
    ("what", "most"),
    [
        ("log-probabilities of one prompt", requests.MAX_PROMPT_LOGPROBS),
        ("`rid`", requests.MAX_RID_CHARS),
        ("tools of a call", tooling.MAX_TOOLS),
        ("parts of a JSON schema", schema.MAX_NODES),
        ("entries of a choice", source.MAX_CHOICES),
        ("tags of a structural tag", tags.MAX_TAGS),
        ("text that a constraint insists on", runs.MAX_RUN),
        ("new constraints that wait", check.MAX_BACKLOG),
        ("what a chat template builds", chat_bounds.MAX_RENDERED_CHARS),
    ],
)
def test_the_page_of_limits_tells_fixed_ones(what: str, most: int) -> None:
    [row] = [line for line in FIXED.splitlines() if line.startswith(f"| {what}")]
    assert str(most) in re.findall(r"\d+", row)
