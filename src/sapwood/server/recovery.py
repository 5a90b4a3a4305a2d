"""Bringing a replica back after a death: start the dead again, let survivors forget, replay what is unfinished.

Owns the order of these and the decision to give up; processes, sockets, registry and blame are its parts'. Invariant: whatever
dies while it works, it begins again from what is dead then; the epoch rises before anything else happens, so that nothing of the
past reaches a client twice.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from sapwood.errors import EngineFailed, SapwoodError
from sapwood.messages.flight import read_plan
from sapwood.messages.topology import Topology
from sapwood.messages.types import Ready, StepStats
from sapwood.server.blame import Blame
from sapwood.server.frontend import Frontend
from sapwood.server.limits import ServingState
from sapwood.server.link import ReplicaLink
from sapwood.server.supervisor import ChildSpec, Supervisor

STABLE_S = 60.0
"""A process that lived so long is no part of a crash loop."""
POLL_S = 0.02
RENEW_ASK = -1
"""Numbers of questions that recovery asks count down from here; the frontend's count up."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Household:
    """What recovery works with. `specs` makes the orders of all processes for a topology; `on_worker` hears that a new worker is
    ready; `give_up` ends the server."""

    supervisor: Supervisor
    link: ReplicaLink
    frontend: Frontend
    specs: Callable[[Topology], list[ChildSpec]]
    on_worker: Callable[[Ready], None]
    give_up: Callable[[SapwoodError], None]
    startup_timeout_s: float


def unit_of(process: str) -> str:
    """What is started again together: the ranks of a worker are one."""
    return "worker" if process.startswith("worker") else process


@dataclass(slots=True)
class Recovery:
    """Told of each death by `on_death`; does its work in `run`."""

    house: Household
    blame: Blame = field(default_factory=Blame)
    num_restarts: int = 0
    durations_s: deque[float] = field(default_factory=lambda: deque(maxlen=100))
    _dead: set[str] = field(default_factory=set)
    _starting: set[str] = field(default_factory=set)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _attempt: asyncio.Task[None] | None = None
    _worker_epoch: int = 0
    _asks: itertools.count[int] = field(default_factory=lambda: itertools.count(RENEW_ASK, -1))
    _began_s: float = 0.0
    _back_s: float = field(default_factory=time.monotonic)
    _tokens_then: int = 0

    async def run(self) -> None:
        """Bring back what dies, until cancelled or until there is no hope."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._dead and not self.blame.is_hopeless:
                self._attempt = asyncio.ensure_future(self._bring_back())
                try:
                    await asyncio.wait((self._attempt,))
                finally:
                    self._attempt.cancel()
                if not self._attempt.cancelled():
                    self._conclude(self._attempt.exception())

    def on_death(self, process: str, how: str) -> None:
        """A process has died, as `how` says."""
        unit, house = unit_of(process), self.house
        if unit in self._dead:  # another rank of a group that is going down
            return
        if not self._began_s:
            self._began_s = time.monotonic()
        self._dead |= {unit} | self._starting
        self._starting = set()
        house.frontend.metrics.observe_death(process)
        if house.frontend.state in (ServingState.READY, ServingState.STALLED):
            house.frontend.state = ServingState.RECOVERING
        self._blame(unit)
        if not unit.startswith("tokenizer"):
            self._raise_epoch()
            house.frontend.replays.hold()
        if self.blame.is_hopeless:
            times = f"{self.blame.num_strikes} times in a row without making a token"
            house.give_up(EngineFailed(f"the {process} process died {times}; the last time {how}. The server ends"))
        if self._attempt is not None:
            self._attempt.cancel()
        self._wake.set()

    # --------------------------------------------------------------------------------------------------- internals
    def _blame(self, unit: str) -> None:
        frontend, counts = self.house.frontend, self.house.frontend.replays.unfinished
        plan = read_plan(self.house.link.topology.flight) if unit == "worker" else None
        has_served = time.monotonic() - self._back_s > STABLE_S or frontend.stats.generated_tokens_total > self._tokens_then
        culprit = self.blame.crashed(plan.suspects if plan else (), counts, has_served=has_served)
        self._tokens_then = frontend.stats.generated_tokens_total
        if culprit is not None:
            logger.error("request %d takes the worker down whenever it runs, alone too; it is failed", culprit)
            message = "this request takes the engine down whenever it runs; do not send it again, and report it"
            frontend.replays.fail(culprit, EngineFailed(message))

    def _raise_epoch(self) -> None:
        self.house.link.topology = self.house.link.topology.next_epoch()

    async def _bring_back(self) -> None:
        house = self.house
        await asyncio.sleep(self.blame.back_off_s)
        units = set(self._dead)
        topology = house.link.topology.reborn(*units)
        specs = [spec for spec in house.specs(topology) if unit_of(spec.name) in units]
        names = [spec.name for spec in specs]
        await house.supervisor.kill(names)
        house.link.redirect(topology, units)
        self._dead -= units
        self._starting = units
        if "worker" in units:
            self._worker_epoch = house.link.epoch
            house.frontend.stats, self._tokens_then = StepStats(), 0
        for spec in specs:
            house.supervisor.start(spec)
        self.num_restarts += len(units)
        ready = await house.supervisor.wait_ready(house.startup_timeout_s, names)
        self._starting = set()
        if "worker" in units:
            house.on_worker(ready["worker 0"])
        if house.frontend.replays.is_holding:
            await self._resume()

    async def _resume(self) -> None:
        """Replay everybody; those under suspicion one at a time before."""
        replays = self.house.frontend.replays
        while (number := self.blame.next_alone(replays.unfinished)) is not None:
            logger.warning("request %d ran when the worker died twice; it is replayed alone", number)
            await self._enter_epoch()
            num_ids = replays.unfinished[number]
            replays.replay([number])
            while replays.unfinished.get(number) == num_ids:
                await asyncio.sleep(POLL_S)
            self.blame.passed()
            self._raise_epoch()
        await self._enter_epoch()
        replays.replay()

    async def _enter_epoch(self) -> None:
        """Make sure that the worker has forgotten all requests of earlier epochs."""
        link = self.house.link
        if self._worker_epoch != link.epoch:
            await self.house.frontend.replays.renew(next(self._asks), link.events_address)
            self._worker_epoch = link.epoch

    def _conclude(self, error: BaseException | None) -> None:
        """An attempt has ended by itself."""
        house = self.house
        if error is None and self._dead:  # somebody died at its very end
            return
        if error is None:
            self._back_s = time.monotonic()
            self.durations_s.append(self._back_s - self._began_s)
            self._began_s = 0.0
            house.frontend.metrics.observe_recovery(self.durations_s[-1])
            if house.frontend.state is ServingState.RECOVERING:
                house.frontend.state = ServingState.READY
            logger.warning("recovered in %.2f s; %d unfinished requests go on", self.durations_s[-1], house.frontend.num_open)
        elif isinstance(error, EngineFailed):  # a process that did not become ready, or died on the way (then it is in `_dead`)
            if not self._dead:
                house.give_up(error)
        elif isinstance(error, SapwoodError):  # the worker that survived does not answer: start it again, too
            logger.error("the worker did not answer during recovery (%s); it is started again", error.message)
            self._dead.add("worker")
        else:
            raise error
