"""Typed one-way pipes between processes: a ZeroMQ PUSH/PULL pair that carries one union of messages.

Owns sockets, encoding and back-pressure; does not know who is at the other end. Invariant: `send` never blocks (what the socket
does not take waits in a bounded backlog), what is received was validated against the union, and nothing is ever pickled.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec
import zmq

from sapwood.errors import Overloaded

T = TypeVar("T")

SOCKET_HIGH_WATER = 20_000
BACKLOG_LIMIT = 20_000
LINGER_MS = 500
_NOBLOCK, _READABLE = int(zmq.NOBLOCK), int(zmq.POLLIN)  # as members of enumerations they are slow to combine


class Sender:
    """The sending end. It connects, so a receiver may bind before or after."""

    def __init__(self, context: zmq.Context[Any], address: str) -> None:
        self.address = address
        self._socket = context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, SOCKET_HIGH_WATER)
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._socket.connect(address)
        self._encoder = msgspec.msgpack.Encoder()
        self._backlog: deque[bytes] = deque()

    def send(self, message: msgspec.Struct) -> None:
        """Queue one message; raises Overloaded when the receiver has not read for so long that the backlog is full."""
        if self._backlog:
            self.flush()
        data = self._encoder.encode(message)
        if not self._backlog and self._try_send(data):
            return
        if len(self._backlog) >= BACKLOG_LIMIT:
            raise Overloaded("the engine does not keep up with its queue; try again later", retry_after_s=1.0)
        self._backlog.append(data)

    def flush(self) -> None:
        """Hand as much of the backlog to the socket as it takes."""
        while self._backlog and self._try_send(self._backlog[0]):
            self._backlog.popleft()

    def close(self) -> None:
        self._socket.close()

    def _try_send(self, data: bytes) -> bool:
        try:
            self._socket.send(data, _NOBLOCK)
        except zmq.Again:
            return False
        return True


class Receiver(Generic[T]):
    """The receiving end, for a loop of its own. It binds; many senders may connect.

    `_signal` watches ZeroMQ's descriptor, which becomes readable when something arrives after the socket was found empty. So,
    once it is drained, one system call tells that nothing came; asking the socket takes several and an exception.
    """

    def __init__(self, context: zmq.Context[Any], address: str, union: Any) -> None:
        self._socket = context.socket(zmq.PULL)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(address)
        if address.startswith("ipc://"):
            os.chmod(address.removeprefix("ipc://"), 0o600)
        self._is_drained = False
        self._signal = select.poll()
        self._signal.register(self._socket.fileno(), select.POLLIN)
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(union)

    def receive(self, wait_s: float = 0.0) -> list[T]:
        """Every message that is there; waits up to `wait_s` seconds for the first one. Raises msgspec.ValidationError."""
        if wait_s > 0.0:
            is_there = bool(self._socket.poll(int(wait_s * 1000)))
        else:
            is_there = not self._is_drained or bool(self._signal.poll(0))
        return self._drain() if is_there else []

    def _drain(self) -> list[T]:
        messages, self._is_drained = list[T](), False  # till the end is reached: what cannot be decoded raises
        try:
            messages.append(self._decoder.decode(self._socket.recv(_NOBLOCK)))
            while self._socket.get(zmq.EVENTS) & _READABLE:  # cheaper than an exception at the end
                messages.append(self._decoder.decode(self._socket.recv(_NOBLOCK)))
        except zmq.Again:  # somebody connected, say
            pass
        self._is_drained = True
        return messages

    def attach(self, loop: asyncio.AbstractEventLoop, deliver: Callable[[T], None]) -> None:
        """Call `deliver` for each message from now on, on the event loop.

        ZeroMQ's descriptor is edge-triggered: it must be drained each time, and once now for what already came.
        """

        def drain() -> None:
            for message in self._drain():
                deliver(message)

        loop.add_reader(self._socket.fileno(), drain)
        loop.call_soon(drain)

    def detach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Undo `attach`."""
        loop.remove_reader(self._socket.fileno())

    def close(self) -> None:
        self._socket.close()
