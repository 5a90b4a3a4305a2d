"""Pages of KV in a Redis server, which several engines of one model may share.

Owns the connection; how much is kept is the server's business (`maxmemory`, with an `allkeys-lru` policy). Invariant: a value
counts only if its checksum, over fingerprint, key and content, is right when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sapwood.errors import ConfigError
from sapwood.kvcache.storage import CHECKSUM_BYTES, StorageOptions, page_checksum, storage_backends

TIMEOUT_S = 2.0
KEEP_S = 7 * 24 * 3600
"""A page that nobody wrote for so long goes."""

T = TypeVar("T")


class RedisStorage:
    """See `Storage` for the contract. `client` is a `redis.Redis` that delivers bytes."""

    def __init__(self, options: StorageOptions, client: Any, failure: type[Exception]) -> None:
        self._options = options
        self._client = client
        self._failure = failure
        self._prefix = b"sapwood:kv:" + options.fingerprint.hex()[:16].encode() + b":"

    def count_leading(self, keys: Sequence[bytes]) -> int:
        """How many of the keys, from the first on, are held."""
        pipeline = self._client.pipeline(transaction=False)
        for key in keys:
            pipeline.exists(self._prefix + key)
        known = self._ask(pipeline.execute)
        return [*map(bool, known), False].index(False)

    def read(self, key: bytes, into: memoryview) -> bool:
        """Fill `into` with a page and prove it."""
        value = self._ask(lambda: self._client.get(self._prefix + key))
        if value is None or len(value) != CHECKSUM_BYTES + len(into):
            return False
        page = memoryview(value)[CHECKSUM_BYTES:]
        if value[:CHECKSUM_BYTES] != page_checksum(self._options.fingerprint, key, page):
            return False
        into[:] = page
        return True

    def write(self, key: bytes, data: memoryview) -> None:
        """Keep a page, unless it is kept already."""
        if self._ask(lambda: self._client.exists(self._prefix + key)):
            return
        value = page_checksum(self._options.fingerprint, key, data) + bytes(data)
        self._ask(lambda: self._client.set(self._prefix + key, value, ex=KEEP_S, nx=True))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _ask(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except self._failure as error:
            raise OSError(f"redis: {error}") from error


@storage_backends.register("redis")
def open_redis_storage(options: StorageOptions) -> RedisStorage:
    """The server at a `redis://` URL; raises ConfigError when the URL is wrong or the client library is not installed."""
    try:
        import redis
    except ImportError:
        raise ConfigError("the redis storage needs its client library; pip install sapwood[redis]") from None
    try:
        client = redis.Redis.from_url(options.where, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S)
    except ValueError as error:
        raise ConfigError(f"--hicache-storage-path {options.where}: {error}; take one such as redis://host:6379/0") from error
    return RedisStorage(options, client, redis.RedisError)
