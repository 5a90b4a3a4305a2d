"""A whole server in a thread of the test's own process, over a scripted engine: it starts at once and needs no weights.

Owns the thread and its event loop; what answers HTTP, schedules and detokenizes is what `sapwood serve` runs. Invariant:
leaving it ends the thread and closes the port.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Callable
from typing import Any

from sapwood.config.raw import from_mapping
from sapwood.config.resolve import HostFacts, resolve
from sapwood.detokenizer.detokenizer import Detokenizer
from sapwood.engine.null_model import null_limits
from sapwood.errors import EngineFailed
from sapwood.messages.types import Forget, StepEvents, ToWorker, Watch
from sapwood.scheduler.options import SchedulerOptions
from sapwood.scheduler.scheduler import Scheduler
from sapwood.server.app import create_app
from sapwood.server.backend import Pieces
from sapwood.server.context import ServerContext
from sapwood.server.frontend import Frontend
from sapwood.server.launch import http_server, listening, served_model
from sapwood.server.limits import ServingLimits
from sapwood.testing.script import Script
from sapwood.testing.scripted_engine import ScriptedEngine
from sapwood.tokenizer.byte_vocabulary import byte_tokenizer
from sapwood.tokenizer.tokenizer import Tokenizer
from sapwood.worker.core import WorkerCore

CONTEXT_TOKENS = 65536
SLOTS = 64
START_TIMEOUT_S = 60.0
OPTIONS = {"model_path": "null", "chat_template": "hermes", "random_seed": 1, "port": 0}


class InlineBackend:
    """The frontend's way to a worker and a detokenizer that live on the same event loop."""

    def __init__(self, script: Script, tokenizer: Tokenizer) -> None:
        self.epoch = 1
        self.alive = True
        self.deliver: Callable[[Any], None] = lambda message: None
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer)

        def answer(prompt_ids: list[int]) -> list[int]:
            text = script.answer_to(tokenizer.decode(prompt_ids, skip_special_tokens=False))
            return tokenizer.encode(text, add_special=False, parse_special=False)

        page_size = 16
        limits = null_limits(SLOTS, CONTEXT_TOKENS, 4 * CONTEXT_TOKENS // page_size, page_size)
        self.limits = limits
        self._scheduler = Scheduler(limits, SchedulerOptions())
        self._core = WorkerCore(self._scheduler, ScriptedEngine(limits, answer), overlap=True)
        self._inbox: list[ToWorker] = []
        self._wakeup = asyncio.Event()

    def send(self, message: ToWorker) -> None:
        """To the worker."""
        self._inbox.append(message)
        self._wakeup.set()

    def watch(self, message: Watch) -> None:
        """To the detokenizer."""
        for texts in self._detokenizer.watch(message):
            self.deliver(texts)

    def forget(self, message: Forget) -> None:
        """To the detokenizer."""
        self._detokenizer.forget(message)

    async def tokenize(self, pieces: Pieces, add_special: bool) -> list[int]:
        """The ids of one prompt."""
        return self._tokenizer.encode_pieces(pieces, add_special)

    async def run(self) -> None:
        """Turn the worker's loop while there is something to do."""
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            while self._inbox or not self._scheduler.may_rest:
                messages, self._inbox = self._inbox, []
                news = self._core.step(messages)
                for answer in news.answers:
                    self.deliver(answer)
                if news.events:
                    self.deliver(self._detokenizer.process(StepEvents(self.epoch, news.events, self._scheduler.stats())))
                await asyncio.sleep(0)


class ScriptedServer:
    """A context manager: inside, the server answers at `url` (`base_url` for OpenAI's clients) what `script` says."""

    def __init__(self, **options: Any) -> None:
        """`options` are those of `sapwood serve`, for its HTTP side: api_key, served_model_name, reasoning_parser, …"""
        self.script = Script()
        self._config = resolve(from_mapping({**OPTIONS, **options}, "ScriptedServer"), HostFacts(1, False))
        self.model = self._config.server.served_model_name
        self.url = ""
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="scripted server", daemon=True)
        self._end: Callable[[], object] = lambda: None

    @property
    def base_url(self) -> str:
        """Where OpenAI's clients find it."""
        return f"{self.url}/v1"

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        if not self._ready.wait(START_TIMEOUT_S):
            raise EngineFailed("the scripted server did not start; look for an exception of its thread above")
        return self

    def __exit__(self, *error: object) -> None:
        self._end()
        self._thread.join(START_TIMEOUT_S)

    async def _serve(self) -> None:
        loop, end = asyncio.get_running_loop(), asyncio.Event()
        self._end = lambda: loop.call_soon_threadsafe(end.set)
        tokenizer = byte_tokenizer()
        backend = InlineBackend(self.script, tokenizer)
        settings = self._config.server
        frontend = Frontend(backend, random_seed=settings.random_seed)
        backend.deliver = frontend.on_message
        limits = backend.limits
        frontend.start_serving(ServingLimits(limits.max_len, limits.num_pages * limits.page_size, limits.vocab_size, 4 * SLOTS))
        model = served_model(self._config.model, "null", tokenizer, settings)
        running = asyncio.ensure_future(backend.run())
        try:
            with listening(dataclasses.replace(settings, port=0)) as listener:
                host, port = listener.getsockname()[:2]
                async with http_server(create_app(ServerContext(frontend, model, settings)), listener, settings):
                    self.url = f"http://{host}:{port}"
                    self._ready.set()
                    await end.wait()
        finally:
            running.cancel()
