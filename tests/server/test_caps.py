"""What options allow less of than any server takes: the limit itself is taken, one more is a 400 that names the field."""

from __future__ import annotations

from typing import Any

import pytest
from serverkit import ask, make_house

from sapwood.config.raw import from_mapping
from sapwood.config.resolve import HostFacts, resolve
from sapwood.config.sections import CapsSection

CAPS = CapsSection(samples=2, stop_strings=1, top_logprobs=3, logit_bias=1, prompt_tokens=4)
CHAT = {"messages": [{"role": "user", "content": "a"}]}


def native(**params: Any) -> dict[str, Any]:
    return {"text": "a", "sampling_params": {"max_new_tokens": 1, **params}}


CASES = [
    ("/generate", native(n=2), native(n=3), "n"),
    ("/generate", native(stop=["x"]), native(stop=["x", "y"]), "stop"),
    ("/generate", native(stop_regex=["x"]), native(stop_regex=["x", "y"]), "stop_regex"),
    ("/generate", native(logit_bias={"1": 1}), native(logit_bias={"1": 1, "2": 1}), "logit_bias"),
    ("/generate", {"text": "abcd"}, {"text": "abcde"}, "text"),
    ("/v1/completions", {"prompt": "abcd"}, {"prompt": "abcde"}, "prompt"),
    ("/v1/completions", {"prompt": "a", "logprobs": 3}, {"prompt": "a", "logprobs": 4}, "logprobs"),
]


@pytest.mark.parametrize(("path", "fits", "exceeds", "field"), CASES, ids=[f"{case[0]} {case[3]}" for case in CASES])
def test_the_limit_is_taken_and_one_more_is_not(path: str, fits: dict[str, Any], exceeds: dict[str, Any], field: str) -> None:
    house = make_house(caps=CAPS)
    assert ask(house, "POST", path, json=fits).status_code == 200
    refused = ask(house, "POST", path, json=exceeds)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == field and "at most" in refused.text
    assert ask(make_house(), "POST", path, json=exceeds).status_code == 200
    assert house.frontend.num_open == 0


def test_they_are_options() -> None:
    given = {"max_samples": 2, "max_stop_strings": 1, "max_logprobs": 3, "max_logit_bias": 1, "max_prompt_tokens": 4}
    assert resolve(from_mapping({"model_path": "null", **given}, "test"), HostFacts(2, False)).server.caps == CAPS
    assert resolve(from_mapping({"model_path": "null"}, "test"), HostFacts(2, False)).server.caps == CapsSection()
