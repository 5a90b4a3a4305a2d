"""What the server's tests share: a scripted backend, an application over it, and a real HTTP server in a thread."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import uvicorn

from sapwood.config.sections import GrammarLimits, ServerSection
from sapwood.core.sampling import LogprobOptions, TokenLogprobs
from sapwood.grammar.api import GrammarOptions
from sapwood.grammar.check import ConstraintChecker
from sapwood.messages.types import (
    Abort,
    Answer,
    Ask,
    Finish,
    Flush,
    Forget,
    StepStats,
    StepTexts,
    Stop,
    Submit,
    TextEvent,
    TokenEvent,
    ToWorker,
    Watch,
    unpack_ids,
)
from sapwood.observability.metrics import Metrics
from sapwood.parsing.formats import find_format
from sapwood.server.app import create_app
from sapwood.server.backend import Pieces, ServedModel
from sapwood.server.context import ServerContext
from sapwood.server.frontend import Frontend
from sapwood.server.ledger import open_ledger
from sapwood.server.limits import ServingLimits
from sapwood.server.protocol import protocol_options
from sapwood.tokenizer.byte_vocabulary import byte_tokenizer
from sapwood.tokenizer.chat import ChatRenderer

CONTEXT_LEN = 256
SCRIPT = "Hello, wörld! This is what the fake model always says. "


@dataclass
class FakeRun:
    """One request of the fake model."""

    submit: Submit
    num_done: int = 0
    text: str = ""
    decoder: Any = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))


class FakeBackend:
    """Says `script` over and over, a byte per step and request; honours length, stop strings, stop ids, aborts."""

    def __init__(self, script: str = SCRIPT, step_s: float = 0.0) -> None:
        self.epoch = 1
        self.alive = True
        self.tokenizer = byte_tokenizer()
        self.script = script.encode()
        self.step_s = step_s
        self.sent: list[ToWorker] = []
        self.watched: list[Watch] = []
        self.forgotten: list[int] = []
        self.runs: dict[int, FakeRun] = {}
        self.vector_size = 4
        self.is_paused = False
        self.full: Exception | None = None
        self.deliver: Callable[[Any], None] = lambda message: None

    def send(self, message: ToWorker) -> None:
        if self.full is not None:
            raise self.full
        self.sent.append(message)
        match message:
            case Submit():
                self.runs[message.number] = FakeRun(message)
            case Abort():
                for number in message.numbers:
                    self.runs.pop(number, None)
            case Stop():
                self.runs.pop(message.number, None)
            case Flush():
                asyncio.get_running_loop().call_soon(
                    self.deliver, Answer(message.ask, not self.runs, "" if not self.runs else "busy")
                )
            case Ask():
                asyncio.get_running_loop().call_soon(self.deliver, Answer(message.ask, True))

    def watch(self, message: Watch) -> None:
        self.watched.append(message)

    def forget(self, message: Forget) -> None:
        self.forgotten += message.numbers

    async def tokenize(self, pieces: Pieces, add_special: bool) -> list[int]:
        await asyncio.sleep(0)
        return self.tokenizer.encode_pieces(pieces, add_special)

    def sent_of(self, kind: type) -> list[Any]:
        return [message for message in self.sent if isinstance(message, kind)]

    def step(self) -> None:
        """One token for every request, in one message."""
        events = [self._advance(run) for run in list(self.runs.values())]
        if events:
            stats = StepStats(
                num_running=len(self.runs), num_pages=100, num_free_pages=90, prompt_tokens_total=10, cached_tokens_total=4
            )
            self.deliver(StepTexts(self.epoch, events, stats))

    async def pump(self) -> None:
        while True:
            await asyncio.sleep(self.step_s)
            if not self.is_paused:
                self.step()

    def _advance(self, run: FakeRun) -> TextEvent:
        submit, params = run.submit, run.submit.params
        prompt = unpack_ids(submit.token_ids)
        index, finish, text, stopped = run.num_done, None, "", False
        ids: list[int] = []
        if params.max_new_tokens:
            ids = [self.script[index % len(self.script)]]
            run.num_done += 1
            text = run.decoder.decode(bytes(ids))
            run.text += text
            stop = next((stop for stop in params.stop if stop in run.text), None)
            if ids[0] in params.stop_token_ids:
                finish, text = Finish("stop", ids[0]), ""
            elif stop is not None:
                finish, stopped, text = Finish("stop", stop), True, text.removesuffix(stop)
            elif run.num_done == params.max_new_tokens:
                finish = Finish("length")
        else:
            finish = Finish("length")
        if finish is not None:
            self.runs.pop(submit.number, None)
        event = TokenEvent(
            number=submit.number,
            index=index,
            token_ids=ids,
            finish=finish,
            num_cached=min(3, len(prompt) - 1),
            logprobs=[fake_logprobs(token_id, submit.logprobs) for token_id in ids] if submit.logprobs.output else None,
            prompt_logprobs=self._prompt_logprobs(submit) if index == 0 else None,
            vector=fake_vector([int(token_id) for token_id in prompt], self.vector_size) if submit.pooling else b"",
        )
        return TextEvent(event, text, run.num_done, stopped)

    def _prompt_logprobs(self, submit: Submit) -> list[TokenLogprobs] | None:
        start = submit.logprobs.prompt_start
        if start is None:
            return None
        ids = [int(token_id) for token_id in unpack_ids(submit.token_ids)]
        entries = [fake_logprobs(token_id, submit.logprobs) for token_id in ids]
        entries[0] = TokenLogprobs(ids[0], None)
        return entries[start:]


def fake_logprobs(token_id: int, options: LogprobOptions) -> TokenLogprobs:
    """The chosen id is the best one; its neighbours follow."""
    top = [(token_id + step) % 259 for step in range(options.top_n)]
    return TokenLogprobs(token_id, -0.25, top, [-0.25 - step for step in range(options.top_n)], [-9.0] * len(options.token_ids))


def fake_vector(token_ids: list[int], size: int) -> bytes:
    """How often ids that leave each remainder occur."""
    return np.bincount(np.array(token_ids) % size, minlength=size).astype("<f4").tobytes()


def section(**changes: Any) -> ServerSection:
    values: dict[str, Any] = {
        "host": "127.0.0.1", "port": 0, "served_model_name": "fake", "api_key": None, "admin_api_key": None,
        "enable_metrics": True, "max_queued_requests": 64, "allow_auto_truncate": False,
        "stream_interval": 1, "incremental_streaming_output": False,
        "random_seed": 7, "max_body_bytes": 1 << 20, "default_priority": 0, "request_timelines": 100, "log_level": "info",
    }  # fmt: skip
    return ServerSection(**{**values, **changes})


@dataclass
class House:
    """A whole server over a fake backend."""

    backend: FakeBackend
    frontend: Frontend
    context: ServerContext
    app: Any


def make_house(
    backend: FakeBackend | None = None,
    *,
    is_ready: bool = True,
    template: str | None = None,
    context_len: int = CONTEXT_LEN,
    grammar_limits: GrammarLimits | None = None,
    **settings: Any,
) -> House:
    """`template` replaces the byte vocabulary's chat template."""
    backend = backend or FakeBackend()
    chosen = section(**settings)
    frontend = Frontend(
        backend,
        metrics=Metrics("fake") if chosen.enable_metrics else None,
        ledger=open_ledger(chosen, backend.tokenizer.decode),
        random_seed=chosen.random_seed,
    )
    backend.deliver = frontend.on_message
    if is_ready:
        frontend.start_serving(
            ServingLimits(
                context_len,
                4096,
                backend.tokenizer.vocab_size,
                chosen.max_queued_requests,
                allow_auto_truncate=chosen.allow_auto_truncate,
                caps=chosen.caps,
            )
        )
    chat = ChatRenderer(backend.tokenizer, template)
    output = find_format(
        chosen.tool_call_parser, chosen.reasoning_parser, chat.source, frozenset(backend.tokenizer.control_texts)
    )
    model = ServedModel(
        "fake", "/models/fake", backend.tokenizer, chat.render, ("fake-catalog",), output=output, reads_tools=chat.reads_tools
    )
    constraints = ConstraintChecker(GrammarOptions(limits=grammar_limits or GrammarLimits()))
    context = ServerContext(frontend, model, chosen, constraints)
    return House(backend, frontend, context, create_app(context))


