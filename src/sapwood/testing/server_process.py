"""`sapwood serve` as a child of the test run: a real model behind every process that it has in production.

Owns the child, its log and its port; does not know what is asked of it. Invariant: leaving it ends the child, and a start that
fails shows the end of the log.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from sapwood.errors import EngineFailed

START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 30.0
POLL_S = 0.1
SHOWN_LOG_CHARS = 4000


class ServerProcess:
    """A context manager: inside, `model` is served at `url` (`base_url` for OpenAI's clients)."""

    def __init__(self, model: str, folder: Path, options: Sequence[str] = ()) -> None:
        """`folder` takes the log; `options` are flags of `sapwood serve`."""
        self.model = model
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / "sapwood.log"
        self._options = list(options)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def base_url(self) -> str:
        """Where OpenAI's clients find it."""
        return f"{self.url}/v1"

    def __enter__(self) -> ServerProcess:
        command = [sys.executable, "-m", "sapwood.cli.main", "serve", "--model-path", self.model, "--port", str(self.port)]
        with self.log.open("wb") as sink:
            environment = {**os.environ, "NO_COLOR": "1"}
            self._process = subprocess.Popen(
                [*command, *self._options], stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, env=environment
            )
        try:
            self._wait_ready(self._process)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s:
            if process.poll() is not None:
                raise EngineFailed(f"sapwood serve ended while it started:\n{self._log_end()}")
            if self._answers():
                return
            time.sleep(POLL_S)
        raise EngineFailed(f"sapwood serve was not ready within {START_TIMEOUT_S:.0f} s:\n{self._log_end()}")

    def _answers(self) -> bool:
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            urllib.request.urlopen(f"{self.url}/ready", timeout=5).close()
            return True
        return False

    def _log_end(self) -> str:
        return self.log.read_text(errors="replace")[-SHOWN_LOG_CHARS:]


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
