"""When the server takes a request, and how large one may be.

Pure checks on numbers; knows nothing of HTTP. Invariant: what can never run is a 400, what may run later is a 429 (full) or a
503 (starting, draining, recovering, dead), both with a time after which to try again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sapwood.config.sections import CapsSection
from sapwood.core.pooling import Task
from sapwood.errors import InvalidRequest, Overloaded, Unavailable

RETRY_AFTER_FULL_S = 1.0
RETRY_AFTER_STARTING_S = 5.0


class ServingState(Enum):
    """What the server is doing. READY is the only state in which requests are accepted; STALLED: a process hangs."""

    STARTING = "starting"
    READY = "ready"
    RECOVERING = "recovering"
    STALLED = "stalled"
    DRAINING = "draining"
    FAILED = "failed"

    @property
    def is_healthy(self) -> bool:
        """Whether the process does its duty, so that nobody should restart it."""
        return self not in (ServingState.STARTING, ServingState.STALLED, ServingState.FAILED)


@dataclass(frozen=True, slots=True)
class ServingLimits:
    """Sizes, in tokens and requests. A request's prompt and completion together must fit `max_request_tokens`.

    `has_tiers`: the KV cache has tiers below the device. `longest_token_chars`: no token stands for more characters.
    Unless `task` is generate, a prompt gives a vector of `vector_size` numbers, for a classifier one for each of `labels`.
    """

    context_len: int
    pool_tokens: int
    vocab_size: int
    max_open_requests: int
    allow_auto_truncate: bool = False
    has_tiers: bool = False
    longest_token_chars: int = 1024
    task: Task = Task.GENERATE
    vector_size: int = 0
    labels: tuple[str, ...] = ()
    caps: CapsSection = CapsSection()

    @property
    def max_prompt_chars(self) -> int | None:
        """No longer text can be a prompt, so it need not be tokenized to be refused; None where prompts are shortened."""
        return None if self.allow_auto_truncate else self.max_request_tokens * self.longest_token_chars

    @property
    def max_request_tokens(self) -> int:
        """The longest prompt plus completion that can ever run."""
        return min(self.context_len, self.pool_tokens)


def serving_limits(info: Mapping[str, Any], max_open_requests: int) -> ServingLimits:
    """The limits that follow from what a worker says about itself when it is ready."""
    return ServingLimits(
        context_len=info["context_length"],
        pool_tokens=info["max_total_num_tokens"],
        vocab_size=info["vocab_size"],
        max_open_requests=max_open_requests,
        has_tiers=info["num_host_pages"] > 0,
        task=Task(info["task"]),
        vector_size=info.get("vector_size", 0),
        labels=tuple(info.get("labels", ())),
    )


def check_state(state: ServingState) -> None:
    """Raise Unavailable unless requests are accepted."""
    if state is ServingState.READY:
        return
    reasons = {ServingState.FAILED: "its engine has failed", ServingState.STALLED: "one of its processes does not answer"}
    reason = reasons.get(state, f"it is {state.value}")
    raise Unavailable(f"the server takes no requests: {reason}; try again later", retry_after_s=RETRY_AFTER_STARTING_S)


def check_room(num_open: int, num_new: int, max_open: int) -> None:
    """Raise unless `num_new` samples fit beside the `num_open` unfinished ones."""
    if num_new > max_open:
        raise InvalidRequest(
            f"one call may ask for at most {max_open} samples (prompts times n), got {num_new}; split it", param="n"
        )
    if num_open + num_new > max_open:
        raise Overloaded(
            f"{num_open} requests are unfinished and the limit is {max_open}; try again later", retry_after_s=RETRY_AFTER_FULL_S
        )
