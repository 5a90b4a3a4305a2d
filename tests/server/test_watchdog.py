"""Hung steps are told from long ones by what was measured, reports can be read by a person, and never stand in the way."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from sapwood.messages.flight import StepRecord
from sapwood.observability.stacks import ask_stacks, read_stacks, threads_of
from sapwood.server.crash import MAX_REPORTS, CrashReport, describe_exit, describe_steps, write_report
from sapwood.server.watchdog import StepWatchdog, overdue


def step(number: int, launched_s: float, ended_s: float, num_tokens: int = 1) -> StepRecord:
    return StepRecord(number, launched_s, ended_s, 1, num_tokens, 0, 0)


KEEPING = "import sys; from sapwood.observability.stacks import keep_stacks; keep_stacks(sys.argv[1]); "
DECODES = [step(number, number * 0.1, number * 0.1 + 0.1) for number in range(1, 11)]


def test_a_step_may_take_ten_times_what_its_size_makes_likely() -> None:
    running = step(11, 1.1, 0.0, num_tokens=100)  # a hundred tokens where one took 0.1 s: up to 100 s
    assert overdue([*DECODES, running], 100.0, floor_s=1.0) == ""
    assert "step 11 (1 rows, 100 tokens)" in overdue([*DECODES, running], 102.0, floor_s=1.0)
    small = step(11, 1.1, 0.0)
    assert overdue([*DECODES, small], 2.0, floor_s=0.5) == "" != overdue([*DECODES, small], 2.3, floor_s=0.5)


def test_the_floor_holds_and_the_first_step_has_more() -> None:
    small = step(11, 1.1, 0.0)
    assert overdue([*DECODES, small], 61.0, floor_s=60.0) == "" != overdue([*DECODES, small], 62.0, floor_s=60.0)
    first = step(1, 5.0, 0.0)
    assert overdue([first], 300.0, floor_s=60.0) == "" != overdue([first], 306.0, floor_s=60.0)


def test_a_step_that_waits_for_the_one_before_it_has_not_begun() -> None:
    steps = [*DECODES, step(11, 1.1, 50.0), step(12, 1.2, 0.0)]
    assert overdue(steps, 50.5, floor_s=1.0) == ""
    assert overdue(DECODES, 1e9, floor_s=1.0) == "" and overdue([], 1e9, floor_s=1.0) == ""


def test_the_watchdog_barks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    monkeypatch.setattr("sapwood.server.watchdog.CHECK_INTERVAL_S", 0.001)
    monkeypatch.setattr("sapwood.server.watchdog.read_steps", lambda path: [step(1, -1e9, 0.0)])

    async def run() -> None:
        watching = asyncio.ensure_future(StepWatchdog(lambda: "a record", heard.append, 1.0).run())
        await asyncio.sleep(0.05)
        watching.cancel()

    asyncio.run(run())
    assert len(heard) == 1 and heard[0].startswith("step 1 ")


def report(pid: int) -> CrashReport:
    return CrashReport(
        what_happened=["the worker 0 process is gone: it died of SIGSEGV"],
        time="now",
        process="worker 0",
        pid=pid,
        exit_status=-11,
        epoch=3,
        suspects=[{"number": 7}],
        plan=None,
        steps=describe_steps(DECODES),
        stacks=["Thread 1"],
        threads=[],
        memory=[],
        platform="here",
    )


def test_a_report_begins_with_what_happened(tmp_path: Path) -> None:
    path = write_report(tmp_path / "new" / "folder", report(1))
    assert path is not None
    text = path.read_text()
    assert text.splitlines()[1].strip() == '"what_happened": ['
    assert json.loads(text)["steps"][0] == "step 1: 1 rows, 1 tokens, 0 starts, 100.0 ms"


def test_old_reports_go_and_a_folder_that_cannot_be_written_is_only_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for pid in range(MAX_REPORTS + 5):
        assert write_report(tmp_path, report(pid))
    assert len(list(tmp_path.iterdir())) == MAX_REPORTS
    (tmp_path / "file").write_text("")
    assert write_report(tmp_path / "file", report(1)) is None
    assert "choose another --crash-dump-folder" in caplog.text


@pytest.mark.parametrize(("code", "words"), [(-9, "SIGKILL"), (-6, "SIGABRT: native code"), (1, "status 1"), (-99, "signal 99")])
def test_exits_in_words(code: int, words: str) -> None:
    assert words in describe_exit(code)


def test_a_process_tells_what_its_threads_do_even_while_it_holds_the_interpreter_lock(tmp_path: Path) -> None:
    path = str(tmp_path / "stacks")
    busy = "import ctypes; print(1, flush=True); ctypes.PyDLL(None).sleep(60)"  # PyDLL keeps the lock
    with subprocess.Popen([sys.executable, "-c", KEEPING + busy, path], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"1\n"
        ask_stacks(process.pid, path)
        assert any("most recent call first" in line for line in read_stacks(path))
        assert any(line.startswith(str(process.pid)) for line in threads_of(process.pid))
        process.kill()
    ask_stacks(process.pid, path)  # gone: nothing happens
    assert read_stacks(str(tmp_path / "none")) == [] == threads_of(2**22 + 1)


def test_an_exception_that_ends_a_process_is_kept(tmp_path: Path) -> None:
    path = str(tmp_path / "stacks")
    done = subprocess.run(
        [sys.executable, "-c", KEEPING + "raise ValueError('the reason')", path], capture_output=True, check=False
    )
    assert done.returncode == 1 and b"the reason" in done.stderr
    assert read_stacks(path)[-1] == "ValueError: the reason"
