"""Options of the prefix cache: tiers, storage and the feed of events; what cannot work together is refused."""

from __future__ import annotations

from typing import Any

import pytest

from sapwood.config.raw import from_mapping
from sapwood.config.resolve import HostFacts, resolve
from sapwood.config.sections import Config
from sapwood.errors import ConfigError
from sapwood.worker.tiers import count_host_pages

CPU, CUDA = HostFacts(2, False), HostFacts(32, True)
FILES = {"enable_hierarchical_cache": True, "hicache_storage_backend": "file"}


def configure(host: HostFacts = CPU, **options: Any) -> Config:
    return resolve(from_mapping(options, "test"), host)


def test_without_options_there_are_no_tiers() -> None:
    config = configure()
    assert count_host_pages(config.engine.cache, 100, 1000) == 0
    assert (config.engine.cache.storage, config.engine.cache.events_endpoint) == ("none", None)
    assert (config.scheduler.prefix_cache, config.scheduler.eviction) == ("radix", "lru")
    assert configure(prefix_cache="hash", radix_eviction_policy="slru").scheduler.eviction == "slru"


def test_the_hosts_tier_follows_ratio_or_size() -> None:
    assert count_host_pages(configure(**FILES).engine.cache, 100, 1000) == 25
    assert count_host_pages(configure(CUDA, enable_hierarchical_cache=True).engine.cache, 100, 1000) == 200
    assert count_host_pages(configure(**FILES, hicache_ratio=3).engine.cache, 100, 1000) == 300
    assert count_host_pages(configure(**FILES, hicache_size=7500).engine.cache, 100, 1000) == 7
    assert count_host_pages(configure(**FILES, hicache_size=5).engine.cache, 100, 1000) == 1


def test_the_feed_is_json_as_others_write_it() -> None:
    cache = configure(kv_events_config='{"publisher": "zmq", "topic": "kv-events"}').engine.cache
    assert (cache.events_endpoint, cache.events_topic) == ("tcp://*:5557", "kv-events")
    assert configure(kv_events_config='{"endpoint": "ipc:///tmp/x"}').engine.cache.events_endpoint == "ipc:///tmp/x"
    for wrong in ("zmq", "[]", '{"publisher": "null"}', '{"port": 3}', '{"topic": 3}'):
        with pytest.raises(ConfigError, match="--kv-events-config"):
            configure(kv_events_config=wrong)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"hicache_storage_backend": "file"}, "--enable-hierarchical-cache"),
        ({"enable_hierarchical_cache": True}, "--hicache-storage-backend file"),
        ({**FILES, "disable_radix_cache": True}, "prefix cache"),
        ({**FILES, "prefix_cache": "chunk"}, "prefix cache"),
        ({**FILES, "hicache_size": 1000, "hicache_ratio": 2}, "--hicache-ratio"),
        ({**FILES, "tp_size": 2}, "one rank"),
        ({"enable_hierarchical_cache": True, "hicache_storage_backend": "redis"}, "redis://"),
        ({"disable_radix_cache": True, "prefix_cache": "hash"}, "contradicts"),
        ({"kv_events_config": "{}", "prefix_cache": "chunk"}, "prefix cache"),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        configure(**options)


def test_a_gpu_or_the_null_model_needs_no_storage() -> None:
    assert configure(CUDA, enable_hierarchical_cache=True).engine.cache.host_bytes is None
    assert configure(model_path="null", enable_hierarchical_cache=True).engine.cache.host_bytes is None
