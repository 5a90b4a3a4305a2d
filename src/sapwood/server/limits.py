"""When the server takes a request, and how large one may be.

Pure checks on numbers; knows nothing of HTTP. Invariant: what can never run is a 400, what may run later is a 429 (full) or a
503 (starting, draining, recovering, dead), both with a time after which to try again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sapwood.errors import InvalidRequest, Overloaded, Unavailable

MAX_BODY_BYTES = 64 * 1024 * 1024
RETRY_AFTER_FULL_S = 1.0
RETRY_AFTER_STARTING_S = 5.0


class ServingState(Enum):
    """What the server is doing. READY is the only state in which requests are accepted."""

    STARTING = "starting"
    READY = "ready"
    RECOVERING = "recovering"
    DRAINING = "draining"
    FAILED = "failed"

    @property
    def is_healthy(self) -> bool:
        """Whether the process does its duty, so that nobody should restart it."""
        return self not in (ServingState.STARTING, ServingState.FAILED)


@dataclass(frozen=True, slots=True)
class ServingLimits:
    """Sizes, in tokens and requests. A request's prompt and completion together must fit `max_request_tokens`."""

    context_len: int
    pool_tokens: int
    vocab_size: int
    max_open_requests: int
    allow_auto_truncate: bool = False

    @property
    def max_request_tokens(self) -> int:
        """The longest prompt plus completion that can ever run."""
        return min(self.context_len, self.pool_tokens)


def check_state(state: ServingState) -> None:
    """Raise Unavailable unless requests are accepted."""
    if state is ServingState.READY:
        return
    reason = "its engine has failed" if state is ServingState.FAILED else f"it is {state.value}"
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
