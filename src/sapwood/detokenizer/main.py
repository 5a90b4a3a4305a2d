"""The detokenizer process: a step's ids in, a step's texts out, one message each.

Composes the `Detokenizer` (which also runs inside the server on small machines) with sockets. Invariant: what arrives for a
request is answered in the order of its token indices; a message that is not for the detokenizer is passed on to the server.
"""

from __future__ import annotations

import os

import msgspec
import zmq

from sapwood.core.garbage import spare_the_living
from sapwood.detokenizer.detokenizer import Detokenizer
from sapwood.messages.channel import Receiver, Sender
from sapwood.messages.child import receive_orders
from sapwood.messages.topology import Topology
from sapwood.messages.types import Drain, Forget, Ready, StepEvents, ToDetokenizer, Watch
from sapwood.observability.stacks import keep_stacks
from sapwood.tokenizer.load import open_tokenizer


class DetokenizerOrders(msgspec.Struct, frozen=True):
    """What the detokenizer process needs to know."""

    name: str
    topology: Topology
    tokenizer_path: str


def handle(detokenizer: Detokenizer, message: ToDetokenizer, server: Sender) -> None:
    """Take one message; texts and passed-on messages go to the server."""
    match message:
        case StepEvents():
            server.send(detokenizer.process(message))
        case Watch():
            for texts in detokenizer.watch(message):
                server.send(texts)
        case Forget():
            detokenizer.forget(message)
        case _:
            server.send(message)


def main() -> None:
    """Serve until told to drain."""
    orders = receive_orders(DetokenizerOrders)
    keep_stacks(orders.topology.stacks(orders.name))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    inbox: Receiver[ToDetokenizer] = Receiver(context, orders.topology.detokenizer, ToDetokenizer)
    server = Sender(context, orders.topology.server)
    detokenizer = Detokenizer(open_tokenizer(orders.tokenizer_path))
    spare_the_living()
    server.send(Ready(orders.name, os.getpid()))
    draining = False
    while not draining:
        for message in inbox.receive(wait_s=1.0):
            if isinstance(message, Drain):
                draining = True
            else:
                handle(detokenizer, message, server)
        server.flush()
    inbox.close()
    server.close()
    context.term()


if __name__ == "__main__":
    main()
