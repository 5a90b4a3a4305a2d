"""The order of recovery, whatever dies while it is under way: the dead are started, survivors forget, everybody is replayed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sapwood.server.blame as blame_module
from sapwood.core.plan import RowRun, StepPlan, no_copies
from sapwood.errors import EngineFailed, SapwoodError, Unavailable
from sapwood.messages.flight import FlightRecorder
from sapwood.messages.topology import Topology
from sapwood.messages.types import Ready, StepStats
from sapwood.observability.metrics import Metrics
from sapwood.server.limits import ServingState
from sapwood.server.recovery import Household, Recovery, unit_of

UNITS = ("worker", "detokenizer", "tokenizer 0")
NAMES = ("worker 0", "worker 1", "detokenizer", "tokenizer 0")


@dataclass
class FakeReplica:
    """Supervisor, link and registry in one; the worker computes nothing, but remembers what it holds."""

    folder: Path
    poison: frozenset[int] = frozenset()
    counts: dict[int, int] = field(default_factory=lambda: {1: 4, 2: 0, 3: 1})
    story: list[str] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    running: set[int] = field(default_factory=set)
    lost: SapwoodError | None = None
    worker_epoch: int = 0
    is_holding: bool = False
    is_deaf: bool = False
    metrics: Metrics = field(default_factory=lambda: Metrics("fake"))

    def __post_init__(self) -> None:
        self.topology = Topology(str(self.folder))
        self.pids = {name: index for index, name in enumerate(NAMES)}
        self.frontend = SimpleNamespace(
            state=ServingState.READY, stats=StepStats(), num_open=3, replays=self, metrics=self.metrics
        )
        self.recovery = Recovery(
            Household(
                supervisor=self,  # type: ignore[arg-type]
                link=self,  # type: ignore[arg-type]
                frontend=self.frontend,  # type: ignore[arg-type]
                specs=lambda topology: [SimpleNamespace(name=name, topology=topology) for name in NAMES],  # type: ignore[misc]
                on_worker=lambda ready: self.story.append("limits"),
                give_up=self._give_up,
                startup_timeout_s=5.0,
            )
        )

    # the supervisor
    async def kill(self, names: list[str]) -> None:
        await asyncio.sleep(0)
        self.story.append("kill " + ",".join(names))

    def start(self, spec: Any) -> None:
        self.story.append(f"start {spec.name}")
        if spec.name == "worker 0":
            self.worker_epoch, self.running = spec.topology.epoch, set()

    async def wait_ready(self, timeout_s: float, names: list[str]) -> dict[str, Ready]:
        for _ in range(3):
            await asyncio.sleep(0)
        return {name: Ready(name, 1) for name in names}

    # the link
    @property
    def epoch(self) -> int:
        return self.topology.epoch

    events_address = "there"

    def redirect(self, topology: Topology, units: set[str]) -> None:
        self.topology = topology
        self.story.append("redirect " + ",".join(sorted(units)))

    # the registry
    @property
    def unfinished(self) -> dict[int, int]:
        return dict(self.counts)

    def hold(self) -> None:
        self.is_holding = True

    async def renew(self, ask: int, events_address: str) -> None:
        await asyncio.sleep(0)
        if self.is_deaf:
            self.is_deaf = False
            raise Unavailable("the worker did not answer")
        self.story.append("renew")
        self.worker_epoch, self.running = self.epoch, set()

    def replay(self, numbers: list[int] | None = None) -> None:
        assert self.worker_epoch == self.epoch, "the worker still holds requests of an earlier epoch"
        assert not self.running
        self.is_holding = numbers is not None
        self.running = set(self.counts if numbers is None else numbers)
        self.story.append(f"replay {sorted(self.running)}")
        asyncio.get_running_loop().call_soon(self._run)

    def fail(self, number: int, error: SapwoodError) -> None:
        self.failed.append(number)
        del self.counts[number]

    def _run(self) -> None:
        """The worker launches a step for what it holds."""
        if not self.running:
            return
        recorder = FlightRecorder(self.topology.flight, lambda: 1.0)
        plan = StepPlan(1, (), (), no_copies(), tuple(RowRun(0, 0, 1, True) for _ in self.running))
        recorder.launched(plan, sorted(self.running))
        recorder.close()
        if self.running & self.poison:
            self.recovery.on_death("worker 0", "it died of a poison")
        else:
            for number in self.running:
                self.counts[number] += 1

    def _give_up(self, error: SapwoodError) -> None:
        self.lost = error
        self.frontend.state = ServingState.FAILED


async def settle(replica: FakeReplica) -> None:
    async with asyncio.timeout(10):
        while replica.frontend.state is ServingState.RECOVERING:
            await asyncio.sleep(0.001)


def play(replica: FakeReplica, deaths: list[tuple[int, str]]) -> None:
    """Processes die, each so many turns of the event loop after the one before."""

    async def run() -> None:
        guard = asyncio.ensure_future(replica.recovery.run())
        for turns, name in deaths:
            for _ in range(turns):
                await asyncio.sleep(0)
            replica.recovery.on_death(name, "it died")
        await settle(replica)
        guard.cancel()

    asyncio.run(run())


def test_a_worker_goes_with_all_its_ranks_and_everybody_is_replayed(tmp_path: Path) -> None:
    replica = FakeReplica(tmp_path)
    play(replica, [(1, "worker 1"), (0, "worker 0")])
    assert replica.story == [
        "kill worker 0,worker 1", "redirect worker", "start worker 0", "start worker 1", "limits", "replay [1, 2, 3]",
    ]  # fmt: skip
    assert replica.epoch == 1 and replica.recovery.num_restarts == 1 and len(replica.recovery.durations_s) == 1
    shown = replica.metrics.render().decode()
    assert 'process_deaths_total{model_name="fake",process="worker 1"} 1.0' in shown
    assert 'recovery_seconds_count{model_name="fake"} 1.0' in shown


def test_a_worker_that_survives_forgets_before_anything_is_replayed(tmp_path: Path) -> None:
    replica = FakeReplica(tmp_path)
    play(replica, [(1, "detokenizer")])
    assert replica.story == ["kill detokenizer", "redirect detokenizer", "start detokenizer", "renew", "replay [1, 2, 3]"]


def test_a_tokenizer_disturbs_nobody_who_runs(tmp_path: Path) -> None:
    replica = FakeReplica(tmp_path)
    play(replica, [(1, "tokenizer 0")])
    assert replica.story == ["kill tokenizer 0", "redirect tokenizer 0", "start tokenizer 0"]
    assert replica.epoch == 0 and replica.frontend.state is ServingState.READY


def test_a_survivor_that_does_not_answer_is_started_again(tmp_path: Path) -> None:
    replica = FakeReplica(tmp_path)
    replica.is_deaf = True
    play(replica, [(1, "detokenizer")])
    assert "start worker 0" in replica.story and replica.story[-1] == "replay [1, 2, 3]"


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(deaths=st.lists(st.tuples(st.integers(0, 25), st.sampled_from(NAMES)), max_size=8))
def test_whenever_they_die_all_come_back(tmp_path_factory: pytest.TempPathFactory, deaths: list[tuple[int, str]]) -> None:
    delays = blame_module.BACK_OFF_S
    blame_module.BACK_OFF_S = (0.0,)
    try:
        replica = FakeReplica(tmp_path_factory.mktemp("r"))
        replica.recovery._back_s = -1e9  # whoever lived long is no part of a crash loop
        play(replica, deaths)
    finally:
        blame_module.BACK_OFF_S = delays
    if replica.lost is None:
        assert replica.frontend.state is ServingState.READY and not replica.is_holding
        assert replica.worker_epoch == replica.epoch
        for name in {name for _, name in deaths}:
            assert any(line.startswith("start") and unit_of(line[6:]) == unit_of(name) for line in replica.story)
        if any(not name.startswith("tokenizer") for _, name in deaths):
            assert [line for line in replica.story if line.startswith(("replay", "renew"))][-1] == "replay [1, 2, 3]"
    assert replica.failed == []


def test_the_one_that_crashes_alone_fails_and_the_others_go_on(tmp_path: Path) -> None:
    replica = FakeReplica(tmp_path, poison=frozenset({2}))
    play(replica, [(1, "worker 0")])
    assert replica.failed == [2] and replica.lost is None
    assert replica.story[-1] == "replay [1, 3]"
    assert {"replay [1]", "replay [2]", "replay [3]"} & set(replica.story) >= {"replay [2]"}


def test_a_crash_loop_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blame_module, "BACK_OFF_S", (0.0,))
    replica = FakeReplica(tmp_path)

    async def run() -> None:
        guard = asyncio.ensure_future(replica.recovery.run())
        replica.recovery._back_s = 1e12  # no time passes
        while replica.lost is None:
            replica.running = set()
            replica.counts = {}
            replica.recovery.on_death("worker 0", "it died of SIGSEGV")
            replica.recovery._back_s = 1e12
            await asyncio.sleep(0.01)
        guard.cancel()

    asyncio.run(run())
    assert isinstance(replica.lost, EngineFailed)
    assert "5 times in a row" in replica.lost.message and "SIGSEGV" in replica.lost.message
