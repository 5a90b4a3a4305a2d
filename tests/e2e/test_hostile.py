"""A real process tree under ill treatment: signals at bad moments, hanging children, abuse over the socket."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from serving import RunningServer, free_port, serving, wait_until

ALL_PROCESSES = ("--tokenizer-worker-num", "1", "--detokenizer", "process")
ENDLESS = {"text": "on and on", "stream": True}
IMPATIENT = """
import sys
import sapwood.server.launch as launch
from sapwood.cli.main import main
launch.PROBE_INTERVAL_S = 0.2
sys.exit(main())
"""


@pytest.fixture
def socket_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the server puts its socket folder (short: socket paths are limited)."""
    root = Path(tempfile.mkdtemp(prefix="sw"))
    monkeypatch.setenv("TMPDIR", str(root))
    yield root
    shutil.rmtree(root)


def start(log: Path, *options: str, code: str | None = None) -> tuple[subprocess.Popen[bytes], str]:
    port = free_port()
    program = ["-m", "sapwood.cli.main"] if code is None else ["-c", code]
    command = [sys.executable, *program, "serve", "--model-path", "null", "--port", str(port), *options]
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, env={**os.environ, "NO_COLOR": "1"})
    return process, f"http://127.0.0.1:{port}"


def status(url: str, path: str) -> int:
    try:
        return httpx.get(url + path, timeout=5).status_code
    except httpx.TransportError:
        return 0


def is_at_rest(client: httpx.Client) -> bool:
    info = client.get("/server_info").json()
    now = info["internal_states"][0]
    pages = now["num_free_pages"] + now["num_cached_pages"]
    return info["num_open_requests"] == now["num_running"] == now["num_waiting"] == 0 and pages == now["num_pages"]


def read_stream(url: str, lines: list[str], num_tokens: int) -> None:
    body = {**ENDLESS, "sampling_params": {"max_new_tokens": num_tokens, "ignore_eos": True}}
    with httpx.Client(base_url=url, timeout=60) as client, client.stream("POST", "/generate", json=body) as reply:
        lines += [line for line in reply.iter_lines() if line]


def test_a_signal_while_starting_ends_everything_cleanly(tmp_path: Path, socket_root: Path) -> None:
    process, _ = start(tmp_path / "log", *ALL_PROCESSES)
    wait_until(lambda: len(psutil.Process(process.pid).children()) == 3, 30, "three children")
    children = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    assert not psutil.wait_procs(children, timeout=3)[1]
    assert list(socket_root.iterdir()) == []


def test_impatient_interrupts_still_end_cleanly(tmp_path: Path, socket_root: Path) -> None:
    with serving(tmp_path, "null", *ALL_PROCESSES, "--null-step-ms", "5") as server:
        lines: list[str] = []
        reader = threading.Thread(target=read_stream, args=(server.url, lines, 4000))
        reader.start()
        wait_until(lambda: server.client.get("/server_info").json()["num_open_requests"] == 1, 5, "an open request")
        for _ in range(1000):  # to the very end, when the loop's handlers are gone
            server.process.send_signal(signal.SIGINT)
            time.sleep(0.01)
            if server.process.poll() is not None:
                break
        assert server.process.wait(10) == 0
        reader.join(5)
        assert lines[-1] == "data: [DONE]"
        assert json.loads(lines[-2].removeprefix("data: "))["meta_info"]["finish_reason"]["type"] == "abort"
        assert "Traceback" not in server.log.read_text()
    assert list(socket_root.iterdir()) == []


def test_a_child_killed_while_starting_fails_the_start(tmp_path: Path, socket_root: Path) -> None:
    process, url = start(tmp_path / "log", *ALL_PROCESSES)
    wait_until(lambda: len(psutil.Process(process.pid).children()) == 3, 30, "three children")
    children = psutil.Process(process.pid).children()
    children[0].kill()
    seen = set()
    while process.poll() is None:
        seen.add(status(url, "/health"))
        time.sleep(0.1)
    assert process.wait() == 1 and seen <= {0, 503}
    assert not psutil.wait_procs(children, timeout=3)[1]
    assert "died (status -9)" in (tmp_path / "log").read_text()
    assert list(socket_root.iterdir()) == []


