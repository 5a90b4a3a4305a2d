"""The feed of cache events over a real socket."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import zmq

from sapwood.errors import ConfigError
from sapwood.kvcache.events import BlockRemoved
from sapwood.worker.event_feed import NoFeed, ZmqFeed


def test_subscribers_get_numbered_batches(tmp_path: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    feed = ZmqFeed(context, f"ipc://{tmp_path}/kv", "kv-events")
    subscriber = context.socket(zmq.SUB)
    subscriber.setsockopt(zmq.SUBSCRIBE, b"kv-events")
    subscriber.connect(f"ipc://{tmp_path}/kv")
    feed.publish([])  # nothing is sent for nothing
    heard: list[list[bytes]] = []
    for number in range(400):  # until the subscription has arrived
        feed.publish([BlockRemoved([number])])
        if subscriber.poll(10):
            heard.append(subscriber.recv_multipart())
        if len(heard) == 2:
            break
    topics, sequences, payloads = zip(*heard, strict=True)
    first, second = (int.from_bytes(sequence, "big") for sequence in sequences)
    assert topics == (b"kv-events", b"kv-events") and second == first + 1
    sent_s, events = msgspec.msgpack.decode(payloads[0])
    assert sent_s > 1e9 and events == [["BlockRemoved", [first]]]
    feed.close()
    subscriber.close()
    context.term()
    NoFeed().publish([BlockRemoved([1])])


def test_an_endpoint_that_is_taken_is_an_error_that_says_so() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    taken = context.socket(zmq.REP)
    port = taken.bind_to_random_port("tcp://127.0.0.1")
    with pytest.raises(ConfigError, match="choose another endpoint"):
        ZmqFeed(context, f"tcp://127.0.0.1:{port}", "")
    taken.close()
    context.destroy(linger=0)
