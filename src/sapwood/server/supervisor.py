"""The children of the server process: start them (again), wait until each is ready, notice a death at once, end them.

Owns the processes; does not know what they do or what a death means (the caller decides). Invariant: no child outlives the
supervisor (`stop` ends every one; if the parent is killed, the children's standard input closes and they end by themselves).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import msgspec

from sapwood.errors import EngineFailed
from sapwood.messages.types import Ready

KILLED_S = 5.0
"""How long the system may take to end a killed process."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """A process to start: `python -m module`, its orders as one line of JSON on standard input."""

    name: str
    module: str
    orders: Any


class Supervisor:
    """Starts and watches child processes on behalf of one event loop.

    `on_death(name, process id, exit code)` is called on the loop for a child that ended without being asked to.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_death: Callable[[str, int, int], None]) -> None:
        self._loop = loop
        self._on_death = on_death
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ended: dict[str, asyncio.Event] = {}
        self._ready: dict[str, asyncio.Future[Ready]] = {}
        self._doomed: set[int] = set()
        self._stopping = False

    def start(self, spec: ChildSpec) -> None:
        """Start one child, for the first time or in place of one that has ended; it owes a Ready message under its name."""
        process = subprocess.Popen([sys.executable, "-m", spec.module], stdin=subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(spec.orders) + b"\n")
        process.stdin.flush()
        self._processes[spec.name] = process
        self._ended[spec.name] = asyncio.Event()
        self._ready[spec.name] = self._loop.create_future()
        threading.Thread(target=self._watch, args=(spec.name, process), name=f"watch-{spec.name}", daemon=True).start()

    def mark_ready(self, message: Ready) -> None:
        """A child says that it is ready; unknown and repeated names are ignored."""
        future = self._ready.get(message.process)
        if future is not None and not future.done() and self._processes[message.process].pid == message.pid:
            future.set_result(message)

    async def wait_ready(self, deadline_s: float, names: Collection[str] | None = None) -> dict[str, Ready]:
        """The Ready by name of these children, or of all; raises EngineFailed when one dies first or the deadline passes."""
        waiting = {name: self._ready[name] for name in (self._ready if names is None else names)}
        try:
            async with asyncio.timeout(deadline_s):
                messages = await asyncio.gather(*waiting.values())
        except TimeoutError:
            late = ", ".join(name for name, future in waiting.items() if not future.done() or future.cancelled())
            raise EngineFailed(
                f"not ready after {deadline_s:.0f} s: {late}; see its log above, or raise --startup-timeout-s"
            ) from None
        return {message.process: message for message in messages}

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by name."""
        return {name: process.pid for name, process in self._processes.items()}

    async def kill(self, names: Collection[str]) -> None:
        """End these children now, dead ones included, and tell nobody: their successors are about to be started."""
        for name in names:
            self._doomed.add(self._processes[name].pid)
            self._processes[name].kill()
        async with asyncio.timeout(KILLED_S):
            await asyncio.gather(*(self._ended[name].wait() for name in names))
        self._doomed.clear()

    async def stop(self, grace_s: float) -> None:
        """End all children: they were asked to drain and get `grace_s` to do so, then they are killed. Idempotent."""
        self._stopping = True
        if not await self._all_ended(grace_s):
            for name, process in self._processes.items():
                if process.poll() is None:
                    if grace_s:
                        logger.warning("the %s process did not end within %.0f s and is killed", name, grace_s)
                    process.kill()
            await self._all_ended(KILLED_S)

    async def _all_ended(self, timeout_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(event.wait() for event in self._ended.values()))
        return all(event.is_set() for event in self._ended.values())

    def _watch(self, name: str, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
            self._loop.call_soon_threadsafe(self._note_end, name, process, code)

    def _note_end(self, name: str, process: subprocess.Popen[bytes], code: int) -> None:
        if self._processes[name] is not process:
            return
        self._ended[name].set()
        assert process.stdin is not None
        process.stdin.close()
        if self._stopping or process.pid in self._doomed:
            return
        future = self._ready[name]
        if not future.done():
            future.set_exception(EngineFailed(f"the {name} process ended with status {code} while starting; see its log above"))
            future.exception()  # nobody may be waiting
        self._on_death(name, process.pid, code)
