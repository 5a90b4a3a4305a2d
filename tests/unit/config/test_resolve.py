"""From typed options to sections: automatic choices have reasons, contradictions are refused."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

from sapwood.config.raw import from_mapping
from sapwood.config.resolve import HostFacts, log_choices, probe_host, resolve
from sapwood.config.sections import Config
from sapwood.errors import ConfigError

SMALL, LARGE, CUDA = HostFacts(2, False), HostFacts(32, False), HostFacts(32, True)


def configure(host: HostFacts = SMALL, **options: Any) -> Config:
    return resolve(from_mapping(options, "test"), host)


def test_defaults_on_a_small_cpu() -> None:
    config = configure()
    assert (config.model.model_path, config.engine.device, config.engine.kernel_backend) == (
        "smollm2-135m-instruct",
        "cpu",
        "auto",
    )
    assert config.launch.inline_detokenizer and config.engine.cpu_threads == 2
    assert config.scheduler.overlap and config.scheduler.prefix_cache == "radix" and config.scheduler.mode == "mixed"
    assert config.server.served_model_name == "smollm2-135m-instruct"


def test_choices_follow_the_machine() -> None:
    assert configure(LARGE).launch.inline_detokenizer is False
    assert configure(LARGE, detokenizer="inline").launch.inline_detokenizer is True
    assert configure(LARGE, tp_size=4).engine.cpu_threads == 8
    assert configure(CUDA).engine.device == "cuda"
    assert configure(CUDA, device="cpu").engine.device == "cpu"
    assert configure(CUDA, model_path="null").engine.device == "cpu"


def test_every_automatic_choice_is_logged_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    config = configure(dtype="bfloat16", random_seed=7)
    assert all(choice.reason for choice in config.choices)
    with caplog.at_level(logging.INFO):
        log_choices(config, logging.getLogger("test"))
    assert "--detokenizer inline (2 usable cores" in caplog.text
    assert "--dtype" not in caplog.text and "--random-seed" not in caplog.text
    assert config.model.random_seed == 7


def test_what_only_the_device_can_tell_is_left_open() -> None:
    config = configure()
    assert config.scheduler.chunked_prefill_size is None and config.engine.max_running_requests is None
    assert configure(chunked_prefill_size=-1).scheduler.chunked_prefill_size == -1
    limited = configure(max_running_requests=3)
    assert limited.engine.max_running_requests == limited.scheduler.max_running_requests == 3


@pytest.mark.parametrize(
    "options",
    [
        {"enable_mixed_chunk": True, "schedule_mode": "prefill-first"},
        {"kv_cache_bytes": "1GiB", "mem_fraction_static": 0.5},
        {"device": "cpu", "dtype": "float16"},
        {"chunked_prefill_size": 8, "page_size": 16},
        {"model_path": "null", "tp_size": 2},
        {"swa_full_tokens_ratio": 0.5, "disable_hybrid_swa_memory": True},
        {"swa_full_tokens_ratio": 0.5, "enable_hierarchical_cache": True, "hicache_storage_backend": "file"},
    ],
)
def test_contradictions_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        configure(**options)
    assert "--" in caught.value.message


def test_a_config_travels_as_json() -> None:
    config = configure(LARGE, api_key="secret")
    assert msgspec.json.decode(msgspec.json.encode(config), type=Config) == config


def test_this_machine_can_be_probed() -> None:
    assert probe_host().num_cores >= 1
