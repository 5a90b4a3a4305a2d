"""The table of start options: the only place where an option is declared.

Flags, environment variables, file keys, `LLM` keywords and docs/reference/options.md all come from here. Knows nothing about
what the options do. Invariant: names and flags are unique; a default passes its own check.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from sapwood.config.values import (
    Option,
    at_least,
    chunk_size,
    fraction,
    not_blank,
    one_of,
    positive,
    power_of_two,
    same,
    within,
)
from sapwood.errors import ConfigError

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

_DTYPES = (*same("auto", "float32", "bfloat16", "float16"), ("float", "float32"), ("half", "float16"))
_KV_DTYPES = (
    *same("auto", "float32", "bfloat16", "float16", "int8"), ("fp32", "float32"), ("bf16", "bfloat16"), ("fp16", "float16"),
)  # fmt: skip
_POLICIES = (
    "fcfs", "lpm", "dfs-weight", "hrrn", "shortest-prefill-first", "lof", "random", "priority", "routing-key",
)  # fmt: skip
_TOOL_PARSERS = (
    *same("auto", "none", "hermes", "llama3", "mistral", "pythonic", "deepseek", "gpt-oss", "glm", "kimi", "qwen3-coder"),
    ("qwen", "hermes"), ("qwen25", "hermes"), ("qwen3_coder", "qwen3-coder"), ("deepseekv3", "deepseek"),
    ("deepseekv31", "deepseek"), ("glm45", "glm"), ("kimi_k2", "kimi"), ("harmony", "gpt-oss"),
)  # fmt: skip
_REASONING_PARSERS = (
    *same("auto", "none", "qwen3", "deepseek-r1", "glm", "kimi", "gpt-oss"), ("glm45", "glm"), ("harmony", "gpt-oss"),
)  # fmt: skip

# A table reads best as a table: one entry, one or two lines.
# fmt: off
OPTIONS: tuple[Option, ...] = (
    Option("model_path", "model", "str", None, ("model",), check=not_blank, automatic="smollm2-135m-instruct",
           help="Catalog name, folder, GGUF file or Hugging Face repository; `null` is the fake model."),
    Option("tokenizer_path", "model", "str", None, ("tokenizer",), check=not_blank, automatic="the model's own",
           help="Folder or file to take the tokenizer from."),
    Option("served_model_name", "model", "str", None, check=not_blank, automatic="the model path as given",
           help="The model's name in the API."),
    Option("load_format", "model", "str", "auto", values=same("auto", "safetensors", "gguf", "dummy"),
           help="How to read weights; `dummy` makes random ones for tests of speed."),
    Option("context_length", "model", "int", None, ("max_model_len",), check=at_least(2),
           automatic="what the model was trained for", help="Longest prompt plus completion, in tokens."),
    Option("chat_template", "model", "str", None, check=not_blank, automatic="the model's own",
           help="Replaces the model's chat template: a Jinja file, or alpaca, chatml, hermes (ChatML with tools) or llama3."),
    Option("is_embedding", "model", "bool", False,
           help="Serve a model that could make text for its vectors; encoders and classifiers are recognised without it."),
    Option("pooling", "model", "str", "auto", values=same("auto", "mean", "last", "cls"),
           help="Which hidden rows become an embedding; `auto` is the checkpoint's, else mean for encoders, last for others."),
    Option("trust_remote_code", "model", "bool", False, help="Always refused.",
           refused="Sapwood never runs code that comes with a checkpoint; leave the option out"),

    Option("device", "engine", "str", "auto", values=same("auto", "cpu", "cuda"),
           help="Where to compute; `auto` takes CUDA when there is one."),
    Option("dtype", "engine", "str", "auto", values=_DTYPES,
           help="Arithmetic of the torch backend; `auto` is float32 on a CPU, the checkpoint's elsewhere."),
    Option("kv_cache_dtype", "engine", "str", "auto", values=_KV_DTYPES,
           help="Type of stored keys and values; `auto` is float16 for native kernels, the arithmetic's elsewhere. `int8` "
                "(native kernels only) takes 17 bytes where float16 takes 32."),
    Option("kernel_backend", "engine", "str", "auto", values=same("auto", "native", "reference"),
           help="Who computes; `auto` is native on a CPU where it can run, torch elsewhere."),
    Option("quantization", "engine", "str", "none", values=same("none", "int8", "int4"),
           help="Round safetensors weights when native kernels load them; int4 keeps embedding and head at int8."),
    Option("activation_bits", "engine", "int", 8, check=one_of(8, 16),
           help="Bits of the inputs of native products with 4- to 6-bit weights. 16 takes about twice as long and computes what "
                "the unrounded inputs give, but for a part in ten thousand: for evaluations."),
    Option("disable_weight_cache", "engine", "bool", False,
           help="Do not keep packed weights in the cache folder; native kernels then pack them at every start."),
    Option("tp_size", "engine", "int", 1, ("tensor_parallel_size", "tp"), check=within(1, 64),
           help="Ranks that share one model (tensor parallel)."),
    Option("cpu_threads", "engine", "int", None, check=within(1, 1024), automatic="the usable cores, shared among the ranks",
           help="Compute threads of each rank on a CPU."),
    Option("cpu_isa", "engine", "str", "auto", values=same("auto", "portable", "avx2", "avxvnni", "vnni", "amx", "neon"),
           help="Instruction set of the native kernels; `auto` is the best there is. All give the same bits."),
    Option("random_seed", "engine", "int", None, check=within(0, 2**63 - 1), automatic="drawn at start",
           help="Where the seeds of requests without one, and dummy weights, come from."),
    Option("null_step_ms", "engine", "float", 0.0, check=within(0, 10000),
           help="How long a step of the `null` model takes; for tests of scheduling and serving."),
    Option("grammar_backend", "engine", "str", "llguidance", values=same("llguidance", "none"),
           help="Who compiles constraints (JSON schemas, regular expressions, grammars); `none` refuses them."),
    Option("constrained_json_disable_any_whitespace", "engine", "bool", False,
           help="Constrained JSON always looks like `{\"a\": 1, \"b\": 2}`, which lets more tokens be forced."),
    Option("disable_jump_forward", "engine", "bool", False,
           help="Compute tokens that a grammar forces one by one; the answers are the same."),
    Option("grammar_cache_size", "engine", "int", 128, check=within(0, 100000),
           help="Compiled constraints that are kept beyond those in use."),
    Option("max_constraint_bytes", "engine", "bytes", 256 << 10, check=within(1, 256 << 10),
           help="Largest constraint (JSON schema, regular expression, grammar), such as 64KiB; a larger one gets a 400."),
    Option("max_schema_depth", "engine", "int", 64, check=within(1, 64),
           help="Levels of a JSON schema, its values included; a deeper one gets a 400."),
    Option("max_regex_size", "engine", "int", 1_000_000, check=within(1000, 100_000_000),
           help="Parts of all regular expressions of one constraint, as the compiler counts them; more get a 400."),
    Option("max_regex_states", "engine", "int", 50_000, check=within(16, 1_000_000),
           help="States that the automaton of one completion may reach; where it needs more, it ends with an error."),
    Option("constraint_timeout_s", "engine", "float", 1.0, check=within(0.01, 60),
           help="Longest time that a server's client waits for its constraint to be compiled; then it gets a 400."),
    Option("disable_overlap_schedule", "engine", "bool", False, help="Wait for each step before planning the next."),

    Option("mem_fraction_static", "memory", "float", None, check=fraction, automatic="by device; see the memory table at start",
           help="Share of the device's memory for weights and KV cache."),
    Option("kv_cache_bytes", "memory", "bytes", None, ("kv_cache_memory_bytes",), check=at_least(1),
           automatic="from the fraction", help="Size of the KV cache of each rank, such as 2GiB; used instead of the fraction."),
    Option("max_total_tokens", "memory", "int", None, check=at_least(1), automatic="what the memory holds",
           help="Size of the KV cache in tokens; the smaller of this and the memory counts."),
    Option("disable_hybrid_swa_memory", "memory", "bool", False,
           help="Keep the whole context of layers that see only a window, in one pool with all others."),
    Option("swa_full_tokens_ratio", "memory", "float", None, check=within(0.001, 1.0), automatic="what windows can use",
           help="Size of the pool of layers that see a window, in tokens per token of the others."),
    Option("page_size", "memory", "int", 16, check=power_of_two, help="Tokens in one page of the KV cache."),
    Option("radix_eviction_policy", "memory", "str", "lru", values=same("lru", "lfu", "slru", "fifo", "priority", "tlru"),
           help="Which cached pages go first when memory is needed; `tlru` spares what would make a first token late."),
    Option("prefix_cache", "memory", "str", "radix", values=same("radix", "hash", "chunk"),
           help="How shared prefixes are found: token by token, by hashes of whole pages, or not at all."),
    Option("enable_hierarchical_cache", "memory", "bool", False,
           help="Keep what the KV cache has no room for in the host's memory (of a GPU) and in storage."),
    Option("hicache_ratio", "memory", "float", None, check=within(0.001, 1000), automatic="2 on CUDA, 0.25 on a CPU",
           help="Size of the host's tier, as a multiple of the KV cache. On a CPU it only carries pages to and from storage."),
    Option("hicache_size", "memory", "bytes", None, check=at_least(1), automatic="from the ratio",
           help="Size of the host's tier of each rank, such as 8GiB; used instead of the ratio."),
    Option("hicache_write_policy", "memory", "str", "write_through",
           values=same("write_through", "write_through_selective", "write_back"),
           help="When pages are saved to lower tiers: when computed, when first reused, or when memory is needed."),
    Option("hicache_storage_backend", "memory", "str", "none", values=same("none", "file", "redis"),
           help="Where the cache outlives the process: in a folder, or in a Redis server that engines may share."),
    Option("hicache_storage_path", "memory", "str", None, check=not_blank, automatic="kv in the cache folder",
           help="The folder of the `file` backend (for one server at a time), or the URL of the `redis` backend."),
    Option("hicache_storage_size", "memory", "bytes", 8 << 30, check=at_least(1),
           help="How much the `file` backend keeps; the oldest pages go first."),
    Option("hicache_storage_prefetch_policy", "memory", "str", "timeout", values=same("best_effort", "wait_complete", "timeout"),
           help="How long a request waits for its pages from storage: not, until they are there, or a second and a little."),
    Option("disable_radix_cache", "memory", "bool", False, help="The same as `--prefix-cache chunk`, as SGLang spells it."),

    Option("schedule_policy", "scheduling", "str", "fcfs", values=same(*_POLICIES),
           help="Order in which waiting requests are tried; docs/guide/scheduling.md describes each."),
    Option("schedule_aging_interval", "scheduling", "int", 16, check=at_least(0),
           help="Every so many admissions, whoever has waited longest goes first, whatever the policy; 0: never."),
    Option("enable_priority_scheduling", "scheduling", "bool", False,
           help="Let requests' `priority` count: more goes first; without it priorities are ignored."),
    Option("schedule_low_priority_values_first", "scheduling", "bool", False, help="A lower `priority` goes first instead."),
    Option("default_priority_value", "scheduling", "int", 0, check=within(-(2**31), 2**31 - 1),
           help="Priority of requests that bring none."),
    Option("priority_scheduling_preemption_threshold", "scheduling", "int", 10, check=at_least(0),
           help="A waiting request may take the place of running ones whose priority is lower by more than this."),
    Option("disable_priority_preemption", "scheduling", "bool", False,
           help="Priorities only order the queue; nobody is preempted."),
    Option("queue_timeout_s", "scheduling", "float", None, check=positive, automatic="no limit",
           help="Longest time that a request waits before it runs; then it gets a 503."),
    Option("request_timeout_s", "scheduling", "float", None, check=positive, automatic="no limit",
           help="Longest time from a request's arrival to its end; then it gets a 408."),
    Option("schedule_mode", "scheduling", "str", "mixed", values=same("mixed", "prefill-first"),
           help="Whether a step mixes decodes with prompt chunks, or prompts go first."),
    Option("enable_mixed_chunk", "scheduling", "bool", False, help="The same as `--schedule-mode mixed`, as SGLang spells it."),
    Option("chunked_prefill_size", "scheduling", "int", None, check=chunk_size, automatic="by device",
           help="Tokens in one step before the rest of a prompt waits for the next; -1: no limit."),
    Option("target_itl_ms", "scheduling", "float", None, check=positive, automatic="none: the budget is fixed",
           help="Typical time between tokens of a running stream; prompts beside it are cut to fit, by measured step times."),
    Option("max_prefill_tokens", "scheduling", "int", 16384, check=at_least(1),
           help="Prompt tokens in one step, over all requests."),
    Option("max_running_requests", "scheduling", "int", None, ("max_num_seqs",), check=at_least(1), automatic="by device",
           help="Requests that run at the same time."),
    Option("schedule_conservativeness", "scheduling", "float", 1.0, check=within(0, 10),
           help="How much future output is set aside at admission; more means fewer retractions."),

    Option("request_timelines", "scheduling", "int", 256, check=within(0, 1_000_000),
           help="How many of the latest requests /debug/requests/{rid} knows; 0: none."),
    Option("step_log", "scheduling", "str", None, check=not_blank, automatic="none",
           help="File for a record of every step, prompts' ids included; `sapwood replay` repeats it."),

    Option("host", "server", "str", "127.0.0.1", check=not_blank, help="Address to listen on."),
    Option("port", "server", "int", 30000, check=within(0, 65535), help="Port to listen on; 0 takes a free one."),
    Option("api_key", "server", "str", None, check=not_blank, automatic="none", secret=True,
           help="Key that every route but health asks for; several are separated by commas."),
    Option("api_key_file", "server", "str", None, check=not_blank, automatic="none",
           help="File with further keys, one in a line; lines that begin with # are left out."),
    Option("admin_api_key", "server", "str", None, check=not_blank, automatic="the API key", secret=True,
           help="Key that admin routes ask for instead."),
    Option("weight_update_folder", "server", "str", None, check=not_blank, automatic="updates are refused",
           help="Folder whose models `/update_weights_from_disk` may load."),
    Option("enable_metrics", "server", "bool", False, help="Serve Prometheus metrics at /metrics."),
    Option("request_log", "server", "str", None, check=not_blank, automatic="none",
           help="File for one line of JSON about each ended request: ids, counts, times, how it ended; no texts."),
    Option("request_log_texts", "server", "bool", False, help="Put prompts and completions into the request log, too."),
    Option("otlp_traces_endpoint", "server", "str", None, check=not_blank, automatic="none",
           help="URL of an OpenTelemetry collector (http://host:4318/v1/traces) for spans of requests; extra `otel`."),
    Option("kv_events_config", "server", "str", None, check=not_blank, automatic="no feed",
           help="ZeroMQ feed of what enters and leaves the prefix cache, as JSON: `endpoint` (tcp://*:5557), `topic`."),
    Option("tool_call_parser", "server", "str", "auto", values=_TOOL_PARSERS,
           help="How the model writes calls of tools; `auto` finds it in the chat template, `none` leaves them in the text."),
    Option("reasoning_parser", "server", "str", "auto", values=_REASONING_PARSERS,
           help="How the model marks its reasoning; `auto` finds it in the chat template, `none` leaves it in the text."),
    Option("max_queued_requests", "server", "int", 16384, check=at_least(1),
           help="Unfinished requests beyond which new ones get a 429."),
    Option("max_requests_per_minute", "server", "int", None, check=at_least(1), automatic="no limit",
           help="Calls of one key (or address, without keys) in any minute; more get a 429 that says when to come back."),
    Option("max_requests_at_once", "server", "int", None, check=at_least(1), automatic="no limit",
           help="Calls of one key (or address, without keys) that may be open at the same time."),
    Option("max_prompt_tokens", "server", "int", None, check=at_least(1), automatic="what the context holds",
           help="Tokens in one prompt; a longer one gets a 400."),
    Option("max_samples", "server", "int", 128, check=within(1, 128), help="Samples of one prompt (`n`)."),
    Option("max_stop_strings", "server", "int", 32, check=within(0, 32), help="Stop strings (or expressions) of one request."),
    Option("max_logprobs", "server", "int", 128, check=within(0, 128), help="Candidates at each position (`top_logprobs`)."),
    Option("max_logit_bias", "server", "int", 1024, check=within(0, 1024), help="Entries of `logit_bias`."),
    Option("max_stop_chars", "server", "int", 4096, check=within(0, 4096),
           help="Characters of all stop strings of one request together."),
    Option("max_stop_regex_bytes", "server", "int", 256, check=within(0, 256), help="Length of one stop expression."),
    Option("max_json_depth", "server", "int", 128, check=within(4, 512),
           help="Objects and lists inside of each other in a body; a deeper one gets a 400."),
    Option("max_body_bytes", "server", "bytes", 64 << 20, check=at_least(1024),
           help="Largest body of a request, such as 64MiB; a larger one gets a 413."),
    Option("max_head_bytes", "server", "bytes", 64 << 10, check=at_least(1024),
           help="Largest request line and headers together; larger ones get a 431."),
    Option("head_timeout_s", "server", "float", 30.0, check=positive,
           help="Longest time from a connection's beginning to the end of its request's headers."),
    Option("body_timeout_s", "server", "float", 30.0, check=positive,
           help="Longest time that a body takes, and a second more for each 16 KiB that have come; then it gets a 408."),
    Option("read_timeout_s", "server", "float", 300.0, check=positive,
           help="Longest time that a client may leave its answer unread; then its connection is closed."),
    Option("ssl_certfile", "server", "str", None, check=not_blank, automatic="plain HTTP",
           help="Certificate (PEM, with its chain): serve HTTPS."),
    Option("ssl_keyfile", "server", "str", None, check=not_blank, automatic="in the certificate's file",
           help="The certificate's private key (PEM)."),
    Option("ssl_keyfile_password", "server", "str", None, check=not_blank, automatic="none", secret=True,
           help="Password of the private key."),
    Option("ssl_ca_certs", "server", "str", None, check=not_blank, automatic="clients need no certificate",
           help="Certificates (PEM) of whoever signs clients' certificates; a client must then show one."),
    Option("allow_auto_truncate", "server", "bool", False,
           help="Shorten what exceeds the context length instead of refusing it."),
    Option("stream_interval", "server", "int", 1, check=at_least(1), help="Tokens in one chunk of a stream."),
    Option("incremental_streaming_output", "server", "bool", False,
           help="/generate streams only what is new, not the whole text so far."),
    Option("log_level", "server", "str", "info", values=same("debug", "info", "warning", "error"),
           help="The least severe messages that are logged."),

    Option("tokenizer_worker_num", "processes", "int", 0, check=within(0, 64),
           help="Tokenizer processes; 0: a thread of the server."),
    Option("detokenizer", "processes", "str", "auto", values=same("auto", "inline", "process"),
           help="Where text is made; `auto` is inline on four cores or fewer."),
    Option("restart", "processes", "str", "always", values=same("never", "always"),
           help="What happens when a process dies: start it again and go on with every request, or end with an error."),
    Option("watchdog_timeout", "processes", "float", 60.0, check=at_least(0.1),
           help="Seconds that a step or an answer may take before a process counts as hung; steps that measure longer get more."),
    Option("crash_dump_folder", "processes", "str", None, check=not_blank, automatic="crashes in the cache folder",
           help="Where the report of a crash or hang is written: JSON without texts, the latest 50."),
    Option("startup_timeout_s", "processes", "float", 600.0, check=at_least(1),
           help="Longest time until every process is ready."),
    Option("drain_timeout_s", "processes", "float", 30.0, check=at_least(0),
           help="Longest time that running requests, and then the cache on its way to storage, get at a stop."),
)
# fmt: on

BY_NAME: dict[str, Option] = {name: option for option in OPTIONS for name in (option.name, *option.aliases)}


def find(name: str, source: str) -> Option:
    """The option called `name` (dashes or underscores, aliases too); raises ConfigError with the closest names."""
    option = BY_NAME.get(name.replace("-", "_"))
    if option is None:
        raise unknown_option(name, BY_NAME, source)
    return option


def unknown_option(name: str, known: Iterable[str], source: str) -> ConfigError:
    """The error for a name that is not in `known`, with the closest one that is."""
    by_spelling = {k.replace("_", "-"): k for k in known}
    close = difflib.get_close_matches(name.replace("_", "-"), by_spelling, n=1, cutoff=0.6)
    hint = f"; did you mean {by_spelling[close[0]]}?" if close else "; docs/reference/options.md lists the options"
    return ConfigError(f"{source}: unknown option {name}{hint}", param=name)
