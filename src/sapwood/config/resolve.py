"""From what was typed to the frozen sections: fills in what depends on this machine and refuses what cannot work together.

Pure: the machine's facts come in as `HostFacts`. Knows no torch and no checkpoint. Invariant: equal inputs give equal
sections (but for a random seed that nobody set), and every automatic choice is in `Config.choices` with its reason.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from sapwood.config.options import BY_NAME
from sapwood.config.raw import RawOptions
from sapwood.config.sections import (
    CacheSection,
    CapsSection,
    Choice,
    Config,
    EngineSection,
    GrammarLimits,
    GrammarSection,
    LaunchSection,
    ModelOptions,
    SchedulerSection,
    ServerSection,
    TlsSection,
)
from sapwood.errors import ConfigError

DEFAULT_MODEL = "smollm2-135m-instruct"
SMALL_HOST_CORES = 4
CUDA_HOST_RATIO = 2.0
DEFAULT_EVENTS_ENDPOINT = "tcp://*:5557"
CPU_HOST_RATIO = 0.25


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What automatic choices need to know about the machine: cores this process may use, and whether CUDA can be used."""

    num_cores: int
    has_cuda: bool


def probe_host() -> HostFacts:
    """The facts of this machine, found without importing torch."""
    driver = any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/dxg"))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return HostFacts(cores, driver and not metadata.version("torch").endswith("+cpu"))


class _Chooser:
    """Reads options; values that it chooses itself are written down with the reason."""

    def __init__(self, raw: RawOptions) -> None:
        self._raw = raw
        self.choices: list[Choice] = []

    def get(self, name: str) -> Any:
        """The value that was set, or the table's default."""
        return self._raw.get(name)

    def choose(self, name: str, value: Any, reason: str) -> Any:
        """The value that was set, unless that is None or "auto": then `value`, noted with `reason`."""
        given = self._raw.get(name)
        if given not in (None, "auto"):
            return given
        self.choices.append(Choice(BY_NAME[name].flags[0], str(value), reason))
        return value


def resolve(raw: RawOptions, host: HostFacts) -> Config:
    """The frozen configuration; raises ConfigError for options that cannot work together, naming both."""
    _refuse_contradictions(raw)
    pick = _Chooser(raw)
    model_path = pick.choose("model_path", DEFAULT_MODEL, "the catalog's default")
    on_cuda = host.has_cuda and model_path != "null"
    why = "a CUDA device is present" if on_cuda else "no CUDA device can be used"
    device = pick.choose("device", "cuda" if on_cuda else "cpu", why)
    _refuse_tiers(raw, device)
    seed = pick.choose("random_seed", secrets.randbits(62), "drawn; set it to repeat this run")
    model = ModelOptions(
        model_path=model_path,
        tokenizer_path=pick.get("tokenizer_path"),
        served_model_name=pick.get("served_model_name") or model_path,
        load_format=pick.get("load_format"),
        context_length=pick.get("context_length"),
        chat_template=pick.get("chat_template"),
        random_seed=seed,
        is_embedding=pick.get("is_embedding"),
        pooling=pick.get("pooling"),
    )
    engine = _engine(pick, device, host)
    scheduler = _scheduler(pick, engine, seed)
    server, launch = _server(pick, model), _launch(pick, host)
    return Config(model, engine, scheduler, server, launch, tuple(pick.choices))


def log_choices(config: Config, logger: logging.Logger) -> None:
    """One line for each automatic choice."""
    for choice in config.choices:
        logger.info("%s %s (%s)", choice.option, choice.value, choice.reason)


