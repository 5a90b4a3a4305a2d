"""Whether the processes still answer: one that lives but hangs makes the server unhealthy until it answers again.

Knows how to ask each process something harmless; not why one hangs. It ends nothing itself: requests go on when the process does.
Invariant: a process is silent from the moment its answer is overdue until that answer comes, and each change is logged once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

PROBE_INTERVAL_S = 5.0
"""Between an answer and the next question."""
Probe = Callable[[], Awaitable[object]]

logger = logging.getLogger(__name__)


class Liveness:
    """Asks every process in turn with its own question; `on_change(whether some process is silent)` hears of changes,
    `on_silence(name)` of each process that falls silent, again whenever the timeout has passed once more."""

    def __init__(
        self,
        probes: Mapping[str, Probe],
        on_change: Callable[[bool], None],
        interval_s: float,
        timeout_s: float,
        on_silence: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._probes = probes
        self._on_change = on_change
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._on_silence = on_silence
        self._silent: set[str] = set()

    async def run(self) -> None:
        """Watch until cancelled."""
        await asyncio.gather(*(self._watch(name, probe) for name, probe in self._probes.items()))

    async def _watch(self, name: str, probe: Probe) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            answer = asyncio.ensure_future(probe())
            try:
                await asyncio.wait((answer,), timeout=self._timeout_s)
                if not answer.done():
                    await self._outwait(name, answer)
                answer.exception()  # a refusal is an answer too
            finally:
                answer.cancel()

    async def _outwait(self, name: str, answer: asyncio.Future[object]) -> None:
        logger.error("the %s process has not answered for %.0f s; the server is unhealthy until it does", name, self._timeout_s)
        self._silent.add(name)
        self._on_change(True)
        while not answer.done():
            self._on_silence(name)
            await asyncio.wait((answer,), timeout=self._timeout_s)
        self._silent.discard(name)
        logger.warning("the %s process answers again", name)
        self._on_change(bool(self._silent))
