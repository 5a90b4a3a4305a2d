"""What can be chosen about scheduling.

Owns the options and their defaults; does not know where they were typed. Invariant: frozen, and every number is in range.
"""

from __future__ import annotations

from dataclasses import dataclass

from sapwood.errors import ConfigError

MODES = ("mixed", "prefill-first")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """Options of one scheduler.

    `step_token_budget`: tokens per step, the chunk size of prompts (None: no limit). `max_running_requests`: None for as many
    as the engine has slots. `cache` and `eviction` name a prefix index and its policy. The new-token ratio is the share of
    still allowed output that is reserved for a running request: it falls linearly from `init_new_token_ratio` times
    `conservativeness` to `min_new_token_factor` of that over `new_token_ratio_steps` decode steps, and rises on retraction.
    At most `max_reserved_tokens` of output are reserved per request. `max_queue` (None: no limit) refuses what
    comes on top of so many waiting requests (free slots, which will empty the queue at once, not counted).
    """

    step_token_budget: int | None = 2048
    max_running_requests: int | None = None
    policy: str = "fcfs"
    mode: str = "mixed"
    cache: str = "radix"
    eviction: str = "lru"
    max_queue: int | None = None
    max_tombstones: int = 4096
    init_new_token_ratio: float = 0.7
    min_new_token_factor: float = 0.14
    new_token_ratio_steps: int = 600
    conservativeness: float = 1.0
    max_reserved_tokens: int = 4096
    follow_tokens: int = 32
    publish_tokens: int = 64

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError(f"unknown scheduling mode {self.mode!r}; known: {', '.join(MODES)}")
        for name in ("step_token_budget", "max_running_requests"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1 (or None for no limit), got {value}")
        if self.max_queue is not None and self.max_queue < 0:
            raise ConfigError(f"max_queue must not be negative (None for no limit), got {self.max_queue}")
        for name in ("init_new_token_ratio", "min_new_token_factor", "conservativeness"):
            if not getattr(self, name) > 0.0:
                raise ConfigError(f"{name} must be positive, got {getattr(self, name)}")
        if self.new_token_ratio_steps < 1 or self.max_reserved_tokens < 1:
            raise ConfigError("new_token_ratio_steps and max_reserved_tokens must be at least 1")