def _engine(pick: _Chooser, device: str, host: HostFacts) -> EngineSection:
    tp_size = pick.get("tp_size")
    threads = max(1, host.num_cores // tp_size)
    return EngineSection(
        device=device,
        kernel_backend=pick.get("kernel_backend"),
        dtype=pick.get("dtype"),
        kv_cache_dtype=pick.get("kv_cache_dtype"),
        quantization=pick.get("quantization"),
        activation_bits=pick.get("activation_bits"),
        weight_cache=not pick.get("disable_weight_cache"),
        tp_size=tp_size,
        cpu_threads=pick.choose("cpu_threads", threads, f"{host.num_cores} usable cores for {tp_size} rank(s)"),
        cpu_isa=pick.get("cpu_isa"),
        page_size=pick.get("page_size"),
        max_running_requests=pick.get("max_running_requests"),
        mem_fraction_static=pick.get("mem_fraction_static"),
        kv_cache_bytes=pick.get("kv_cache_bytes"),
        max_total_tokens=pick.get("max_total_tokens"),
        hybrid_swa_memory=not pick.get("disable_hybrid_swa_memory"),
        swa_full_tokens_ratio=pick.get("swa_full_tokens_ratio"),
        null_step_ms=pick.get("null_step_ms"),
        cache=_cache(pick, device == "cpu"),
        grammar=_grammar(pick),
    )


def _grammar(pick: _Chooser) -> GrammarSection:
    return GrammarSection(
        backend=pick.get("grammar_backend"),
        any_whitespace=not pick.get("constrained_json_disable_any_whitespace"),
        jump_forward=not pick.get("disable_jump_forward"),
        cache_size=pick.get("grammar_cache_size"),
        limits=GrammarLimits(
            num_bytes=pick.get("max_constraint_bytes"),
            schema_depth=pick.get("max_schema_depth"),
            regex_size=pick.get("max_regex_size"),
            regex_states=pick.get("max_regex_states"),
            compile_s=pick.get("constraint_timeout_s"),
        ),
    )


def _cache(pick: _Chooser, on_cpu: bool) -> CacheSection:
    is_on = pick.get("enable_hierarchical_cache")
    return CacheSection(
        host_bytes=pick.get("hicache_size") if is_on else 0,
        host_ratio=pick.get("hicache_ratio") or (CPU_HOST_RATIO if on_cpu else CUDA_HOST_RATIO),
        write_policy=pick.get("hicache_write_policy"),
        storage=pick.get("hicache_storage_backend"),
        storage_path=pick.get("hicache_storage_path"),
        storage_bytes=pick.get("hicache_storage_size"),
        prefetch=pick.get("hicache_storage_prefetch_policy"),
        **_events(pick.get("kv_events_config")),
    )


def _events(text: str | None) -> dict[str, Any]:
    """Endpoint and topic of `--kv-events-config`, which is JSON as vLLM and SGLang write it."""
    if text is None:
        return {"events_endpoint": None, "events_topic": ""}
    try:
        fields = json.loads(text)
        unknown = fields.keys() - {"publisher", "endpoint", "topic"}
    except (ValueError, AttributeError):
        raise ConfigError(f"--kv-events-config takes a JSON object, got {text!r}", param="kv_events_config") from None
    if unknown or fields.get("publisher", "zmq") != "zmq" or not all(isinstance(value, str) for value in fields.values()):
        known = "publisher (zmq), endpoint, topic"
        raise ConfigError(f"--kv-events-config: {text} is not understood; known fields: {known}", param="kv_events_config")
    return {"events_endpoint": fields.get("endpoint", DEFAULT_EVENTS_ENDPOINT), "events_topic": fields.get("topic", "")}


def _refuse_tiers(raw: RawOptions, device: str) -> None:
    """Combinations of tiers that cannot work."""
    has_storage = raw.get("hicache_storage_backend") != "none"
    if not raw.get("enable_hierarchical_cache"):
        if has_storage:
            raise ConfigError("--hicache-storage-backend needs --enable-hierarchical-cache; add it")
        return
    if raw.get("disable_radix_cache") or raw.get("prefix_cache") == "chunk":
        raise ConfigError("--enable-hierarchical-cache needs a prefix cache; leave --disable-radix-cache (or chunk) out")
    if raw.get("hicache_size") is not None and raw.get("hicache_ratio") is not None:
        raise ConfigError("--hicache-size and --hicache-ratio both set the size of the host's tier; leave one of them out")
    if raw.get("hicache_storage_backend") == "redis" and not raw.get("hicache_storage_path"):
        raise ConfigError("--hicache-storage-backend redis needs --hicache-storage-path redis://host:6379/0")
    if has_storage and raw.get("tp_size") > 1:
        raise ConfigError("--hicache-storage-backend works with one rank so far; leave --tp-size or the backend out")
    if device == "cpu" and raw.get("model_path") != "null" and not has_storage:
        message = "on a CPU the KV cache lies in the host's memory already; add --hicache-storage-backend file"
        raise ConfigError(f"--enable-hierarchical-cache: {message}, or leave it out")


def _scheduler(pick: _Chooser, engine: EngineSection, random_seed: int) -> SchedulerSection:
    target_ms = pick.get("target_itl_ms")
    return SchedulerSection(
        policy=pick.get("schedule_policy"),
        mode=pick.get("schedule_mode"),
        prefix_cache="chunk" if pick.get("disable_radix_cache") else pick.get("prefix_cache"),
        eviction=pick.get("radix_eviction_policy"),
        chunked_prefill_size=pick.get("chunked_prefill_size"),
        max_prefill_tokens=pick.get("max_prefill_tokens"),
        max_running_requests=engine.max_running_requests,
        conservativeness=pick.get("schedule_conservativeness"),
        overlap=not pick.get("disable_overlap_schedule"),
        target_itl_s=None if target_ms is None else target_ms / 1000,
        aging_interval=pick.get("schedule_aging_interval"),
        priority_scheduling=pick.get("enable_priority_scheduling") or pick.get("schedule_policy") == "priority",
        low_priority_values_first=pick.get("schedule_low_priority_values_first"),
        preemption_threshold=None
        if pick.get("disable_priority_preemption")
        else pick.get("priority_scheduling_preemption_threshold"),
        random_seed=random_seed,
        max_queue=pick.get("max_queued_requests"),
        queue_timeout_s=pick.get("queue_timeout_s"),
        request_timeout_s=pick.get("request_timeout_s"),
        request_timelines=pick.get("request_timelines"),
        step_log=pick.get("step_log"),
    )


def _server(pick: _Chooser, model: ModelOptions) -> ServerSection:
    return ServerSection(
        host=pick.get("host"),
        port=pick.get("port"),
        served_model_name=model.served_model_name,
        api_key=pick.get("api_key"),
        admin_api_key=pick.get("admin_api_key"),
        enable_metrics=pick.get("enable_metrics"),
        max_queued_requests=pick.get("max_queued_requests"),
        allow_auto_truncate=pick.get("allow_auto_truncate"),
        stream_interval=pick.get("stream_interval"),
        incremental_streaming_output=pick.get("incremental_streaming_output"),
        random_seed=model.random_seed,
        default_priority=pick.get("default_priority_value"),
        request_timelines=pick.get("request_timelines"),
        log_level=pick.get("log_level"),
        tool_call_parser=pick.get("tool_call_parser"),
        reasoning_parser=pick.get("reasoning_parser"),
        weight_update_folder=pick.get("weight_update_folder"),
        request_log=pick.get("request_log"),
        request_log_texts=pick.get("request_log_texts"),
        otlp_traces_endpoint=pick.get("otlp_traces_endpoint"),
        api_key_file=pick.get("api_key_file"),
        max_requests_per_minute=pick.get("max_requests_per_minute"),
        max_requests_at_once=pick.get("max_requests_at_once"),
        max_json_depth=pick.get("max_json_depth"),
        max_body_bytes=pick.get("max_body_bytes"),
        max_head_bytes=pick.get("max_head_bytes"),
        head_timeout_s=pick.get("head_timeout_s"),
        body_timeout_s=pick.get("body_timeout_s"),
        read_timeout_s=pick.get("read_timeout_s"),
        tls=_tls(pick),
        caps=_caps(pick),
    )


def _caps(pick: _Chooser) -> CapsSection:
    return CapsSection(
        samples=pick.get("max_samples"),
        stop_strings=pick.get("max_stop_strings"),
        stop_chars=pick.get("max_stop_chars"),
        stop_regex_bytes=pick.get("max_stop_regex_bytes"),
        top_logprobs=pick.get("max_logprobs"),
        logit_bias=pick.get("max_logit_bias"),
        prompt_tokens=pick.get("max_prompt_tokens"),
    )


def _tls(pick: _Chooser) -> TlsSection | None:
    certfile, others = pick.get("ssl_certfile"), [pick.get(f"ssl_{name}") for name in ("keyfile", "keyfile_password", "ca_certs")]
    if certfile is None and any(others):
        raise ConfigError("--ssl-keyfile, --ssl-keyfile-password and --ssl-ca-certs need --ssl-certfile; add it")
    return None if certfile is None else TlsSection(certfile, *others)


def _launch(pick: _Chooser, host: HostFacts) -> LaunchSection:
    small = host.num_cores <= SMALL_HOST_CORES
    why = "one process fewer to share them" if small else "enough for a process of its own"
    place = pick.choose("detokenizer", "inline" if small else "process", f"{host.num_cores} usable cores: {why}")
    return LaunchSection(
        tp_size=pick.get("tp_size"),
        tokenizer_worker_num=pick.get("tokenizer_worker_num"),
        inline_detokenizer=place == "inline",
        restart=pick.get("restart"),
        watchdog_timeout_s=pick.get("watchdog_timeout"),
        crash_dump_folder=pick.get("crash_dump_folder"),
        startup_timeout_s=pick.get("startup_timeout_s"),
        drain_timeout_s=pick.get("drain_timeout_s"),
        log_level=pick.get("log_level"),
    )


def _refuse_contradictions(raw: RawOptions) -> None:
    if raw.get("enable_mixed_chunk") and raw.get("schedule_mode") != "mixed":
        raise ConfigError("--enable-mixed-chunk contradicts --schedule-mode prefill-first; leave one of them out")
    if raw.get("kv_cache_bytes") is not None and raw.get("mem_fraction_static") is not None:
        raise ConfigError("--kv-cache-bytes and --mem-fraction-static both set the size of the KV cache; leave one of them out")
    if raw.get("device") == "cpu" and raw.get("dtype") == "float16":
        raise ConfigError("--dtype float16 does not run on a CPU; take float32 or bfloat16")
    if raw.get("kv_events_config") and (raw.get("disable_radix_cache") or raw.get("prefix_cache") == "chunk"):
        raise ConfigError("--kv-events-config needs a prefix cache; leave --disable-radix-cache (or chunk) out")
    if raw.get("disable_radix_cache") and raw.get("prefix_cache") == "hash":
        raise ConfigError("--disable-radix-cache contradicts --prefix-cache hash; leave one of them out")
    if raw.get("target_itl_ms") is not None and raw.get("schedule_mode") != "mixed":
        raise ConfigError("--target-itl-ms cuts mixed steps; --schedule-mode prefill-first has none; leave one of them out")
    for one_pool in ("disable_hybrid_swa_memory", "enable_hierarchical_cache"):
        if raw.get("swa_full_tokens_ratio") is not None and raw.get(one_pool):
            flag = "--" + one_pool.replace("_", "-")
            message = "sizes a pool of their own for layers with a window, and there is none with"
            raise ConfigError(f"--swa-full-tokens-ratio {message} {flag}; leave one of them out")
    chunk, page = raw.get("chunked_prefill_size"), raw.get("page_size")
    if chunk is not None and chunk != -1 and chunk < page:
        raise ConfigError(f"--chunked-prefill-size {chunk} is less than --page-size {page}; make it at least one page")
    if raw.get("model_path") == "null" and raw.get("tp_size") > 1:
        raise ConfigError("the null model has one rank; leave --tp-size out")
