"""How the device's memory is divided before anything is loaded: weights, KV pool, activations, and what stays free.

Pure arithmetic on a model's facts and a device's; allocates nothing, and equal inputs give equal plans on every rank. Invariant:
weights + KV pool + activations + graphs fit into the memory that is available, or the plan is refused with the sum.

Where an option is not set, the choice and its reason are rows of the table that is printed at start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sapwood.core.model_config import ModelConfig
from sapwood.core.units import div_ceil
from sapwood.engine.kv_split import KVSplit, Load, one_pool, split_kv
from sapwood.errors import ConfigError

GIB = 1 << 30
CPU_POOL_FRACTION = 0.5  # of what weights and activations leave; the other half stays with the machine's other work
CUDA_STATIC_FRACTION = 0.88
CPU_CHUNK_TOKENS = 512
CUDA_CHUNK_TIERS = ((20 * GIB, 2048), (60 * GIB, 4096), (160 * GIB, 8192))
CUDA_LARGEST_CHUNK = 16384
CPU_RUNNING_REQUESTS = 64
CUDA_RUNNING_TIERS = ((20 * GIB, 128), (60 * GIB, 256), (160 * GIB, 512))
CUDA_MOST_RUNNING = 1024
MIN_TOKENS_PER_REQUEST = 256  # fewer would make running requests take each other's pages all the time
SMALLEST_POOL_TOKENS = 256
ATTENTION_TILE_SCORES = 1 << 20  # queries x keys of one attention tile, float32, per head; scores and their softmax
SAMPLING_BYTES_PER_LOGIT = 32  # logits, a steered copy, two temporaries, probabilities (4 bytes each), cumulative sums (8), spare
TABLE_BYTES_PER_POSITION = 12  # token table and a page table for each kind of attention, int32 each


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """The device as it is before loading. `available_bytes` is shared by `ranks_sharing` ranks (all of them on a CPU)."""

    kind: str
    total_bytes: int
    available_bytes: int
    ranks_sharing: int = 1


@dataclass(frozen=True, slots=True)
class Footprint:
    """What the model takes on one rank: weights in bytes, and bytes per element of activations and of the KV store, of whose
    elements every `kv_scale_dims` share a scale (0: there are none)."""

    weight_bytes: int
    compute_element_bytes: int
    kv_element_bytes: int
    kv_scale_dims: int = 0


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """The options that divide memory, as the user set them; None leaves the choice to the plan.

    Layers with a window have a pool of their own unless there is a reason why all layers share one; `window_ratio` is its tokens
    per token of the other pool.
    """

    page_size: int = 16
    context_length: int | None = None
    max_running_requests: int | None = None
    chunked_prefill_size: int | None = None
    mem_fraction_static: float | None = None
    kv_cache_bytes: int | None = None
    max_total_tokens: int | None = None
    one_pool_because: str = ""
    window_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One line of the start-up table."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The division of one rank's memory. `num_kv_tokens` is num_pages * page_size; byte sizes add up to `available_bytes`.

    `chunked_prefill_size` -1 means that prompts are not cut. Layers that see only `window` positions have pages of their own
    where that is not 0; then `kv_bytes_per_token` is that of the other layers.
    """

    available_bytes: int
    weight_bytes: int
    kv_bytes: int
    activation_bytes: int
    graph_bytes: int
    page_size: int
    num_pages: int
    kv_bytes_per_token: int
    context_length: int
    chunked_prefill_size: int
    max_running_requests: int
    reasons: tuple[tuple[str, str], ...]
    window: int = 0
    num_window_pages: int = 0
    window_bytes: int = 0

    @property
    def num_kv_tokens(self) -> int:
        """Tokens that the pool holds."""
        return self.num_pages * self.page_size

    @property
    def free_bytes(self) -> int:
        """What is left for everything else."""
        return self.available_bytes - self.weight_bytes - self.kv_bytes - self.activation_bytes - self.graph_bytes

    def table(self) -> tuple[PlanRow, ...]:
        """The rows to print at start: sizes first, then the limits that follow from them."""
        why = dict(self.reasons)
        chunk = "whole prompts" if self.chunked_prefill_size == -1 else f"{self.chunked_prefill_size:,} tokens"
        rows = (
            ("weights", format_bytes(self.weight_bytes), ""),
            (
                "KV pool",
                format_bytes(self.kv_bytes - self.window_bytes),
                f"{self.num_kv_tokens:,} tokens of {self.kv_bytes_per_token:,} bytes",
            ),
            *self._window_row(),
            (
                "activations",
                format_bytes(self.activation_bytes),
                "estimate for the largest step, tables included",
            ),
            ("graphs", format_bytes(self.graph_bytes), "none are recorded"),
            ("left", format_bytes(self.free_bytes), f"of {format_bytes(self.available_bytes)} available before loading"),
            ("pages", f"{self.num_pages:,} x {self.page_size} tokens", ""),
            ("context length", f"{self.context_length:,} tokens", ""),
            ("prompt chunk", chunk, ""),
            ("running requests", f"{self.max_running_requests:,}", ""),
        )
        return tuple(PlanRow(name, value, "; ".join(filter(None, (fact, why.get(name))))) for name, value, fact in rows)

    def _window_row(self) -> Iterator[tuple[str, str, str]]:
        """Only where some layers see a window."""
        if "window pool" in dict(self.reasons):
            size = f"{self.num_window_pages * self.page_size:,} tokens" if self.window else ""
            yield "window pool", format_bytes(self.window_bytes) if self.window else "none", size


