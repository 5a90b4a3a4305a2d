"""The feed of cache events: a ZeroMQ PUB socket that routers subscribe to.

Owns the socket and the sequence number; does not know what is cached. Invariant: a subscriber that is slow or absent never holds
up the loop (what does not fit its queue is dropped, and the gap shows in the sequence numbers).

Each message has three parts: the topic, the sequence number (8 bytes, big-endian), and msgpack of [seconds since 1970, events].
"""

from __future__ import annotations

import time
from typing import Any, Protocol

import msgspec
import zmq

from sapwood.errors import ConfigError
from sapwood.kvcache.events import CacheEvent

QUEUE_MESSAGES = 100_000


class EventFeed(Protocol):
    """Where a loop's port sends cache events."""

    def publish(self, events: list[CacheEvent]) -> None:
        """Send the events of one step."""
        ...

    def close(self) -> None:
        """Send nothing more."""
        ...


class NoFeed:
    """Nobody asked for events."""

    def publish(self, events: list[CacheEvent]) -> None:
        """Nothing to send."""

    def close(self) -> None:
        """Nothing to close."""


class ZmqFeed:
    """See the module."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, topic: str) -> None:
        self._topic = topic.encode()
        self._socket = context.socket(zmq.PUB)
        self._socket.sndhwm = QUEUE_MESSAGES
        self._encoder = msgspec.msgpack.Encoder()
        self._num_sent = 0
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            raise ConfigError(f"--kv-events-config: cannot listen on {endpoint} ({error}); choose another endpoint") from error

    def publish(self, events: list[CacheEvent]) -> None:
        """Send the events of one step."""
        if events:
            batch: list[Any] = [time.time(), events]
            sequence = self._num_sent.to_bytes(8, "big")
            self._socket.send_multipart([self._topic, sequence, self._encoder.encode(batch)], zmq.NOBLOCK)
            self._num_sent += 1

    def close(self) -> None:
        """Close the socket; what is queued is still sent."""
        self._socket.close()
