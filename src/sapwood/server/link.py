"""The server's side of one replica: what it sends goes to the right process, what arrives goes to the right object.

The real `Backend` of the frontend. Owns the sockets; does not know what messages mean. Invariant: everything happens on the
event loop, in order of arrival.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

import zmq

from sapwood.detokenizer.detokenizer import Detokenizer
from sapwood.errors import SapwoodError, Unavailable
from sapwood.messages.channel import Receiver, Sender
from sapwood.messages.topology import Topology
from sapwood.messages.types import Answer, Drain, Forget, Ready, StepEvents, StepTexts, Tokenized, ToServer, ToWorker, Watch
from sapwood.server.backend import Pieces
from sapwood.server.decoding import Decoder, InlineDecoder, ProcessDecoder
from sapwood.server.encoding import Encoder, InlineEncoder, ProcessEncoder
from sapwood.tokenizer.tokenizer import Tokenizer

Deliver = Callable[[StepTexts | Answer | Ready], None]


class ReplicaLink:
    """Sockets to one replica. `deliver` gets what is for the frontend; give it before `attach`."""

    def __init__(self, topology: Topology, tokenizer: Tokenizer, num_tokenizers: int, inline_detokenizer: bool) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.topology = topology
        self._inline_detokenizer = inline_detokenizer
        self._inbox: Receiver[ToServer] = Receiver(self._context, topology.server, ToServer)
        self._worker = Sender(self._context, topology.worker)
        self._encoder = self._make_encoder(tokenizer, num_tokenizers)
        self._decoder = self._make_decoder(tokenizer, inline_detokenizer)
        self._deliver: Deliver = lambda message: None
        self.alive = False

    @property
    def epoch(self) -> int:
        """The replica's present life."""
        return self.topology.epoch

    def attach(self, loop: asyncio.AbstractEventLoop, deliver: Deliver) -> None:
        """Start to hear the other processes."""
        self._deliver = deliver
        self._inbox.attach(loop, self._route)

    def send(self, message: ToWorker) -> None:
        """To rank 0; raises Overloaded."""
        self._worker.send(message)

    def watch(self, message: Watch) -> None:
        """To the detokenizer."""
        self._decoder.watch(message)

    def forget(self, message: Forget) -> None:
        """To the detokenizer."""
        self._decoder.forget(message)

    async def tokenize(self, pieces: Pieces, add_special: bool) -> list[int]:
        """The ids of one prompt; raises EngineFailed when the replica died meanwhile."""
        if not self.alive:
            raise Unavailable("the engine is not running; try again later", retry_after_s=5.0)
        return await self._encoder.encode(pieces, add_special)

    @property
    def events_address(self) -> str:
        """Where rank 0 sends what its steps bring."""
        return self.topology.server if self._inline_detokenizer else self.topology.detokenizer

    def redirect(self, topology: Topology, units: Collection[str]) -> None:
        """These units (`worker`, `detokenizer`, `tokenizer 0` …) are started again, at the addresses of `topology`."""
        self.topology = topology
        for unit in units:
            if unit == "worker":
                self._worker.close()
                self._worker = Sender(self._context, topology.worker)
            elif unit == "detokenizer":
                self._decoder.renew(Sender(self._context, topology.detokenizer))
            else:
                index = int(unit.removeprefix("tokenizer "))
                self._encoder.renew(index, Sender(self._context, topology.tokenizer(index)))

    @property
    def probes(self) -> dict[str, Callable[[], Awaitable[object]]]:
        """Signs of life of the helper processes, by name (the worker's is a question of the frontend's)."""
        return {**self._encoder.probes, **self._decoder.probes}

    def fail(self, error: SapwoodError) -> None:
        """A process died: nothing more will come from this life of the replica."""
        self.alive = False
        self._encoder.fail_all(error)

    def drain(self, save_s: float) -> None:
        """Ask every process to finish what it has and end; the worker may take `save_s` to store its cache."""
        self._worker.send(Drain(save_s))
        self._encoder.close()
        self._decoder.close()

    def hurry(self) -> None:
        """Ask a draining worker to leave at once."""
        self._worker.send(Drain())

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hear nothing more and release the sockets."""
        self._inbox.detach(loop)
        self._inbox.close()
        self._worker.close()
        self._context.destroy(linger=0)

    def _route(self, message: ToServer) -> None:
        match message:
            case StepEvents():
                self._decoder.take(message)
            case Tokenized():
                self._encoder.take(message)
            case _:
                if isinstance(message, Answer):
                    self._decoder.note_answer(message)
                self._deliver(message)

    def _make_encoder(self, tokenizer: Tokenizer, num_processes: int) -> Encoder:
        if not num_processes:
            return InlineEncoder(tokenizer)
        return ProcessEncoder([Sender(self._context, self.topology.tokenizer(index)) for index in range(num_processes)])

    def _make_decoder(self, tokenizer: Tokenizer, inline: bool) -> Decoder:
        if inline:
            return InlineDecoder(Detokenizer(tokenizer), lambda texts: self._deliver(texts))
        return ProcessDecoder(Sender(self._context, self.topology.detokenizer))
