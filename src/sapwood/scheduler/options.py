"""What can be chosen about scheduling.

Owns the options and their defaults; does not know where they were typed. Invariant: frozen, and every number is in range.
"""

from __future__ import annotations

from dataclasses import dataclass

from sapwood.config.sections import CacheSection, SchedulerSection
from sapwood.errors import ConfigError
from sapwood.kvcache.tiers import TierOptions

MODES = ("mixed", "prefill-first")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """Options of one scheduler.

    `step_token_budget`: tokens per step, the chunk size of prompts (None: no limit). With `target_itl_s` prompts that run beside
    decodes get less where the step would otherwise, by what steps took so far, last longer than that.
    `max_running_requests`: None for as many as the engine has slots. `cache` and `eviction` name a prefix index and its policy;
    `tiers` matter where the engine has host pages; `kv_events` says what enters and leaves the index. The new-token ratio is the
    share of still allowed output that is reserved for a running request: it falls linearly from `init_new_token_ratio` times
    `conservativeness` to `min_new_token_factor` of that over `new_token_ratio_steps` decode steps, and rises on retraction. At
    most `max_reserved_tokens` of output are reserved per request. `max_queue` (None: no limit) refuses what comes on top of so
    many waiting requests (free slots, which will empty the queue at once, not counted).

    `policy` orders the queue; every `aging_interval`-th admission goes to whoever has waited longest, whatever the policy and
    the priorities say, and nobody takes its place until it has ended (0: never). `seed` is where random orders come from.
    Without `priority_scheduling` the requests' priorities count for nothing. With it a waiting request whose priority is more
    than `preemption_threshold` above that of running ones may take their place (None: never).

    A request that was never admitted ends with a 503 after `queue_timeout_s`, any request with a 408 after `request_timeout_s`,
    both counted from its arrival (None: no limit); a request may bring shorter limits of its own. What happened to the latest
    `request_timelines` requests can be asked for. `whole_prompts`: no prompt is ever cut into chunks.
    """

    step_token_budget: int | None = 2048
    target_itl_s: float | None = None
    max_running_requests: int | None = None
    policy: str = "fcfs"
    aging_interval: int = 16
    seed: int = 0
    priority_scheduling: bool = False
    low_priority_values_first: bool = False
    preemption_threshold: int | None = 10
    mode: str = "mixed"
    cache: str = "radix"
    eviction: str = "lru"
    tiers: TierOptions = TierOptions()
    kv_events: bool = False
    max_queue: int | None = None
    queue_timeout_s: float | None = None
    request_timeout_s: float | None = None
    request_timelines: int = 256
    max_tombstones: int = 4096
    init_new_token_ratio: float = 0.7
    min_new_token_factor: float = 0.14
    new_token_ratio_steps: int = 600
    conservativeness: float = 1.0
    max_reserved_tokens: int = 4096
    follow_tokens: int = 32
    publish_tokens: int = 64
    whole_prompts: bool = False

    @property
    def honours_priority(self) -> bool:
        """Whether priorities count."""
        return self.priority_scheduling or self.policy == "priority"

    def effective_priority(self, value: int) -> int:
        """What a client's priority means here: more goes first."""
        if not self.honours_priority:
            return 0
        return -value if self.low_priority_values_first else value

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError(f"unknown scheduling mode {self.mode!r}; known: {', '.join(MODES)}")
        if self.target_itl_s is not None and self.mode != "mixed":
            raise ConfigError("target_itl_s needs the mixed mode, in which steps may be cut to fit; leave one of them out")
        for name in ("step_token_budget", "max_running_requests"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1 (or None for no limit), got {value}")
        for name in ("max_queue", "preemption_threshold"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ConfigError(f"{name} must not be negative (None for no limit), got {value}")
        for name in ("target_itl_s", "queue_timeout_s", "request_timeout_s"):
            value = getattr(self, name)
            if value is not None and not value > 0.0:
                raise ConfigError(f"{name} must be positive (None for no limit), got {value}")
        for name in ("aging_interval", "request_timelines"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative (0 switches it off), got {getattr(self, name)}")
        for name in ("init_new_token_ratio", "min_new_token_factor", "conservativeness"):
            if not getattr(self, name) > 0.0:
                raise ConfigError(f"{name} must be positive, got {getattr(self, name)}")
        if self.new_token_ratio_steps < 1 or self.max_reserved_tokens < 1:
            raise ConfigError("new_token_ratio_steps and max_reserved_tokens must be at least 1")


def scheduler_options(section: SchedulerSection, planned_chunk: int, cache: CacheSection | None = None) -> SchedulerOptions:
    """The options behind resolved sections; `planned_chunk` is the step's tokens where nobody chose them."""
    chunk = section.chunked_prefill_size or planned_chunk
    return SchedulerOptions(
        step_token_budget=section.max_prefill_tokens if chunk == -1 else min(chunk, section.max_prefill_tokens),
        max_running_requests=section.max_running_requests,
        policy=section.policy,
        mode=section.mode,
        cache=section.prefix_cache,
        eviction=section.eviction,
        tiers=TierOptions() if cache is None else tier_options(cache),
        kv_events=cache is not None and cache.events_endpoint is not None,
        conservativeness=section.conservativeness,
        target_itl_s=section.target_itl_s,
        aging_interval=section.aging_interval,
        priority_scheduling=section.priority_scheduling,
        low_priority_values_first=section.low_priority_values_first,
        preemption_threshold=section.preemption_threshold,
        seed=section.random_seed,
        max_queue=section.max_queue,
        queue_timeout_s=section.queue_timeout_s,
        request_timeout_s=section.request_timeout_s,
        request_timelines=section.request_timelines,
    )


def tier_options(cache: CacheSection) -> TierOptions:
    """What the scheduler has to know about the tiers."""
    return TierOptions(write_policy=cache.write_policy, has_storage=cache.storage != "none", prefetch=cache.prefetch)