def format_table(plan: MemoryPlan) -> str:
    """`plan.table()` as aligned text."""
    rows = plan.table()
    name_width, value_width = max(len(row.name) for row in rows), max(len(row.value) for row in rows)
    return "\n".join(f"{row.name:<{name_width}}  {row.value:>{value_width}}  {row.reason}".rstrip() for row in rows)


def format_bytes(count: int) -> str:
    """A size for people: three digits and a binary unit."""
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(size) >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.0f} {units[0]}" if abs(size) >= 100 or units[0] == "B" else f"{size:.2f} {units[0]}"


def plan_memory(
    config: ModelConfig, footprint: Footprint, facts: MemoryFacts, options: MemoryOptions, tp_size: int = 1
) -> MemoryPlan:
    """Divide one rank's memory; raises ConfigError with the arithmetic when the model or an option does not fit."""
    reasons: dict[str, str] = {}
    context = _context_length(config, options, reasons)
    chunk = _chunk(facts, options, reasons)
    running = _running_limit(facts, options, reasons)
    available = facts.available_bytes // facts.ranks_sharing
    activations = activation_bytes(config, footprint, context if chunk == -1 else chunk, running, tp_size)
    activations += running * context * TABLE_BYTES_PER_POSITION
    room = available - footprint.weight_bytes - activations
    token_bytes = config.kv_bytes_per_token(footprint.kv_element_bytes, tp_size, footprint.kv_scale_dims)
    split = _split(config, token_bytes, options, Load(running, context, context if chunk == -1 else chunk), reasons)
    pool = _Pool(options, facts, footprint.weight_bytes, activations, available, room, split)
    num_pages, num_window_pages = pool.num_pages(reasons)
    window_bytes = num_window_pages * options.page_size * split.window_token_bytes
    if options.max_running_requests is None:
        fitting = max(1, num_pages * options.page_size // MIN_TOKENS_PER_REQUEST)
        if fitting < running:
            running = fitting
            reasons["running requests"] = f"the pool holds {MIN_TOKENS_PER_REQUEST} tokens for each of so many"
    return MemoryPlan(
        available_bytes=available,
        weight_bytes=footprint.weight_bytes,
        kv_bytes=num_pages * options.page_size * split.token_bytes + window_bytes,
        activation_bytes=activations,
        graph_bytes=0,
        page_size=options.page_size,
        num_pages=num_pages,
        kv_bytes_per_token=split.token_bytes,
        context_length=context,
        chunked_prefill_size=chunk,
        max_running_requests=running,
        reasons=tuple(reasons.items()),
        window=split.window,
        num_window_pages=num_window_pages,
        window_bytes=window_bytes,
    )


def _split(config: ModelConfig, token_bytes: int, options: MemoryOptions, load: Load, reasons: dict[str, str]) -> KVSplit:
    if config.widest_window and options.one_pool_because:
        reasons["window pool"] = options.one_pool_because
    if not config.widest_window or options.one_pool_because:
        return one_pool(token_bytes, options.page_size, load)
    sees = f"for layers that see {config.widest_window:,} tokens"
    if options.window_ratio is not None:
        reasons["window pool"] = f"{sees}: --swa-full-tokens-ratio"
    else:
        reasons["window pool"] = f"{sees}: all running requests' windows, as much again for reuse, two chunks"
    return split_kv(config, token_bytes, options.page_size, load, options.window_ratio)


def activation_bytes(config: ModelConfig, footprint: Footprint, chunk: int, running: int, tp_size: int = 1) -> int:
    """Peak memory of one step on one rank: its widest layer, one attention tile, and sampling over all running requests.

    Between operations rows are float32; products also hold a copy in the compute type.
    """
    heads, kv_heads = div_ceil(config.num_heads, tp_size), max(1, config.num_kv_heads // tp_size)
    attention_row = (2 * heads + 2 * kv_heads) * config.head_dim
    mlp_row = 3 * div_ceil(config.intermediate_size, tp_size)
    row_elements = 3 * config.hidden_size + max(attention_row, mlp_row)
    layer = (chunk + running) * row_elements * (4 + footprint.compute_element_bytes)
    tile = 2 * 4 * ATTENTION_TILE_SCORES * heads
    return layer + tile + running * config.vocab_size * SAMPLING_BYTES_PER_LOGIT


# ------------------------------------------------------------------------------------------------ limits that need no pool
def _context_length(config: ModelConfig, options: MemoryOptions, reasons: dict[str, str]) -> int:
    if options.context_length is None:
        reasons["context length"] = "the model's own"
        return config.max_position
    if options.context_length > config.max_position:
        raise ConfigError(
            f"--context-length {options.context_length} exceeds what the model was trained for ({config.max_position}); lower it",
            param="context_length",
        )
    return options.context_length


def _chunk(facts: MemoryFacts, options: MemoryOptions, reasons: dict[str, str]) -> int:
    if options.chunked_prefill_size is not None:
        return options.chunked_prefill_size
    if facts.kind == "cpu":
        reasons["prompt chunk"] = "on a CPU, keeps one step short for the requests that decode beside it"
        return CPU_CHUNK_TOKENS
    reasons["prompt chunk"] = f"for a device of {format_bytes(facts.total_bytes)}"
    return next((chunk for limit, chunk in CUDA_CHUNK_TIERS if facts.total_bytes < limit), CUDA_LARGEST_CHUNK)


def _running_limit(facts: MemoryFacts, options: MemoryOptions, reasons: dict[str, str]) -> int:
    if options.max_running_requests is not None:
        return options.max_running_requests
    if facts.kind == "cpu":
        reasons["running requests"] = "on a CPU, larger batches bring no more tokens per second"
        return CPU_RUNNING_REQUESTS
    reasons["running requests"] = f"for a device of {format_bytes(facts.total_bytes)}"
    return next((most for limit, most in CUDA_RUNNING_TIERS if facts.total_bytes < limit), CUDA_MOST_RUNNING)


# ------------------------------------------------------------------------------------------------ the pool
@dataclass(frozen=True, slots=True)
class _Pool:
    """The choice of the KV pool's size; `room_bytes` is what weights and activations leave of `available_bytes`."""

    options: MemoryOptions
    facts: MemoryFacts
    weight_bytes: int
    activation_bytes: int
    available_bytes: int
    room_bytes: int
    split: KVSplit

    def num_pages(self, reasons: dict[str, str]) -> tuple[int, int]:
        """Pages of the pool and of the window's; what requests could ever use bounds them where nobody asked for a size."""
        least_bytes = SMALLEST_POOL_TOKENS * self.split.least_bytes
        if self.room_bytes < least_bytes:
            raise ConfigError(f"the model does not fit: {self._sum(least_bytes)}. {self._advice()}")
        if self.options.kv_cache_bytes is not None:
            budget = self._explicit_budget(self.options.kv_cache_bytes)
            reasons["KV pool"] = "--kv-cache-bytes"
        else:
            budget, reasons["KV pool"] = self._fraction_budget()
        tokens, window_tokens = self.split.divide(budget)
        if self.options.max_total_tokens is not None and self.options.max_total_tokens < tokens:
            tokens, reasons["KV pool"] = self.options.max_total_tokens, "--max-total-tokens"
        elif self._may_shrink() and self.split.most_tokens < tokens:
            tokens = self.split.most_tokens
            reasons["KV pool"] = "all running requests at full length, and as much again for reuse"
        pages = tokens // self.options.page_size
        if pages < 1:
            raise ConfigError(f"the KV pool of {tokens} tokens holds no page of {self.options.page_size}; make it larger")
        return pages, min(max(window_tokens // self.options.page_size, self.split.window and 1), pages)

    def _may_shrink(self) -> bool:
        """Whether nobody asked for a size: on a CPU, memory that requests cannot fill is better left to others."""
        return self.facts.kind == "cpu" and self.options.kv_cache_bytes is None and self.options.mem_fraction_static is None

    def _explicit_budget(self, kv_bytes: int) -> int:
        if kv_bytes > self.room_bytes:
            raise ConfigError(f"--kv-cache-bytes is too large: {self._sum(kv_bytes)}. Lower it", param="kv_cache_bytes")
        return kv_bytes

    def _fraction_budget(self) -> tuple[int, str]:
        """Bytes for the pool when its size follows from a share of the memory, and why."""
        fraction = self.options.mem_fraction_static
        if fraction is None and self.facts.kind == "cpu":
            share = f"{CPU_POOL_FRACTION:.0%} of what weights and activations leave; the rest stays with the machine's other work"
            return int(self.room_bytes * CPU_POOL_FRACTION), share
        if fraction is None:
            budget = int(self.available_bytes * CUDA_STATIC_FRACTION) - self.weight_bytes
            share = f"weights and pool take {CUDA_STATIC_FRACTION:.0%} of the available memory, if activations leave so much"
            return min(self.room_bytes, max(budget, self.room_bytes // 2)), share
        budget = int(self.available_bytes * fraction) - self.weight_bytes
        if budget < SMALLEST_POOL_TOKENS * self.split.least_bytes:
            raise ConfigError(
                f"--mem-fraction-static {fraction} of {format_bytes(self.available_bytes)} leaves {format_bytes(budget)} for the "
                f"KV pool beside {format_bytes(self.weight_bytes)} of weights; raise it, or set --kv-cache-bytes",
                param="mem_fraction_static",
            )
        if budget > self.room_bytes:
            return self.room_bytes, f"--mem-fraction-static {fraction}, less what activations need"
        return budget, f"--mem-fraction-static {fraction}"

    def _sum(self, kv_bytes: int) -> str:
        parts = (("weights", self.weight_bytes), ("activations", self.activation_bytes), ("KV pool", kv_bytes))
        terms = " + ".join(f"{name} {format_bytes(size)}" for name, size in parts)
        total = sum(size for _, size in parts)
        return f"{terms} = {format_bytes(total)}, but {format_bytes(self.available_bytes)} are available"

    def _advice(self) -> str:
        return (
            "Take a smaller model or data type, lower --chunked-prefill-size or --max-running-requests, "
            "raise --tp-size, or free memory"
        )
