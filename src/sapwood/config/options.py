"""The table of start options: the only place where an option is declared.

Flags, environment variables, file keys, `LLM` keywords and docs/reference/options.md all come from here. Knows nothing about
what the options do. Invariant: names and flags are unique; a default passes its own check.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from sapwood.errors import ConfigError

Check = Callable[[Any], str | None]
"""Returns the rule that a value breaks ("must be >= 1"), or None."""

ENV_PREFIX = "SAPWOOD_"
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_BYTE_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4, "ki": 1024, "mi": 1024**2, "gi": 1024**3, "ti": 1024**4}


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `kind` is str, int, float, bool or bytes (a size such as 512MiB, held as an int).

    `default=None` means "chosen at start"; `automatic` then says how. `values` maps every accepted spelling to the value it
    stands for. `refused` is the reason why switching the option on is always an error.
    """

    name: str
    group: str
    kind: str
    default: Any
    help: str
    aliases: tuple[str, ...] = ()
    values: tuple[tuple[str, str], ...] = ()
    check: Check | None = None
    automatic: str = ""
    refused: str = ""
    secret: bool = False

    @property
    def flags(self) -> tuple[str, ...]:
        """Command-line spellings, the main one first."""
        return tuple("--" + name.replace("_", "-") for name in (self.name, *self.aliases))

    @property
    def env(self) -> str:
        """The environment variable."""
        return ENV_PREFIX + self.name.upper()

    @property
    def choices(self) -> tuple[str, ...]:
        """Accepted spellings, empty when the option is free."""
        return tuple(spelling for spelling, _ in self.values)


def at_least(bound: float) -> Check:
    """A finite number >= bound."""
    return lambda value: None if math.isfinite(value) and value >= bound else f"must be >= {bound:g}"


def within(low: float, high: float) -> Check:
    """A number from low to high, both included."""
    return lambda value: None if low <= value <= high else f"must be between {low:g} and {high:g}"


def _fraction(value: float) -> str | None:
    return None if 0.0 < value < 1.0 else "must be greater than 0 and less than 1"


def _chunk_size(value: int) -> str | None:
    return None if value == -1 or value >= 1 else "must be >= 1 token, or -1 to compute every prompt in one step"


def _power_of_two(value: int) -> str | None:
    return None if value >= 1 and value & (value - 1) == 0 else "must be a power of two (1, 16, 32, 64, ...)"


def _not_blank(value: str) -> str | None:
    return None if value.strip() else "must not be empty"


def _only_never(value: str) -> str | None:
    return None if value == "never" else "must be never: restarting a dead worker is not available in this version"


def _same(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, name) for name in names)


_DTYPES = (*_same("auto", "float32", "bfloat16", "float16"), ("float", "float32"), ("half", "float16"))
_KV_DTYPES = (*_same("auto", "float32", "bfloat16", "float16"), ("fp32", "float32"), ("bf16", "bfloat16"), ("fp16", "float16"))
_LEVELS = _same("debug", "info", "warning", "error")

GROUPS: dict[str, str] = {
    "model": "Which model, and how it is read.",
    "engine": "Where and in which arithmetic it runs.",
    "memory": "How much memory the KV cache takes, and how it is cut.",
    "scheduling": "Which requests run in a step.",
    "server": "The HTTP server.",
    "processes": "The processes of a server.",
}
LLM_GROUPS = ("model", "engine", "memory", "scheduling")
"""The groups that an engine without a server understands (`LLM` and the commands built on it)."""

