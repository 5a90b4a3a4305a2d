"""Pages in Redis, over a socket to a server that speaks its protocol: what was written is read, all else is a miss."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from sapwood.errors import ConfigError
from sapwood.kvcache.storage import StorageOptions, storage_backends
from sapwood.kvcache.storage_redis import RedisStorage, open_redis_storage

PAGE = 1000
fakeredis = pytest.importorskip("fakeredis")


def options(url: str, fingerprint: bytes = b"f" * 32) -> StorageOptions:
    return StorageOptions(url, fingerprint, PAGE, 0)


@pytest.fixture
def url() -> Iterator[str]:
    server = fakeredis.TcpFakeServer(("127.0.0.1", 0))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"redis://127.0.0.1:{server.server_address[1]}/0"
    server.shutdown()
    server.server_close()


def key_of(number: int) -> bytes:
    return number.to_bytes(32, "big")


def page_of(number: int) -> bytes:
    return bytes([number]) * PAGE


def read(storage: RedisStorage, number: int) -> bytes | None:
    into = bytearray(PAGE)
    return bytes(into) if storage.read(key_of(number), memoryview(into)) else None


def test_what_is_written_is_read_by_others_of_the_same_kind(url: str) -> None:
    first, second = open_redis_storage(options(url)), open_redis_storage(options(url))
    stranger = open_redis_storage(options(url, b"g" * 32))
    for number in range(3):
        first.write(key_of(number), memoryview(page_of(number)))
    first.write(key_of(1), memoryview(page_of(9)))  # kept already
    assert [read(second, number) for number in range(4)] == [page_of(0), page_of(1), page_of(2), None]
    assert second.count_leading([key_of(n) for n in (2, 0, 7, 1)]) == 2
    assert read(stranger, 0) is None and stranger.count_leading([key_of(0)]) == 0
    for storage in (first, second, stranger):
        storage.close()


def test_damaged_values_are_misses(url: str) -> None:
    storage = open_redis_storage(options(url))
    storage.write(key_of(1), memoryview(page_of(1)))
    name = storage._prefix + key_of(1)
    value = bytearray(storage._client.get(name))
    for position in (0, 15, 16, 500, len(value) - 1):
        damaged = bytearray(value)
        damaged[position] ^= 1
        storage._client.set(name, bytes(damaged))
        assert read(storage, 1) is None
    storage._client.set(name, bytes(value[:-1]))
    assert read(storage, 1) is None
    storage._client.set(name, bytes(value))
    assert read(storage, 1) == page_of(1)
    storage.close()


def test_a_server_that_is_gone_is_an_os_error() -> None:
    storage = open_redis_storage(options("redis://127.0.0.1:1/0"))
    with pytest.raises(OSError, match="redis"):
        storage.count_leading([key_of(1)])
    storage.close()


def test_a_wrong_url_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="redis://host"):
        storage_backends.get("redis")(options("folder/kv"))
