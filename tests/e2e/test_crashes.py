"""Processes of a real server are killed, hang, or are taken down by a request: clients get what they would have got anyway."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import storm
import tiny_llama
from serving import RunningServer, serving, wait_until

PROCESSES = (*storm.OPTIONS, "--null-step-ms", "3")
POISON = "a request that takes the engine down: \u2620"
SABOTAGE = """
import os
import sapwood.engine.null as null
launch, poison = null.NullEngine.launch, {poison!r}.encode()
def sabotaged(self, plan):
    for start in plan.starts:
        if bytes(start.token_ids.astype("u1")).startswith(poison):
            {deed}
    return launch(self, plan)
null.NullEngine.launch = sabotaged
"""


def sabotage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deed: str) -> None:
    """Make workers do `deed` when they are to run the poisonous request."""
    folder = tmp_path / "sabotage"
    folder.mkdir()
    (folder / "saboteur.py").write_text(SABOTAGE.format(poison=POISON, deed=deed))
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != 'ScikitBuildInplaceFinder']\n"
        "if 'sapwood.worker.null_main' in sys.orig_argv: import saboteur\n"
    )
    source = str(Path(__file__).parents[2] / "src")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(folder), source)))


def reports(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("crash-*.json"))]


def stats(server: RunningServer) -> dict[str, int]:
    return server.client.get("/server_info").json()["internal_states"][0]


def test_three_kills_under_a_mixed_load_change_nothing(tmp_path: Path) -> None:
    made = storm.calls(64, 60)
    with serving(tmp_path, "null", *PROCESSES, "--crash-dump-folder", str(tmp_path)) as server:
        calm = asyncio.run(storm.load(server, made))
        stormy, recovery_s = asyncio.run(storm.stormy_loads(server, made, list(storm.VICTIMS), random.Random(3)))
        assert len(recovery_s) == 3 and not any(isinstance(answer, dict) for answer in calm)
        for answers in stormy:
            for call, wanted, got in zip(made, calm, answers, strict=True):
                assert got == wanted, call
        wait_until(lambda: stats(server)["num_running"] == 0, 5, "rest")
        now = stats(server)
        assert now["num_free_pages"] + now["num_cached_pages"] == now["num_pages"] and now["law_violations_total"] == 0
    found = reports(tmp_path)
    assert {report["process"] for report in found} == {"worker 0", "tokenizer 0", "detokenizer"}
    assert all("SIGKILL" in report["what_happened"][0] for report in found)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_rank_of_two_is_killed_and_nothing_changes(tmp_path: Path) -> None:
    made, model = storm.calls(64, 60), tiny_llama.write(tmp_path / "tiny")
    options = (*storm.OPTIONS, *tiny_llama.OPTIONS, "--tp-size", "2", "--crash-dump-folder", str(tmp_path))
    with serving(tmp_path, str(model), *options) as server:
        calm = asyncio.run(storm.load(server, made))
        stormy, _ = asyncio.run(storm.stormy_loads(server, made, ["worker"] * 3, random.Random(2)))
        assert not any(isinstance(answer, dict) for answer in calm)
        for answers in stormy:
            for call, wanted, got in zip(made, calm, answers, strict=True):
                assert storm.is_same(got, wanted, tiny_llama.ROUNDING), call
    assert {report["process"] for report in reports(tmp_path)} == {"worker 0", "worker 1"}


@pytest.mark.long
def test_the_request_that_takes_the_engine_down_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sabotage(tmp_path, monkeypatch, "os.abort()")
    options = ("--detokenizer", "inline", "--null-step-ms", "3", "--crash-dump-folder", str(tmp_path))
    with serving(tmp_path, "null", *options) as server:
        answers: dict[str, httpx.Response] = {}

        def one(name: str, text: str) -> None:
            body = {"text": text, "sampling_params": {"max_new_tokens": 200, "ignore_eos": True, "temperature": 0}}
            with httpx.Client(base_url=server.url, timeout=100) as client:
                answers[name] = client.post("/generate", json=body)

        threads = [threading.Thread(target=one, args=(f"good {index}", f"a story {index}")) for index in range(3)]
        threads.append(threading.Thread(target=one, args=("bad", POISON)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(100)
        assert answers.pop("bad").status_code == 500
        assert all(answer.json()["meta_info"]["completion_tokens"] == 200 for answer in answers.values())
        assert server.client.get("/ready").status_code == 200
        assert server.generate("and on it goes", max_new_tokens=5)["meta_info"]["completion_tokens"] == 5
    found = reports(tmp_path)
    assert len(found) == 3 and len(found[-1]["suspects"]) == 1
    assert any("most recent call first" in line for line in found[0]["stacks"])


def test_a_step_that_hangs_is_dumped_and_its_worker_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    once = tmp_path / "once"
    sleep = "[__import__('ctypes').PyDLL(None).sleep(600) for _ in range(99)]"  # a signal ends one sleep; the lock is kept
    deed = f"os.path.exists({str(once)!r}) or (open({str(once)!r}, 'w').close(), {sleep})"
    sabotage(tmp_path, monkeypatch, deed)
    options = ("--detokenizer", "inline", "--watchdog-timeout", "1.5", "--crash-dump-folder", str(tmp_path))
    with serving(tmp_path, "null", *options) as server:
        server.generate("steps that are measured", max_new_tokens=20)
        answer = server.generate(POISON, max_new_tokens=20)
        assert answer["meta_info"]["completion_tokens"] == 20
        assert once.exists()
    (report,) = reports(tmp_path)
    assert "hung and was killed: step" in report["what_happened"][0]
    assert report["plan"]["rows"] and len(report["suspects"]) == 1 and report["steps"][-1].endswith("not finished")
    assert any("sabotaged" in line for line in report["stacks"]) and report["threads"]


LEAK = """
import sapwood.kvcache.pages as pages
take, flag = pages.PagePool.take, {flag!r}
def leaky(self, count):
    if not os.path.exists(flag):
        open(flag, "w").close()
        take(self, 1)
    return take(self, count)