OPTIONS: tuple[Option, ...] = (
    Option(
        "model_path", "model", "str", None, "Catalog name, folder, GGUF file or Hugging Face repository; `null` is the fake model.",
        ("model",), check=_not_blank, automatic="smollm2-135m-instruct",
    ),
    Option(
        "tokenizer_path", "model", "str", None, "Folder or file to take the tokenizer from.", ("tokenizer",), check=_not_blank,
        automatic="the model's own",
    ),
    Option(
        "served_model_name", "model", "str", None, "The model's name in the API.", check=_not_blank, automatic="the model path as given",
    ),
    Option(
        "load_format", "model", "str", "auto", "How to read weights; `dummy` makes random ones for tests of speed.",
        values=_same("auto", "safetensors", "gguf", "dummy"),
    ),
    Option(
        "context_length", "model", "int", None, "Longest prompt plus completion, in tokens.", ("max_model_len",), check=at_least(2),
        automatic="what the model was trained for",
    ),
    Option("chat_template", "model", "str", None, "Jinja file that replaces the model's chat template.", automatic="the model's own"),
    Option(
        "trust_remote_code", "model", "bool", False, "Always refused.",
        refused="Sapwood never runs code that comes with a checkpoint; leave the option out",
    ),
    Option("device", "engine", "str", "auto", "Where to compute; `auto` takes CUDA when there is one.", values=_same("auto", "cpu", "cuda")),
    Option("dtype", "engine", "str", "auto", "Arithmetic of the model; `auto` is float32 on a CPU, the checkpoint's elsewhere.", values=_DTYPES),
    Option("kv_cache_dtype", "engine", "str", "auto", "Type of stored keys and values; `auto` is the model's arithmetic.", values=_KV_DTYPES),
    Option("tp_size", "engine", "int", 1, "Ranks that share one model (tensor parallel).", ("tensor_parallel_size", "tp"), check=at_least(1)),
    Option(
        "cpu_threads", "engine", "int", None, "Compute threads of each rank on a CPU.", check=at_least(1),
        automatic="the usable cores, shared among the ranks",
    ),
    Option(
        "random_seed", "engine", "int", None, "Where the seeds of requests without one, and dummy weights, come from.",
        check=within(0, 2**63 - 1), automatic="drawn at start",
    ),
    Option("disable_overlap_schedule", "engine", "bool", False, "Wait for each step before planning the next."),
    Option(
        "mem_fraction_static", "memory", "float", None, "Share of the device's memory for weights and KV cache.", check=_fraction,
        automatic="by device; the memory table at start shows it",
    ),
    Option(
        "kv_cache_bytes", "memory", "bytes", None, "Size of the KV cache of each rank, such as 2GiB; overrides the fraction.",
        ("kv_cache_memory_bytes",), check=at_least(1), automatic="from the fraction",
    ),
    Option(
        "max_total_tokens", "memory", "int", None, "Size of the KV cache in tokens; the smaller of this and the memory wins.",
        check=at_least(1), automatic="what the memory holds",
    ),
    Option("page_size", "memory", "int", 16, "Tokens in one page of the KV cache.", check=_power_of_two),
    Option("disable_radix_cache", "memory", "bool", False, "Do not reuse the KV cache of shared prefixes."),
    Option("schedule_policy", "scheduling", "str", "fcfs", "Order in which waiting requests are tried (fcfs, lpm).", check=_not_blank),
    Option(
        "schedule_mode", "scheduling", "str", "mixed", "Whether a step mixes decodes with prompt chunks, or prompts go first.",
        values=_same("mixed", "prefill-first"),
    ),
    Option("enable_mixed_chunk", "scheduling", "bool", False, "The same as `--schedule-mode mixed`, as SGLang spells it."),
    Option(
        "chunked_prefill_size", "scheduling", "int", None, "Tokens in one step before the rest of a prompt waits for the next; -1: no limit.",
        check=_chunk_size, automatic="by device",
    ),
    Option("max_prefill_tokens", "scheduling", "int", 16384, "Prompt tokens in one step, over all requests.", check=at_least(1)),
    Option(
        "max_running_requests", "scheduling", "int", None, "Requests that run at the same time.", ("max_num_seqs",), check=at_least(1),
        automatic="by device",
    ),
    Option(
        "schedule_conservativeness", "scheduling", "float", 1.0, "How much future output is set aside at admission; more: fewer retractions.",
        check=within(0.0, 10.0),
    ),
    Option("host", "server", "str", "127.0.0.1", "Address to listen on.", check=_not_blank),
    Option("port", "server", "int", 30000, "Port to listen on; 0 takes a free one.", check=within(0, 65535)),
    Option("api_key", "server", "str", None, "Key that every route but health asks for.", check=_not_blank, automatic="none", secret=True),
    Option(
        "admin_api_key", "server", "str", None, "Key that admin routes ask for instead.", check=_not_blank, automatic="the API key", secret=True,
    ),
    Option("enable_metrics", "server", "bool", False, "Serve Prometheus metrics at /metrics."),
    Option("max_queued_requests", "server", "int", 16384, "Unfinished requests beyond which new ones get a 429.", check=at_least(1)),
    Option("allow_auto_truncate", "server", "bool", False, "Shorten what exceeds the context length instead of refusing it."),
    Option("stream_interval", "server", "int", 1, "Tokens in one chunk of a stream.", check=at_least(1)),
    Option("incremental_streaming_output", "server", "bool", False, "/generate streams only what is new, not the whole text so far."),
    Option("log_level", "server", "str", "info", "The least severe messages that are logged.", values=_LEVELS),
    Option("tokenizer_worker_num", "processes", "int", 0, "Tokenizer processes; 0: a thread of the server.", check=within(0, 64)),
    Option(
        "detokenizer", "processes", "str", "auto", "Where text is made; `auto` is inline on four cores or fewer.",
        values=_same("auto", "inline", "process"),
    ),
    Option("restart", "processes", "str", "never", "What happens when a worker dies.", values=_same("never", "always"), check=_only_never),
    Option("startup_timeout_s", "processes", "float", 600.0, "Longest time until every process is ready.", check=at_least(1.0)),
    Option("drain_timeout_s", "processes", "float", 30.0, "Longest time that running requests get when the server is stopped.", check=at_least(0.0)),
)

