"""Pausing, changing and observing a server over HTTP, with the real scheduler behind it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from serverkit import House, ask, client_of, make_house
from test_null_house import null_house

GREEDY = {"temperature": 0, "max_new_tokens": 40, "ignore_eos": True}


def steer(house: House, *calls: tuple[str, dict[str, Any] | None]) -> list[Any]:
    """Calls one after the other; each answers (status, body)."""

    async def run() -> list[Any]:
        found = []
        async with client_of(house) as client:
            for path, body in calls:
                response = await client.post(path, json=body) if body is not None else await client.get(path)
                found.append((response.status_code, response.json()))
        return found

    return asyncio.run(run())


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_a_paused_request_goes_on_where_it_was(mode: str) -> None:
    async def run() -> tuple[Any, Any]:
        house = null_house()
        async with client_of(house) as client:
            body = {"text": "some prompt", "sampling_params": GREEDY}
            alone = (await client.post("/generate", json=body)).json()
            running = asyncio.ensure_future(client.post("/generate", json=body))
            while not house.backend.scheduler.stats().num_running:  # type: ignore[attr-defined]
                await asyncio.sleep(0)
            reply = await client.post("/pause_generation", json={"mode": mode})
            assert reply.status_code == 200 and reply.json()["status"] == "ok"
            await asyncio.sleep(0.1)
            assert not running.done()
            waiting = asyncio.ensure_future(client.post("/generate", json=body))
            loads = (await client.get("/v1/loads")).json()["loads"][0]
            assert loads["num_running_reqs"] == (0 if mode == "retract" else 1)
            assert (await client.post("/continue_generation")).status_code == 200
            for reply in (await running, await waiting):
                assert reply.json()["text"] == alone["text"]
            return alone, house

    asyncio.run(run())


def test_pausing_with_abort_ends_what_runs() -> None:
    async def run() -> None:
        house = null_house()
        async with client_of(house) as client:
            body = {"text": "x", "sampling_params": {**GREEDY, "max_new_tokens": 400}}
            running = asyncio.ensure_future(client.post("/generate", json=body))
            while not house.frontend.num_open:
                await asyncio.sleep(0)
            reply = (await client.post("/pause_generation", json={})).json()
            assert reply["num_aborted"] == 1
            assert (await running).json()["meta_info"]["finish_reason"]["type"] == "abort"
            await client.post("/continue_generation", json={})
            assert (await client.get("/health_generate")).status_code == 200

    asyncio.run(run())


def test_loads_have_the_sections_that_were_asked_for() -> None:
    house = null_house()
    found = steer(
        house,
        ("/generate", {"text": "abc", "sampling_params": GREEDY}),
        ("/v1/loads", None),
        ("/v1/loads?include=memory&dp_rank=0", None),
        ("/v1/loads?include=nothing", None),
        ("/v1/loads?dp_rank=1", None),
        ("/v1/loads?format=xml", None),
        ("/get_load", None),
    )
    everything, part = found[1][1]["loads"][0], found[2][1]["loads"][0]
    assert everything["generated_tokens_total"] == 40 and everything["num_used_tokens"] == 0 and everything["token_usage"] == 0.0
    assert set(part) == {"dp_rank", "memory"} and part["memory"]["num_free_tokens"] + part["memory"]["num_cached_tokens"] == 4096
    assert [status for status, _ in found[3:6]] == [400, 400, 400]
    assert found[6][1] == [{"dp_rank": 0, "num_reqs": 0, "num_waiting_reqs": 0, "num_tokens": 0}]
    text = ask(house, "GET", "/v1/loads?format=prometheus").text
    assert 'sapwood:load_generated_tokens_total{dp_rank="0"} 40' in text and "load_memory_num_free_tokens" in text


def test_memory_is_released_and_resumed() -> None:
    async def run() -> None:
        house = null_house()
        async with client_of(house) as client:
            body = {"text": "abc", "sampling_params": GREEDY}
            alone = (await client.post("/generate", json=body)).json()["text"]
            assert (await client.post("/release_memory_occupation", json={"tags": ["weights"]})).status_code == 400
            assert (await client.post("/resume_memory_occupation")).status_code == 400
            assert (await client.post("/release_memory_occupation")).json()["success"]
            waiting = asyncio.ensure_future(client.post("/generate", json=body))
            assert (await client.post("/release_memory_occupation")).status_code == 400
            assert (await client.post("/continue_generation")).status_code == 400
            await asyncio.sleep(0.05)
            assert not waiting.done()
            tags = {"tags": ["weights", "kv_cache"]}
            assert (await client.post("/resume_memory_occupation", json=tags)).json()["success"]
            reply = (await waiting).json()
            assert reply["text"] == alone and reply["meta_info"]["cached_tokens"] == 0

    asyncio.run(run())


def model_folder(root: Path, name: str) -> str:
    (root / name).mkdir(parents=True)
    (root / name / "config.json").write_text("{}")
    (root / name / "model.safetensors").write_bytes(b"")
    return name


def test_weights_come_from_the_allowed_folder_only(tmp_path: Path) -> None:
    root, outside = tmp_path / "allowed", tmp_path / "secret"
    name = model_folder(root, "step-2")
    model_folder(tmp_path, "secret")
    (root / "link").symlink_to(outside)
    house = null_house(weight_update_folder=str(root))
    for wanted in ("../secret", str(outside), "link", ".", "step-2/../../secret", "a\x00b", "/etc"):
        [(status, body)] = steer(house, ("/update_weights_from_disk", {"model_path": wanted}))
        assert status == 403 and body["error"]["param"] == "model_path", wanted
    [(status, _)] = steer(house, ("/update_weights_from_disk", {"model_path": "missing"}))
    assert status == 400
    ok, info, reply = steer(
        house,
        ("/update_weights_from_disk", {"model_path": name, "weight_version": "v2", "abort_all_requests": True}),
        ("/model_info", None),
        ("/generate", {"text": "a", "sampling_params": GREEDY}),
    )
    assert ok[0] == 200 and ok[1]["success"] and info[1]["weight_version"] == "v2"
    assert reply[1]["meta_info"]["weight_version"] == "v2"
    for body in ({"model_path": name, "flush_cache": False}, {"model_path": name, "load_format": "pt"}, {}):
        assert steer(house, ("/update_weights_from_disk", body))[0][0] == 400
    [(status, _)] = steer(null_house(), ("/update_weights_from_disk", {"model_path": str(root / name)}))
    assert status == 403, "without the option nothing may be loaded"


def test_a_failed_update_leaves_the_server_serving(tmp_path: Path) -> None:
    house = null_house(weight_update_folder=str(tmp_path))
    name = model_folder(tmp_path, "m")
    engine = house.backend.core.engine  # type: ignore[attr-defined]
    build = engine._recipe.build

    def fail_once(path: str) -> Any:
        if path.endswith("m"):
            raise OSError("disk on fire")
        return build(path)

    object.__setattr__(engine._recipe, "build", fail_once)
    failed, info, reply = steer(
        house,
        ("/update_weights_from_disk", {"model_path": name, "weight_version": "v3"}),
        ("/model_info", None),
        ("/generate", {"text": "a", "sampling_params": GREEDY}),
    )
    assert failed[0] == 400 and "those before are in place" in failed[1]["error"]["message"]
    assert info[1]["weight_version"] == "default" and reply[0] == 200


def test_keep_pause_leaves_the_server_paused(tmp_path: Path) -> None:
    house = null_house(weight_update_folder=str(tmp_path))
    name = model_folder(tmp_path, "m")
    steer(house, ("/update_weights_from_disk", {"model_path": name, "keep_pause": True}))
    assert house.frontend.steering.is_paused
    after = steer(house, ("/continue_generation", {}), ("/generate", {"text": "a", "sampling_params": GREEDY}))
    assert [status for status, _ in after] == [200, 200]


def test_steps_are_recorded(tmp_path: Path) -> None:
    house = null_house(profiles=tmp_path)
    found = steer(
        house,
        ("/stop_profile", {}),
        ("/start_profile", {"num_steps": 3}),
        ("/start_profile", {}),
        ("/generate", {"text": "a", "sampling_params": GREEDY}),
        ("/stop_profile", {}),
        ("/start_profile", {"output_dir": "/somewhere"}),
    )
    assert [status for status, _ in found] == [400, 200, 400, 200, 200, 400]
    path = Path(found[4][1]["path"])
    assert path.parent == tmp_path and len(json.loads(path.read_text())["traceEvents"]) >= 3


@pytest.mark.parametrize(
    "path",
    [
        "/pause_generation",
        "/continue_generation",
        "/update_weights_from_disk",
        "/release_memory_occupation",
        "/resume_memory_occupation",
        "/start_profile",
        "/stop_profile",
    ],
)
def test_steering_asks_for_the_admin_key(path: str) -> None:
    house = make_house(api_key="user", admin_api_key="admin")
    assert ask(house, "POST", path, json={}, headers={"authorization": "Bearer user"}).status_code == 401
    assert ask(house, "POST", path, json={}).status_code == 401
