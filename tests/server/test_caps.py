"""What options allow less of than any server takes: the limit itself is taken, one more is a 400 that names the field."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serverkit import ask, make_house

from sapwood.config.raw import from_mapping
from sapwood.config.resolve import HostFacts, resolve
from sapwood.config.sections import CapsSection, GrammarLimits
from sapwood.errors import InvalidRequest
from sapwood.server.depth import check_depth

CAPS = CapsSection(samples=2, stop_strings=1, stop_chars=3, stop_regex_bytes=3, top_logprobs=3, logit_bias=1, prompt_tokens=4)
CHAT = {"messages": [{"role": "user", "content": "a"}]}


def native(**params: Any) -> dict[str, Any]:
    return {"text": "a", "sampling_params": {"max_new_tokens": 1, **params}}


CASES = [
    ("/generate", native(n=2), native(n=3), "n"),
    ("/generate", native(stop=["x"]), native(stop=["x", "y"]), "stop"),
    ("/generate", native(stop=["xyz"]), native(stop=["wxyz"]), "stop"),
    ("/generate", native(stop_regex=["x"]), native(stop_regex=["x", "y"]), "stop_regex"),
    ("/generate", native(stop_regex=["xyz"]), native(stop_regex=["wxyz"]), "stop_regex"),
    ("/generate", native(logit_bias={"1": 1}), native(logit_bias={"1": 1, "2": 1}), "logit_bias"),
    ("/generate", {"text": "abcd"}, {"text": "abcde"}, "text"),
    ("/v1/completions", {"prompt": "abcd"}, {"prompt": "abcde"}, "prompt"),
    ("/v1/completions", {"prompt": "a", "logprobs": 3}, {"prompt": "a", "logprobs": 4}, "logprobs"),
]


@pytest.mark.parametrize(("path", "fits", "exceeds", "field"), CASES)
def test_the_limit_is_taken_and_one_more_is_not(path: str, fits: dict[str, Any], exceeds: dict[str, Any], field: str) -> None:
    house = make_house(caps=CAPS)
    assert ask(house, "POST", path, json=fits).status_code == 200
    refused = ask(house, "POST", path, json=exceeds)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == field and "at most" in refused.text
    assert ask(make_house(), "POST", path, json=exceeds).status_code == 200
    assert house.frontend.num_open == 0


def test_they_are_options() -> None:
    given = {
        "max_samples": 2, "max_stop_strings": 1, "max_stop_chars": 3, "max_stop_regex_bytes": 3, "max_logprobs": 3,
        "max_logit_bias": 1, "max_prompt_tokens": 4,
    }  # fmt: skip
    assert resolve(from_mapping({"model_path": "null", **given}, "test"), HostFacts(2, False)).server.caps == CAPS
    assert resolve(from_mapping({"model_path": "null"}, "test"), HostFacts(2, False)).server.caps == CapsSection()


def schema(depth: int) -> dict[str, Any]:
    """A schema of so many levels."""
    return {"type": "string"} if depth == 2 else {"items": schema(depth - 1)}


LIMITS = GrammarLimits(num_bytes=60, schema_depth=4, regex_size=1000)
LETTERS = r"\p{L}{1,30}[\p{N}\p{L}]{0,30}x"
CONSTRAINTS = [
    ({"regex": "a" * 60}, {"regex": "a" * 61}, "regex", "61 bytes, 60 are the limit"),
    ({"json_schema": json.dumps(schema(4))}, {"json_schema": json.dumps(schema(5))}, "json_schema", "more than 4 levels"),
    ({"regex": "[a-z]{1,20}"}, {"regex": LETTERS}, "regex", "too big"),
]


@pytest.mark.parametrize(("fits", "exceeds", "field", "said"), CONSTRAINTS, ids=["bytes", "depth", "size"])
def test_constraints_have_limits(fits: dict[str, str], exceeds: dict[str, str], field: str, said: str) -> None:
    house = make_house(grammar_limits=LIMITS)
    assert ask(house, "POST", "/generate", json=native(**fits)).status_code == 200
    refused = ask(house, "POST", "/generate", json=native(**exceeds))
    assert refused.status_code == 400 and refused.json()["error"]["param"] == field and said in refused.text
    assert ask(make_house(), "POST", "/generate", json=native(**exceeds)).status_code == 200


def test_compiling_has_a_limit_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr("sapwood.grammar.check.check_constraint", lambda constraint, options: release.wait(20))
    house = make_house(grammar_limits=GrammarLimits(compile_s=0.01))
    refused = ask(house, "POST", "/generate", json=native(regex="a"))
    release.set()
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "regex" and "0.01 s to compile" in refused.text


def test_the_limits_of_constraints_are_options() -> None:
    given = {
        "max_constraint_bytes": 60, "max_schema_depth": 4, "max_regex_size": 1000, "max_regex_states": 16,
        "constraint_timeout_s": 0.5,
    }  # fmt: skip
    resolved = resolve(from_mapping({"model_path": "null", **given}, "test"), HostFacts(2, False))
    assert resolved.engine.grammar.limits == GrammarLimits(60, 4, 1000, 16, 0.5)
    resolved = resolve(from_mapping({"model_path": "null"}, "test"), HostFacts(2, False))
    assert resolved.engine.grammar.limits == GrammarLimits()


def nested(depth: int, closing: str = "]") -> str:
    """A body whose field `extra` makes it so deep."""
    return '{"text": "a[[[{{\\"[[", "extra": ' + "[" * (depth - 1) + closing * (depth - 1) + ', "sampling_params": {}}'


@pytest.mark.parametrize("most", [4, 128, 512])
def test_bodies_have_a_limit_of_depth(most: int) -> None:
    house = make_house(max_json_depth=most)
    assert ask(house, "POST", "/generate", content=nested(most)).status_code == 200
    for body in (nested(most + 1), nested(most + 1, ""), nested(100_000, "")):
        refused = ask(house, "POST", "/generate", content=body)
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "extra"
        assert f"{most} objects and lists inside of each other are the limit" in refused.text
    assert resolve(from_mapping({"max_json_depth": most}, "test"), HostFacts(2, False)).server.max_json_depth == most


JSON_VALUES = st.recursive(
    st.none() | st.text('ab[]{}"\\:,', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('a["\\', max_size=3), inner, max_size=3),
)


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


@settings(max_examples=150, deadline=None)
@given(value=JSON_VALUES, slice_bytes=st.integers(1, 9))
def test_depth_is_counted_exactly(value: Any, slice_bytes: int) -> None:
    """Against a walk over the value: brackets in texts do not count, nor does where the body is cut into slices."""
    data, depth = json.dumps(value).encode(), depth_of(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sapwood.server.depth.SLICE_BYTES", slice_bytes)
        check_depth(data, depth)
        if depth:
            with pytest.raises(InvalidRequest):
                check_depth(data, depth - 1)
