"""A process of the tree dies: clients hear of it, health tells the truth, the tree ends, nothing is orphaned."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from serving import RunningServer, serving

LONG = {"max_new_tokens": 2000, "ignore_eos": True}
PROCESSES = ("--tokenizer-worker-num", "1", "--detokenizer", "process")


def ask(server: RunningServer, stream: bool, answers: list[tuple[float, Any]]) -> None:
    body = {"text": "a long story", "sampling_params": LONG, "stream": stream}
    with httpx.Client(base_url=server.url, timeout=30) as client:
        if stream:
            with client.stream("POST", "/generate", json=body) as reply:
                lines = [line for line in reply.iter_lines() if line]
            answers.append((time.monotonic(), lines))
        else:
            reply = client.post("/generate", json=body)
            answers.append((time.monotonic(), reply))


@pytest.mark.parametrize(
    "victim", ["worker", *(pytest.param(name, marks=pytest.mark.long) for name in ("tokenizer", "detokenizer"))]
)
def test_a_killed_process_ends_the_tree_and_tells_every_client(tmp_path: Path, victim: str) -> None:
    with serving(tmp_path, "null", *PROCESSES, "--null-step-ms", "2", "--restart", "never") as server:
        everyone = [psutil.Process(server.process.pid), *server.children().values()]
        answers: list[tuple[float, Any]] = []
        clients = [threading.Thread(target=ask, args=(server, stream, answers)) for stream in (True, False)]
        for client in clients:
            client.start()
        time.sleep(0.7)
        assert not answers
        server.child(victim).kill()
        killed_at = time.monotonic()
        time.sleep(0.2)
        assert server.client.get("/health").status_code == 503
        for client in clients:
            client.join(10)
        assert len(answers) == 2
        for answered_at, answer in answers:
            assert answered_at - killed_at < 2
            if isinstance(answer, httpx.Response):
                assert answer.status_code >= 500
                assert victim in answer.json()["error"]["message"]
            else:
                assert '"error"' in answer[-2] and victim in answer[-2]
                assert answer[-1] == "data: [DONE]"
        assert server.process.wait(15) != 0
        assert not psutil.wait_procs(everyone, timeout=3)[1]


def test_children_never_outlive_a_killed_server(tmp_path: Path) -> None:
    with serving(tmp_path, "null", *PROCESSES) as server:
        children = list(server.children().values())
        assert len(children) == 3
        server.process.kill()
        server.process.wait(5)
        assert not psutil.wait_procs(children, timeout=5)[1]


def test_a_polite_stop_lets_running_streams_finish(tmp_path: Path) -> None:
    with serving(tmp_path, "null", *PROCESSES, "--null-step-ms", "2") as server:
        body = {"text": "to the end", "sampling_params": {"max_new_tokens": 300, "ignore_eos": True}, "stream": True}
        with server.client.stream("POST", "/generate", json=body) as reply:
            lines = reply.iter_lines()
            next(lines)
            server.process.terminate()
            time.sleep(0.2)
            with httpx.Client(base_url=server.url) as late:
                refused = late.post("/generate", json={"text": "too late"})
            rest = [line for line in lines if line]
        assert refused.status_code == 503 and "retry-after" in refused.headers
        assert rest[-1] == "data: [DONE]"
        assert '"completion_tokens":300' in rest[-2].replace(" ", "")
        assert server.process.wait(15) == 0
