"""A tokenizer process: text in, ids out, one answer per question, in order.

Knows nothing of requests' fates: an answer nobody waits for any more is dropped by the server. Invariant: every Tokenize gets
exactly one Tokenized, with ids or with an error.
"""

from __future__ import annotations

import os

import msgspec
import zmq

from sapwood.core.garbage import spare_the_living
from sapwood.errors import SapwoodError
from sapwood.messages.channel import Receiver, Sender
from sapwood.messages.child import receive_orders
from sapwood.messages.topology import Topology
from sapwood.messages.types import Drain, Ready, Tokenize, Tokenized, ToTokenizer, pack_ids
from sapwood.observability.stacks import keep_stacks
from sapwood.tokenizer.load import open_tokenizer
from sapwood.tokenizer.tokenizer import Tokenizer


class TokenizerOrders(msgspec.Struct, frozen=True):
    """What a tokenizer process needs to know."""

    name: str
    index: int
    topology: Topology
    tokenizer_path: str


def answer(tokenizer: Tokenizer, question: Tokenize) -> Tokenized:
    """The ids of one question; a text that cannot be encoded is an error in the answer."""
    try:
        return Tokenized(question.ask, pack_ids(tokenizer.encode_pieces(question.pieces, question.add_special)))
    except SapwoodError as error:
        return Tokenized(question.ask, b"", error.message)


def main() -> None:
    """Serve questions until told to drain."""
    orders = receive_orders(TokenizerOrders)
    keep_stacks(orders.topology.stacks(orders.name))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    questions: Receiver[ToTokenizer] = Receiver(context, orders.topology.tokenizer(orders.index), ToTokenizer)
    answers = Sender(context, orders.topology.server)
    tokenizer = open_tokenizer(orders.tokenizer_path)
    spare_the_living()
    answers.send(Ready(orders.name, os.getpid()))
    draining = False
    while not draining:
        for message in questions.receive(wait_s=1.0):
            if isinstance(message, Drain):
                draining = True
            else:
                answers.send(answer(tokenizer, message))
        answers.flush()
    questions.close()
    answers.close()
    context.term()


if __name__ == "__main__":
    main()