@contextlib.asynccontextmanager
async def client_of(house: House, **headers: str) -> AsyncIterator[httpx.AsyncClient]:
    """An in-process client, with the fake model running meanwhile."""
    pump = asyncio.ensure_future(house.backend.pump())
    try:
        transport = httpx.ASGITransport(house.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers, timeout=20) as client:
            yield client
    finally:
        pump.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await pump


def ask(house: House, method: str, path: str, **kwargs: Any) -> httpx.Response:
    """One in-process call."""

    async def run() -> httpx.Response:
        async with client_of(house) as client:
            return await client.request(method, path, **kwargs)

    return asyncio.run(run())


@contextlib.contextmanager
def real_server(house: House) -> Iterator[str]:
    """The house behind a real socket; yields its base URL."""
    server = uvicorn.Server(
        uvicorn.Config(house.app, host="127.0.0.1", port=0, log_level="warning", **protocol_options(house.context.settings))
    )

    async def run() -> None:
        pump = asyncio.ensure_future(house.backend.pump())
        await server.serve()
        pump.cancel()

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            thread.join(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    """Poll from another thread than the server's."""
    waiter = threading.Event()
    for _ in range(int(timeout_s / 0.01)):
        if condition():
            return True
        waiter.wait(0.01)
    return condition()
