"""Runs the programs that are measured, and puts loads on those that serve.

Owns processes and ports; knows no engine. Invariant: whatever was started has ended when its call is over, and the error of a
program that fails has its own words.
"""

from __future__ import annotations

import shlex
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from comparison.lines import Load
from sapwood.bench.http import endpoint
from sapwood.bench.serve import measure_serve
from sapwood.errors import ConfigError, EngineFailed

RUN_TIMEOUT_S, START_TIMEOUT_S = 1800.0, 120.0


def find_program(path: Path, hint: str) -> None:
    """Raises ConfigError with the hint where there is no program at `path`."""
    if not path.is_file():
        raise ConfigError(f"there is no {path.name} in {path.parent}; {hint}")


def output_of(command: Sequence[str], given: str = "") -> str:
    """Standard output of a program that reads `given`; raises EngineFailed with the end of standard error."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, input=given)
    if done.returncode:
        raise EngineFailed(f"{shlex.join(command[:3])} ... ended with {done.returncode}: {done.stderr[-500:].strip()}")
    return done.stdout


def seconds_over_http(command: Sequence[str], port: int, health: str, load: Load) -> float:
    """Duration of a load on a fresh server; raises EngineFailed when a request failed or was cut short."""
    conversations = load.conversations()
    with running_server(command, port, health) as url:
        report = measure_serve(endpoint(url), None, load.name, conversations, load.at_once)
    wanted = sum(conversation.first.num_tokens_wanted for conversation in conversations)
    if report.num_failed or report.output_tokens != wanted:
        raise EngineFailed(
            f"{command[0]}: {report.num_failed} requests failed {report.errors}, {report.output_tokens} of {wanted} ids"
        )
    return report.duration_s


@contextmanager
def running_server(command: Sequence[str], port: int, health: str) -> Iterator[str]:
    """Start a server, wait until it answers at `health`, stop it afterwards; yields its address."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        try:
            deadline_s = time.monotonic() + START_TIMEOUT_S
            while not _answers(f"http://127.0.0.1:{port}{health}"):
                if process.poll() is not None or time.monotonic() > deadline_s:
                    log.seek(0)
                    raise EngineFailed(f"{command[0]} did not start: {log.read()[-500:].decode(errors='replace').strip()}")
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