BY_NAME: dict[str, Option] = {name: option for option in OPTIONS for name in (option.name, *option.aliases)}


def find(name: str, source: str) -> Option:
    """The option called `name` (dashes or underscores, aliases too); raises ConfigError with the closest names."""
    option = BY_NAME.get(name.replace("-", "_"))
    if option is None:
        raise unknown_option(name, BY_NAME, source)
    return option


def unknown_option(name: str, known: Iterable[str], source: str) -> ConfigError:
    """The error for a name that is not in `known`, with the closest one that is."""
    close = difflib.get_close_matches(name.replace("_", "-"), [k.replace("_", "-") for k in known], n=1, cutoff=0.6)
    hint = f"; did you mean {close[0]}?" if close else "; docs/reference/options.md lists the options"
    return ConfigError(f"{source}: unknown option {name}{hint}", param=name)


def coerce(option: Option, value: Any, source: str) -> Any:
    """`value` (text, or what YAML and keywords hold) as the option's type; raises ConfigError naming the source."""
    try:
        typed = _PARSERS[option.kind](value)
        if option.values:
            typed = dict(option.values)[typed.lower()]
    except (ValueError, KeyError):
        wanted = "one of " + ", ".join(option.choices) if option.values else _KIND_NAMES[option.kind]
        raise ConfigError(f"{source}: {option.flags[0]} takes {wanted}, got {value!r}", param=option.name) from None
    rule = option.check(typed) if option.check else None
    if rule:
        raise ConfigError(f"{source}: {option.flags[0]} {rule}, got {value!r}", param=option.name)
    if option.refused and typed:
        raise ConfigError(f"{source}: {option.flags[0]} is refused: {option.refused}", param=option.name)
    return typed


def _parse_str(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _parse_int(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError
    return int(value)


def _parse_float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str) or not math.isfinite(float(value)):
        raise ValueError
    return float(value)


def _parse_bool(value: Any) -> bool:
    text = str(value).lower()
    if text not in _TRUE + _FALSE:
        raise ValueError
    return text in _TRUE


def _parse_bytes(value: Any) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", str(value).strip().lower())
    if isinstance(value, bool) or match is None or match[2] not in _BYTE_UNITS:
        raise ValueError
    return int(float(match[1]) * _BYTE_UNITS[match[2]]) if "." in match[1] else int(match[1]) * _BYTE_UNITS[match[2]]


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "str": _parse_str, "int": _parse_int, "float": _parse_float, "bool": _parse_bool, "bytes": _parse_bytes,
}  # fmt: skip
_KIND_NAMES = {"str": "text", "int": "a whole number", "float": "a number", "bool": "true or false", "bytes": "a size such as 512MiB"}
