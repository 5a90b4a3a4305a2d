"""What an operator does to a running replica: pause it, change its weights, give its memory back, record its steps.

Owns whether the replica is paused and which weights it has; does not know HTTP. Invariant: one change at a time, and after a
change that failed requests run again on what was there before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from sapwood.errors import InvalidRequest
from sapwood.messages.types import Answer, Continue, Overhaul, Pause, Profile
from sapwood.server.questions import Question

QUIET_TIMEOUT_S = 120.0
"""Until the steps in flight have ended."""
LOAD_TIMEOUT_S = 1800.0
SHORT_TIMEOUT_S = 30.0
DEFAULT_VERSION = "default"


class Asks(Protocol):
    """Whoever can put a question to the worker."""

    async def order(self, make: Callable[[int], Question], timeout_s: float | None) -> Answer:
        """The answer to what `make` makes of a number of its own; raises Unavailable where none came."""
        ...


class Steering:
    """The switches of one replica. All methods belong to one event loop."""

    def __init__(self, questions: Asks) -> None:
        self._questions = questions
        self._lock = asyncio.Lock()
        self.is_paused = False
        self.is_released = False
        self.weight_version = DEFAULT_VERSION
        self.weights: str | None = None

    def on_new_worker(self) -> None:
        """The worker was started again: with the present weights, but neither paused nor without memory."""
        self.is_paused = self.is_released = False

    async def pause(self, *, retract: bool) -> None:
        """Start no more steps, and return when none is in flight; with `retract` running requests give their pages back."""
        async with self._lock:
            await self._pause(retract)
            self.is_paused = True

    async def resume(self) -> None:
        """Start steps again; raises InvalidRequest while the memory is released."""
        async with self._lock:
            await self._resume()
            self.is_paused = False

    async def load(self, path: Path, version: str | None, *, keep_pause: bool) -> str:
        """Replace the weights by those at `path`: what runs is retracted, goes on with the same tokens on the new weights, and
        finds an empty prefix cache. Returns the worker's report; raises InvalidRequest when the weights before stay in place."""
        async with self._lock:
            if self.is_released:
                raise InvalidRequest("the memory is released; resume it before the weights are changed", param="model_path")
            await self._pause(True)
            try:
                answer = await self._order(lambda ask: Overhaul(ask, "load", str(path)), LOAD_TIMEOUT_S)
            finally:
                if not self.is_paused and not keep_pause:
                    await self._resume()
            self.is_paused = self.is_paused or keep_pause
            self.weight_version, self.weights = version or DEFAULT_VERSION, str(path)
            return answer.message

    async def release(self) -> str:
        """Free the memory of weights and KV cache; requests wait until it is back."""
        async with self._lock:
            await self._pause(True)
            try:
                answer = await self._order(lambda ask: Overhaul(ask, "release"), SHORT_TIMEOUT_S)
            except InvalidRequest:
                if not self.is_paused and not self.is_released:
                    await self._resume()
                raise
            self.is_released = True
            return answer.message

    async def restore(self) -> str:
        """Load the weights again, with an empty KV cache, and go on unless paused."""
        async with self._lock:
            answer = await self._order(lambda ask: Overhaul(ask, "restore"), LOAD_TIMEOUT_S)
            self.is_released = False
            if not self.is_paused:
                await self._resume()
            return answer.message

    async def profile(self, is_on: bool, num_steps: int = 0) -> str:
        """Begin to record steps, or stop and return the file that holds them."""
        return (await self._order(lambda ask: Profile(ask, is_on, num_steps), SHORT_TIMEOUT_S)).message

    async def _pause(self, retract: bool) -> None:
        await self._questions.order(lambda ask: Pause(ask, retract), QUIET_TIMEOUT_S)

    async def _resume(self) -> None:
        await self._order(Continue, SHORT_TIMEOUT_S)

    async def _order(self, make: Callable[[int], Question], timeout_s: float) -> Answer:
        answer = await self._questions.order(make, timeout_s)
        if not answer.ok:
            raise InvalidRequest(answer.message)
        return answer


def model_folder(path: str | Path) -> Path:
    """A folder with a model whose weights can be loaded; raises InvalidRequest for anything else."""
    folder = Path(path)
    if not (folder / "config.json").is_file() or not list(folder.glob("*.safetensors")):
        message = f"model_path: {str(path)[:200]!r} holds no config.json and safetensors; name a model folder"
        raise InvalidRequest(message, param="model_path")
    return folder
