"""The OpenAPI page is complete and true: bodies have schemas and examples that are accepted, ranges are the server's own."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from serverkit import House, ask, make_house
from test_null_house import null_house

from sapwood.core.pooling import Task
from sapwood.server.examples import QUERIES, RANGES, examples
from sapwood.server.openapi import BODIES

BODYLESS = {"/flush_cache", "/continue_generation", "/stop_profile", "/v1/responses/{response_id}/cancel"}
EMBEDS = {"/api/embed", "/api/embeddings", "/v1/embeddings", "/encode", "/v1/rerank", "/v1/ranking"}
CLASSIFIES = {"/v1/classify", "/classify"}
PAIRS = [(path, name) for path, shown in examples("fake").items() for name in shown]


def page() -> dict[str, Any]:
    found: dict[str, Any] = ask(make_house(), "GET", "/openapi.json").json()
    return found


def house_for(path: str, folder: Path) -> House:
    if path not in EMBEDS | CLASSIFIES:
        return null_house(weight_update_folder=str(folder), profiles=folder)
    house = make_house()
    task = Task.EMBED if path in EMBEDS else Task.CLASSIFY
    house.frontend.limits = dataclasses.replace(house.frontend.limits, task=task, vector_size=4, labels=tuple("abcd"))
    return house


def test_every_route_is_described() -> None:
    described = page()
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"], path
            assert {"400", "401", "429", "503"} <= set(operation["responses"]) and "422" not in operation["responses"]
            if method == "post" and path not in BODYLESS:
                content = operation["requestBody"]["content"]["application/json"]
                assert content["schema"] and content["examples"], path
    assert set(BODIES) <= set(described["paths"]) and set(examples("fake")) == set(BODIES)
    assert {p["name"] for p in described["paths"]["/v1/loads"]["get"]["parameters"]} == {q["name"] for q in QUERIES["/v1/loads"]}


def test_references_resolve() -> None:
    described = page()
    known, text = described["components"]["schemas"], str(described)
    wanted = {part.split("'")[0] for part in text.split("#/components/schemas/")[1:]}
    assert wanted and wanted <= set(known)


@pytest.mark.parametrize(("path", "name"), PAIRS)
def test_every_example_is_accepted(path: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "step-1000").mkdir()
    for file in ("config.json", "model.safetensors"):
        (tmp_path / "step-1000" / file).touch()
    house = house_for(path, tmp_path)
    if path == "/close_session":
        house.frontend.sessions.open("my-session", 100, None)
    if path == "/resume_memory_occupation":
        assert ask(house, "POST", "/release_memory_occupation").status_code == 200
    response = ask(house, "POST", path, json=examples("fake")[path][name])
    assert response.status_code == 200, response.text


def bounds() -> list[tuple[str, float, bool]]:
    """(parameter, value, whether it is legal), on and just outside each bound that a request can reach."""
    found = []
    for name in ("temperature", "top_p", "min_p", "top_k", "frequency_penalty", "presence_penalty", "repetition_penalty", "n"):
        limits, step = RANGES[name], 1 if name in ("top_k", "n") else 1e-6
        for key, sign in (("minimum", -1), ("maximum", 1)):
            if key in limits:
                found += [(name, limits[key], True), (name, limits[key] + sign * step, False)]
        if "exclusiveMinimum" in limits:
            found += [(name, limits["exclusiveMinimum"], False), (name, limits["exclusiveMinimum"] + 1e-6, True)]
    return [*found, ("max_new_tokens", 0, True), ("max_new_tokens", -1, False), ("min_new_tokens", -1, False)]


def test_ranges_are_the_servers_own() -> None:
    for name, value, is_legal in bounds():
        house = null_house()
        body = {"text": "a", "sampling_params": {"max_new_tokens": 1, name: value}}
        if name == "n" and value > 32:
            body["sampling_params"]["max_new_tokens"] = 0
        status = ask(house, "POST", "/generate", json=body).status_code
        assert (status == 200) is is_legal, (name, value, status)
    for count, is_legal in ((0, True), (128, True), (129, False), (-1, False)):
        body = {"text": "ab", "return_logprob": True, "top_logprobs_num": count, "sampling_params": {"max_new_tokens": 1}}
        assert (ask(null_house(), "POST", "/generate", json=body).status_code == 200) is is_legal


def test_numbers_carry_their_ranges() -> None:
    schemas = page()["components"]["schemas"]
    sampling = next(schema for name, schema in schemas.items() if "min_new_tokens" in schema.get("properties", {}))
    [number] = [branch for branch in sampling["properties"]["top_p"]["anyOf"] if branch.get("type") == "number"]
    assert number["maximum"] == 1 and number["exclusiveMinimum"] == 0