pages.PagePool.take = leaky
"""


@pytest.mark.long
def test_a_page_lost_under_load_ends_the_worker_and_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    once = tmp_path / "once"
    sabotage(tmp_path, monkeypatch, "pass")
    with (tmp_path / "sabotage" / "saboteur.py").open("a") as file:
        file.write(LEAK.format(flag=str(once)))
    options = ("--detokenizer", "inline", "--null-step-ms", "3", "--crash-dump-folder", str(tmp_path))
    with serving(tmp_path, "null", *options) as server:
        disturbed = server.generate("a page is lost", max_new_tokens=200, ignore_eos=True)
        assert once.exists()
        assert server.generate("a page is lost", max_new_tokens=200, ignore_eos=True)["text"] == disturbed["text"]
        assert disturbed["meta_info"]["completion_tokens"] == 200 and stats(server)["law_violations_total"] == 0
    (report,) = reports(tmp_path)
    assert any("the law of pages is broken: 1 pages have no holder" in line for line in report["stacks"])


@pytest.mark.long
def test_a_crash_loop_ends_with_a_message_and_a_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flag = tmp_path / "broken"
    sabotage(tmp_path, monkeypatch, "pass")
    with (tmp_path / "sabotage" / "saboteur.py").open("a") as file:
        file.write(f"\nif os.path.exists({str(flag)!r}): os._exit(7)\n")
    options = ("--detokenizer", "inline", "--null-step-ms", "3", "--crash-dump-folder", str(tmp_path / "reports"))
    with serving(tmp_path, "null", *options) as server:
        flag.touch()
        lines: list[str] = []
        body = {"text": "a", "sampling_params": {"max_new_tokens": 1900, "ignore_eos": True}, "stream": True}

        def read() -> None:
            with httpx.Client(base_url=server.url, timeout=100) as client, client.stream("POST", "/generate", json=body) as reply:
                lines.extend(line for line in reply.iter_lines() if line)

        reader = threading.Thread(target=read)
        reader.start()
        time.sleep(0.5)
        server.child("worker").kill()
        assert server.process.wait(60) == 1
        reader.join(5)
    assert "5 times in a row" in lines[-2] and lines[-1] == "data: [DONE]"
    log = server.log.read_text()
    assert "it ended with status 7" in log and "The server ends" in log and "Traceback" not in log


@pytest.mark.long
def test_a_stop_during_recovery_still_finishes_what_is_open(tmp_path: Path) -> None:
    with serving(tmp_path, "null", *PROCESSES, "--crash-dump-folder", str(tmp_path)) as server:
        body = {"text": "to the end", "sampling_params": {"max_new_tokens": 300, "ignore_eos": True}, "stream": True}
        with server.client.stream("POST", "/generate", json=body) as reply:
            lines = reply.iter_lines()
            next(lines)
            server.child("worker").kill()
            time.sleep(0.3)
            server.process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]" and '"completion_tokens":300' in rest[-2]
        assert server.process.wait(20) == 0
