"""From what was typed to the frozen sections: fills in what depends on this machine and refuses what cannot work together.

Pure: the machine's facts come in as `HostFacts`. Knows no torch and no checkpoint. Invariant: equal inputs give equal
sections (but for a random seed that nobody set), and every automatic choice is in `Config.choices` with its reason.
"""

from __future__ import annotations

import logging
import os
import secrets
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from sapwood.config.options import BY_NAME
from sapwood.config.raw import RawOptions
from sapwood.config.sections import Choice, Config, EngineSection, LaunchSection, ModelOptions, SchedulerSection, ServerSection
from sapwood.errors import ConfigError

DEFAULT_MODEL = "smollm2-135m-instruct"
SMALL_HOST_CORES = 4


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
    seed = pick.choose("random_seed", secrets.randbits(62), "drawn; set it to repeat this run")
    model = ModelOptions(
        model_path=model_path,
        tokenizer_path=pick.get("tokenizer_path"),
        served_model_name=pick.get("served_model_name") or model_path,
        load_format=pick.get("load_format"),
        context_length=pick.get("context_length"),
        chat_template=pick.get("chat_template"),
        random_seed=seed,
    )
    engine = _engine(pick, device, host)
    scheduler = _scheduler(pick, engine)
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
        tp_size=tp_size,
        cpu_threads=pick.choose("cpu_threads", threads, f"{host.num_cores} usable cores for {tp_size} rank(s)"),
        page_size=pick.get("page_size"),
        max_running_requests=pick.get("max_running_requests"),
        mem_fraction_static=pick.get("mem_fraction_static"),
        kv_cache_bytes=pick.get("kv_cache_bytes"),
        max_total_tokens=pick.get("max_total_tokens"),
        null_step_ms=pick.get("null_step_ms"),
    )


def _scheduler(pick: _Chooser, engine: EngineSection) -> SchedulerSection:
    return SchedulerSection(
        policy=pick.get("schedule_policy"),
        mode=pick.get("schedule_mode"),
        prefix_cache="chunk" if pick.get("disable_radix_cache") else "radix",
        chunked_prefill_size=pick.get("chunked_prefill_size"),
        max_prefill_tokens=pick.get("max_prefill_tokens"),
        max_running_requests=engine.max_running_requests,
        conservativeness=pick.get("schedule_conservativeness"),
        overlap=not pick.get("disable_overlap_schedule"),
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
        log_level=pick.get("log_level"),
    )


def _launch(pick: _Chooser, host: HostFacts) -> LaunchSection:
    small = host.num_cores <= SMALL_HOST_CORES
    why = "one process fewer to share them" if small else "enough for a process of its own"
    place = pick.choose("detokenizer", "inline" if small else "process", f"{host.num_cores} usable cores: {why}")
    return LaunchSection(
        tp_size=pick.get("tp_size"),
        tokenizer_worker_num=pick.get("tokenizer_worker_num"),
        inline_detokenizer=place == "inline",
        restart=pick.get("restart"),
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
    chunk, page = raw.get("chunked_prefill_size"), raw.get("page_size")
    if chunk is not None and chunk != -1 and chunk < page:
        raise ConfigError(f"--chunked-prefill-size {chunk} is less than --page-size {page}; make it at least one page")
    if raw.get("model_path") == "null" and raw.get("tp_size") > 1:
        raise ConfigError("the null model has one rank; leave --tp-size out")
