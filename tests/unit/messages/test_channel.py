"""Channels: messages arrive in order and validated, senders never block, what overflows waits or is refused."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from sapwood.core.sampling import SamplingParams
from sapwood.errors import Overloaded
from sapwood.messages import channel
from sapwood.messages.channel import Receiver, Sender
from sapwood.messages.topology import create_topology
from sapwood.messages.types import Abort, Drain, Stop, Submit, ToWorker, pack_ids, unpack_ids


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/s"


def receive_all(receiver: Receiver[ToWorker], count: int) -> list[ToWorker]:
    messages: list[ToWorker] = []
    while len(messages) < count:
        news = receiver.receive(wait_s=5.0)
        assert news
        messages += news
    return messages


def test_messages_arrive_whole_and_in_order(context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
    sender = Sender(context, address)  # connects before anybody listens
    submit = Submit(number=3, group=3, epoch=0, token_ids=pack_ids([1, 2, 70000]), params=SamplingParams(logit_bias={5: 1.5}))
    sent: list[ToWorker] = [submit, Stop(3, 7), Abort([1, 2]), Drain()]
    for message in sent:
        sender.send(message)
    receiver: Receiver[ToWorker] = Receiver(context, address, ToWorker)
    received = receive_all(receiver, len(sent))
    assert received == sent
    assert isinstance(received[0], Submit) and unpack_ids(received[0].token_ids).tolist() == [1, 2, 70000]


def test_a_look_that_does_not_wait_misses_nothing(context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
    receiver: Receiver[ToWorker] = Receiver(context, address, ToWorker)
    assert receiver.receive() == receiver.receive() == []
    senders = [Sender(context, address) for _ in range(3)]
    received: list[ToWorker] = []
    deadline_s = time.monotonic() + 20.0
    for turn in range(300):
        for _ in range(turn % 4):
            senders[turn % 3].send(Stop(turn, 1))
        received += receiver.receive()
    while len(received) < 450 and time.monotonic() < deadline_s:
        received += receiver.receive()
    assert len(received) == 450 and receiver.receive() == []


def test_what_follows_a_broken_message_is_heard(context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
    receiver: Receiver[ToWorker] = Receiver(context, address, ToWorker)
    raw = context.socket(zmq.PUSH)
    raw.connect(address)
    raw.send(b"broken")
    raw.send(msgspec.msgpack.encode(Stop(4, 1)))
    time.sleep(0.2)  # both are there
    with pytest.raises(msgspec.DecodeError):
        receiver.receive(wait_s=5.0)
    assert receiver.receive() == [Stop(4, 1)]


def test_what_is_not_in_the_union_is_refused(context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
    receiver: Receiver[ToWorker] = Receiver(context, address, ToWorker)
    raw = context.socket(zmq.PUSH)
    raw.connect(address)
    raw.send(msgspec.msgpack.encode({"type": "Stop", "number": "three", "num_tokens": 1}))
    with pytest.raises(msgspec.ValidationError):
        receiver.receive(wait_s=5.0)


def test_a_sender_never_blocks_and_refuses_when_nobody_reads(
    context: zmq.Context[zmq.Socket[bytes]], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "SOCKET_HIGH_WATER", 10)
    monkeypatch.setattr(channel, "BACKLOG_LIMIT", 5)
    sender, taken = Sender(context, address), 0  # nobody listens
    with pytest.raises(Overloaded):
        for number in range(1000):
            sender.send(Stop(number, 0))
            taken += 1
    assert taken >= 5
    receiver: Receiver[ToWorker] = Receiver(context, address, ToWorker)
    received: list[ToWorker] = []
    while len(received) < taken:
        sender.flush()
        received += receiver.receive(wait_s=0.05)
    assert received == [Stop(number, 0) for number in range(taken)]


def test_an_attached_receiver_delivers_everything_on_the_loop(context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
    async def run() -> list[ToWorker]:
        received: list[ToWorker] = []
        done = asyncio.Event()

        def deliver(message: ToWorker) -> None:
            received.append(message)
            if len(received) == 300:
                done.set()

        sender = Sender(context, address)
        receiver: Receiver[ToWorker] = Receiver(context, address, ToWorker)
        for number in range(100):
            sender.send(Stop(number, 0))
        receiver.attach(asyncio.get_running_loop(), deliver)
        for number in range(100, 300):
            sender.send(Stop(number, 0))
            if number % 10 == 0:
                await asyncio.sleep(0.001)
        async with asyncio.timeout(10):
            await done.wait()
        receiver.detach(asyncio.get_running_loop())
        return received

    assert asyncio.run(run()) == [Stop(number, 0) for number in range(300)]


def test_the_socket_folder_is_private_and_goes_away() -> None:
    topology = create_topology()
    folder = Path(topology.folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    with zmq.Context() as context, contextlib.closing(Receiver(context, topology.server, Stop)):
        assert [path.stat().st_mode & 0o777 for path in folder.iterdir()] == [0o600]
    assert len({topology.server, topology.worker, topology.detokenizer, topology.tokenizer(0), topology.tokenizer(1)}) == 5
    topology.close()
    assert not folder.exists()
