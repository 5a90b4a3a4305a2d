"""What an operator does to a model in this process: other weights, no memory for a while, its steps recorded.

The server's own `Steering`, asked without an event loop. Owns that one change is made at a time; decides nothing. Invariant:
while the memory is released no request is taken, and a change that failed leaves what was there before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from sapwood.errors import SapwoodError, Unavailable
from sapwood.messages.types import Answer
from sapwood.offline import Desk
from sapwood.server.questions import Question
from sapwood.server.steering import Steering, model_folder

T = TypeVar("T")
RELEASED = "the model's memory is released; resume it first"


class DeskQuestions:
    """Questions to the worker behind a desk, which are answered before anything else happens."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def order(self, make: Callable[[int], Question], timeout_s: float | None) -> Answer:
        """The answer; a turn of the worker takes as long as it takes."""
        return self._desk.order(make)


class Upkeep:
    """The switches of an `LLM`. Its methods may be called from any thread, and raise InvalidRequest where nothing changed."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.steering = Steering(DeskQuestions(desk))
        self._lock = threading.Lock()

    def load_weights(self, path: str, version: str | None = None) -> str:
        """Replace the weights by the safetensors in a folder; what runs goes on with the same tokens on the new ones."""
        return self._do(self.steering.load(model_folder(path), version, keep_pause=False))

    def release_memory(self) -> str:
        """Free the memory of weights and KV cache; raises Unavailable while requests run, and so do requests until `resume`."""
        self._desk.withhold(RELEASED)
        try:
            return self._do(self.steering.release())
        except SapwoodError:
            if not self.steering.is_released:
                self._desk.withhold("")
            raise

    def resume_memory(self) -> str:
        """Load the weights again, with an empty cache."""
        message = self._do(self.steering.restore())
        self._desk.withhold("")
        return message

    def start_profile(self, num_steps: int = 0) -> str:
        """Record the next steps (0: until told to stop); says where they will be."""
        return self._do(self.steering.profile(True, num_steps))

    def stop_profile(self) -> str:
        """The file of the recorded steps, in the form that Perfetto reads."""
        return self._do(self.steering.profile(False))

    def _do(self, change: Coroutine[Any, Any, T]) -> T:
        """Run what never waits."""
        with self._lock:
            try:
                change.send(None)
            except StopIteration as end:
                result: T = end.value
                return result
        raise Unavailable("another change is being made; try again")
