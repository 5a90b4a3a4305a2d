"""What is known about a process that died or was found hanging, put into a report and a log line.

Owns the gathering; the report's form is `crash`'s. Does not decide what happens next. Invariant: no request's text or ids are in
what it writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from sapwood.messages.flight import PlanRecord, read_plan, read_steps
from sapwood.messages.topology import Topology
from sapwood.observability.stacks import ask_stacks, read_stacks, threads_of
from sapwood.server.crash import CrashReport, describe_exit, describe_steps, machine_facts, write_report
from sapwood.server.frontend import Frontend

logger = logging.getLogger(__name__)


class Inquest:
    """Held over each death. `topology` is the replica's at that moment."""

    def __init__(self, frontend: Frontend, topology: Callable[[], Topology], folder: Path) -> None:
        self._frontend = frontend
        self._topology = topology
        self._folder = folder
        self._hanging: dict[int, tuple[str, list[str]]] = {}

    async def end(self, process: str, what: str, pids: Mapping[str, int]) -> None:
        """Kill a process that hangs, as `what` says, when the threads of all in `pids` (its group) were asked what they do."""
        threads = []
        for name, pid in pids.items():
            await asyncio.to_thread(ask_stacks, pid, self._topology().stacks(name))
            threads += [f"{name}: {line}" for line in threads_of(pid)]
            if name != process:
                threads += [f"{name}: {line}" for line in read_stacks(self._topology().stacks(name))]
        self._hanging[pids[process]] = what, threads
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids[process], signal.SIGKILL)

    def hold(self, process: str, pid: int, code: int) -> str:
        """Write the report of this death, log it; returns how it died, in words."""
        topology = self._topology()
        hang, threads = self._hanging.pop(pid, ("", []))
        how = f"it hung and was killed: {hang}" if hang else describe_exit(code)
        is_worker = process.startswith("worker")
        plan = read_plan(topology.flight) if is_worker else None
        memory, platform = machine_facts()
        report = CrashReport(
            what_happened=[f"the {process} process is gone: {how}", *self._open_requests(plan)],
            time=time.strftime("%Y-%m-%d %H:%M:%S %z"),
            process=process,
            pid=pid,
            exit_status=code,
            epoch=topology.epoch,
            suspects=self._suspects(plan),
            plan=plan,
            steps=describe_steps(read_steps(topology.flight)) if is_worker else [],
            stacks=read_stacks(topology.stacks(process)),
            threads=threads,
            memory=memory,
            platform=platform,
        )
        path = write_report(self._folder, report)
        logger.error("the %s process is gone: %s (%s)", process, how, f"report: {path}" if path else "no report was written")
        return how

    def _open_requests(self, plan: PlanRecord | None) -> list[str]:
        lines = [f"{self._frontend.num_open} requests were unfinished"]
        if plan is not None and plan.suspects:
            lines.append(f"requests {', '.join(map(str, plan.suspects))} were in unfinished steps; step {plan.step} was the last")
        return lines

    def _suspects(self, plan: PlanRecord | None) -> list[dict[str, int]]:
        records = self._frontend.replays.records
        found = [records[number] for number in (plan.suspects if plan else ()) if number in records]
        return [
            {"number": record.number, "prompt_tokens": record.num_prompt, "completion_tokens": len(record.token_ids)}
            for record in found
        ]
