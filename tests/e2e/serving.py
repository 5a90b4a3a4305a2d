"""Starting a real server, processes and all, for end-to-end tests."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class RunningServer:
    """A `sapwood serve` process tree and a client for it."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = httpx.Client(base_url=self.url, timeout=60)

    def children(self) -> dict[str, psutil.Process]:
        """The server's child processes by the last part of their module's package: worker, tokenizer, detokenizer."""
        found = {}
        for child in psutil.Process(self.process.pid).children(recursive=True):
            words = child.cmdline()
            if "-m" in words:
                found[words[words.index("-m") + 1].split(".")[1] + str(len(found))] = child
        return found

    def child(self, kind: str) -> psutil.Process:
        """The first child of that kind."""
        return next(process for name, process in self.children().items() if name.startswith(kind))

    def generate(self, text: str, **sampling_params: Any) -> dict[str, Any]:
        """One greedy, not streamed `/generate`."""
        body = {"text": text, "sampling_params": {"temperature": 0, **sampling_params}}
        reply = self.client.post("/generate", json=body)
        assert reply.status_code == 200, reply.text
        result: dict[str, Any] = reply.json()
        return result

    def stop(self, timeout_s: float = 30) -> int:
        """SIGTERM, then the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)


def wait_until(condition: Any, timeout_s: float, what: str) -> None:
    """Poll until `condition()` is true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.02)


@contextlib.contextmanager
def serving(tmp_path: Path, model: str, *options: str) -> Iterator[RunningServer]:
    """`sapwood serve` on a free port, ready; afterwards everything that it started must be gone."""
    port = free_port()
    log = tmp_path / f"server-{port}.log"
    command = [sys.executable, "-m", "sapwood.cli.main", "serve", "--model-path", model, "--port", str(port), *options]
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, env={**os.environ, "NO_COLOR": "1"})
    server = RunningServer(process, f"http://127.0.0.1:{port}", log)
    try:
        wait_until(lambda: _is_ready(server), 90, "ready\n" + log.read_text(errors="replace"))
        everyone = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        yield server
    finally:
        server.client.close()
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
        if process.poll() is None:
            process.kill()
            process.wait(10)
    _, alive = psutil.wait_procs(everyone, timeout=5)
    assert not alive, f"orphans: {alive}"


def _is_ready(server: RunningServer) -> bool:
    assert server.process.poll() is None, server.log.read_text(errors="replace")
    try:
        return server.client.get("/ready").status_code == 200
    except httpx.TransportError:
        return False
