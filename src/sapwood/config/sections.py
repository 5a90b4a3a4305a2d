"""The resolved configuration: one frozen section for each component, nothing left to look up.

Each component is handed its own section and sees no other. Invariant: a value is final, or None where only the component
can know (the checkpoint's context length, the memory of a CUDA device); msgspec encodes and decodes a whole `Config`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Which checkpoint, and how it is read. `context_length=None`: the checkpoint's own; `random_seed` makes dummy weights.
    `is_embedding`: its vectors are wanted, not its text; `pooling` is auto or a `core.pooling.PoolingKind`."""

    model_path: str
    tokenizer_path: str | None
    served_model_name: str
    load_format: str
    context_length: int | None
    chat_template: str | None
    random_seed: int
    is_embedding: bool = False
    pooling: str = "auto"

    @property
    def is_null(self) -> bool:
        """Whether the fake model (table-driven logits, byte tokenizer) is asked for."""
        return self.model_path == "null"


@dataclass(frozen=True, slots=True)
class CacheSection:
    """The tiers below the KV cache. `host_bytes` or else `host_ratio` (of the KV cache) sizes the host's; 0 bytes: there is none.

    `storage` is none or a kind of cache storage at `storage_path` (None: the cache folder) that keeps up to `storage_bytes`.
    Routers hear of the cache at `events_endpoint`, if any.
    """

    host_bytes: int | None
    host_ratio: float
    write_policy: str
    storage: str
    storage_path: str | None
    storage_bytes: int
    prefetch: str
    events_endpoint: str | None
    events_topic: str


@dataclass(frozen=True, slots=True)
class GrammarLimits:
    """How much one constraint may take: bytes of its text, levels of a JSON schema, parts of its regular expressions, states of
    its automaton, and seconds that a client of the server waits for it to be compiled."""

    num_bytes: int = 256 << 10
    schema_depth: int = 64
    regex_size: int = 1_000_000
    regex_states: int = 50_000
    compile_s: float = 1.0


@dataclass(frozen=True, slots=True)
class GrammarSection:
    """Constrained completions. `backend` compiles constraints (none: they are refused); of compiled ones that nobody uses,
    `cache_size` are kept."""

    backend: str
    any_whitespace: bool
    jump_forward: bool
    cache_size: int
    limits: GrammarLimits = GrammarLimits()


@dataclass(frozen=True, slots=True)
class EngineSection:
    """Device, arithmetic and KV memory. Sizes are per rank; None: decided from the device's memory when weights are loaded."""

    device: str
    kernel_backend: str
    dtype: str
    kv_cache_dtype: str
    quantization: str
    activation_bits: int
    weight_cache: bool
    tp_size: int
    cpu_threads: int
    cpu_isa: str
    page_size: int
    max_running_requests: int | None
    mem_fraction_static: float | None
    kv_cache_bytes: int | None
    max_total_tokens: int | None
    hybrid_swa_memory: bool
    swa_full_tokens_ratio: float | None
    null_step_ms: float
    cache: CacheSection
    grammar: GrammarSection


@dataclass(frozen=True, slots=True)
class SchedulerSection:
    """What one step may hold. `chunked_prefill_size` None is left to the memory plan, -1 is as large as may be; neither exceeds
    `max_prefill_tokens`. `preemption_threshold=None`: nobody is preempted; `random_seed` decides random orders, alike on all
    ranks."""

    policy: str
    mode: str
    prefix_cache: str
    eviction: str
    chunked_prefill_size: int | None
    max_prefill_tokens: int
    max_running_requests: int | None
    conservativeness: float
    overlap: bool
    target_itl_s: float | None
    aging_interval: int
    priority_scheduling: bool
    low_priority_values_first: bool
    preemption_threshold: int | None
    random_seed: int
    max_queue: int
    queue_timeout_s: float | None
    request_timeout_s: float | None
    request_timelines: int
    step_log: str | None


@dataclass(frozen=True, slots=True)
class CapsSection:
    """How much one request may ask for, below what any server takes. `prompt_tokens=None`: what the context holds."""

    samples: int = 128
    stop_strings: int = 32
    stop_chars: int = 4096
    stop_regex_bytes: int = 256
    top_logprobs: int = 128
    logit_bias: int = 1024
    prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class TlsSection:
    """HTTPS, in uvicorn's words: a certificate (with its chain), its key, and whose certificates clients must show."""

    certfile: str
    keyfile: str | None
    keyfile_password: str | None
    ca_certs: str | None


@dataclass(frozen=True, slots=True)
class ServerSection:
    """The HTTP surface. A key of None asks for none; `random_seed` draws the seeds of requests that bring none. Sizes and times
    bound what one connection may take; `max_requests_per_minute` and `max_requests_at_once` are for each key."""

    host: str
    port: int
    served_model_name: str
    api_key: str | None
    admin_api_key: str | None
    enable_metrics: bool
    max_queued_requests: int
    allow_auto_truncate: bool
    stream_interval: int
    incremental_streaming_output: bool
    random_seed: int
    default_priority: int
    request_timelines: int
    log_level: str
    tool_call_parser: str = "auto"
    reasoning_parser: str = "auto"
    weight_update_folder: str | None = None
    request_log: str | None = None
    request_log_texts: bool = False
    otlp_traces_endpoint: str | None = None
    api_key_file: str | None = None
    max_requests_per_minute: int | None = None
    max_requests_at_once: int | None = None
    max_json_depth: int = 128
    max_body_bytes: int = 64 << 20
    max_head_bytes: int = 64 << 10
    head_timeout_s: float = 30.0
    body_timeout_s: float = 30.0
    read_timeout_s: float = 300.0
    tls: TlsSection | None = None
    caps: CapsSection = CapsSection()


@dataclass(frozen=True, slots=True)
class LaunchSection:
    """The processes. Times in seconds; `tokenizer_worker_num=0` and `inline_detokenizer` put the part inside the server;
    `crash_dump_folder=None`: in the cache folder."""

    tp_size: int
    tokenizer_worker_num: int
    inline_detokenizer: bool
    restart: str
    watchdog_timeout_s: float
    crash_dump_folder: str | None
    startup_timeout_s: float
    drain_timeout_s: float
    log_level: str


@dataclass(frozen=True, slots=True)
class Choice:
    """An option that nobody set and whose value depends on this machine or on other options, with the reason."""

    option: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class Config:
    """All sections, and the automatic choices in the order in which they were made."""

    model: ModelOptions
    engine: EngineSection
    scheduler: SchedulerSection
    server: ServerSection
    launch: LaunchSection
    choices: tuple[Choice, ...]
