"""What is found out about a dead process, and that one that hangs is asked before it is killed."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from serverkit import make_house

from sapwood.core.plan import RowRun, StepPlan, no_copies
from sapwood.core.sampling import SamplingParams
from sapwood.messages.flight import FlightRecorder
from sapwood.messages.topology import Topology
from sapwood.server.inquest import Inquest
from sapwood.server.requests import GenerateRequest, PromptRequest

SECRET = [115, 101, 99, 114, 101, 116]


def scene(tmp_path: Path) -> tuple[Inquest, Topology]:
    """A server with one open request, which is in the last step with one that has ended."""
    house = make_house()
    prompt = PromptRequest(rid="r", token_ids=SECRET, params=SamplingParams(max_new_tokens=3))

    async def ask() -> None:
        house.frontend.open(GenerateRequest((prompt,)))

    asyncio.run(ask())
    topology = Topology(str(tmp_path))
    recorder = FlightRecorder(topology.flight, lambda: 1.0)
    recorder.launched(StepPlan(4, (), (), no_copies(), (RowRun(0, 0, 6, True), RowRun(1, 9, 1, True))), [1, 77])
    return Inquest(house.frontend, lambda: topology, tmp_path / "reports"), topology


def report(tmp_path: Path) -> dict[str, object]:
    (path,) = (tmp_path / "reports").iterdir()
    found: dict[str, object] = json.loads(path.read_text())
    return found


def test_a_death_is_described(tmp_path: Path) -> None:
    inquest, topology = scene(tmp_path)
    Path(topology.stacks("worker 0")).write_text("Fatal Python error: Segmentation fault\n")
    assert "SIGSEGV" in inquest.hold("worker 0", 4321, -11)
    found = report(tmp_path)
    assert found["what_happened"] == [
        "the worker 0 process is gone: it died of SIGSEGV: native code touched memory that is not its own",
        "1 requests were unfinished",
        "requests 1, 77 were in unfinished steps; step 4 was the last",
    ]
    assert found["suspects"] == [{"number": 1, "prompt_tokens": 6, "completion_tokens": 0}]
    assert found["stacks"] == ["Fatal Python error: Segmentation fault"]
    assert found["plan"] == {"step": 4, "suspects": [1, 77], "rows": [[0, 0, 6, 1], [1, 9, 1, 1]]}
    assert str(SECRET)[1:-1] not in json.dumps(found)


def test_a_helper_has_no_plan(tmp_path: Path) -> None:
    inquest, _ = scene(tmp_path)
    inquest.hold("tokenizer 0", 4321, 1)
    found = report(tmp_path)
    assert found["plan"] is None and found["steps"] == [] == found["suspects"]


def test_one_that_hangs_is_asked_and_killed_and_another_life_is_not_blamed_for_it(tmp_path: Path) -> None:
    inquest, topology = scene(tmp_path)
    code = (
        "import sys, time; from sapwood.observability.stacks import keep_stacks; keep_stacks(sys.argv[1]); print(1, flush=True)\n"
    )
    command = [sys.executable, "-c", code + "def stuck():\n while True: time.sleep(9)\nstuck()", topology.stacks("worker 0")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"1\n"
        asyncio.run(inquest.end("worker 0", "step 4 has run for 99 s", {"worker 0": process.pid}))
        assert process.wait(5) == -9
    assert "SIGKILL" in inquest.hold("worker 0", process.pid + 1, -9)
    assert inquest.hold("worker 0", process.pid, -9) == "it hung and was killed: step 4 has run for 99 s"
    latest = json.loads(
        max((tmp_path / "reports").iterdir(), key=lambda path: path.name.endswith(f"-{process.pid}.json")).read_text()
    )
    assert any("in stuck" in line for line in latest["stacks"])
    assert any(line.startswith(f"worker 0: {process.pid} ") for line in latest["threads"])