def test_a_hanging_process_is_reported_until_it_goes_on(tmp_path: Path) -> None:
    options = (*ALL_PROCESSES, "--null-step-ms", "3", "--restart", "never", "--watchdog-timeout", "0.7")
    process, url = start(tmp_path / "log", *options, code=IMPATIENT)
    try:
        wait_until(lambda: status(url, "/ready") == 200, 60, "ready")
        server = RunningServer(process, url, tmp_path / "log")
        for victim in ("worker", "tokenizer", "detokenizer"):
            lines: list[str] = []
            reader = threading.Thread(target=read_stream, args=(url, lines, 250))
            reader.start()
            wait_until(lambda: server.client.get("/server_info").json()["num_open_requests"] == 1, 5, "an open request")
            child = server.child(victim)
            child.suspend()
            wait_until(lambda: status(url, "/health") == 503, 5, f"the silence of the {victim}")
            assert process.poll() is None
            refused = server.client.post("/generate", json={"text": "a"})
            assert refused.status_code == 503 and "retry-after" in refused.headers
            child.resume()
            wait_until(lambda: status(url, "/health") == 200, 5, f"the {victim} again")
            reader.join(60)
            assert lines[-1] == "data: [DONE]" and '"completion_tokens":250' in lines[-2]
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert "has not answered" in (tmp_path / "log").read_text()


def send_raw(url: str, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=10) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return connection.recv(4096)


def test_a_storm_of_abuse_leaves_no_trace(tmp_path: Path) -> None:
    with serving(tmp_path, "null", "--max-total-tokens", "2048", "--max-running-requests", "16") as server:
        before = server.generate("the canary", max_new_tokens=30)["text"]
        call = json.dumps({**ENDLESS, "sampling_params": {"max_new_tokens": 60, "ignore_eos": True}}).encode()
        head = b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(call)
        idle = [socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) for _ in range(300)]
        for number, connection in enumerate(idle):
            connection.sendall((head + call)[: number * len(head + call) // 150])  # every second one a whole request
        for noise in (b"\x00" * 100, b"GET / HTTP/9\r\n\r\n", head, head + call[:-1], (head + call) * 3):
            send_raw(server.url, noise)
        odd: list[dict[str, Any]] = [
            {"text": "\x00"},
            {"input_ids": [[1], [2]]},
            {"text": "a", "rid": "x"},
            {"text": []},
            {"a": [[[]]]},
        ]
        for body in odd:
            assert server.client.post("/generate", json=body).status_code in (200, 400)
        assert server.client.get("/health").status_code == 200
        for connection in idle:
            connection.close()
        assert server.client.post("/abort_request", json={"abort_all": True}).status_code == 200
        wait_until(lambda: is_at_rest(server.client), 10, "an idle pool")
        assert server.generate("the canary", max_new_tokens=30)["text"] == before
        assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize("length", [-1, 0, 1])
def test_prompts_around_the_size_of_a_small_pool(small_pool: RunningServer, length: int) -> None:
    size = small_pool.client.get("/server_info").json()["max_total_num_tokens"]
    for max_new, legal in ((0, length <= 0), (1, length < 0), (2, False), (None, length < 0)):
        body = {"input_ids": [97] * (size + length), "sampling_params": {"max_new_tokens": max_new, "ignore_eos": True}}
        reply = small_pool.client.post("/generate", json=body)
        assert reply.status_code == (200 if legal else 400), reply.text
        if legal:
            assert reply.json()["meta_info"]["completion_tokens"] == min(1 if max_new is None else max_new, 1)
        else:
            assert str(size) in reply.json()["error"]["message"]
    wait_until(lambda: is_at_rest(small_pool.client), 5, "an idle pool")


@pytest.fixture(scope="module")
def small_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with serving(tmp_path_factory.mktemp("pool"), "null", "--max-total-tokens", "100") as server:
        yield server
