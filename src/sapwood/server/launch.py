"""`sapwood serve`: the processes of one replica and the HTTP server in front of them, from start to a clean end.

Composes sockets, children, frontend and uvicorn; decides what a dead child, a signal and a deadline mean. Invariant: however
it ends, every client was answered, no child is left and no socket folder remains; the exit status is 0 only after a clean stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import AsyncIterator, Coroutine, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
import uvloop
from fastapi import FastAPI

from sapwood.config.sections import Config, ModelOptions, ServerSection
from sapwood.core.garbage import spare_the_living
from sapwood.core.interruption import interrupting_nobody
from sapwood.detokenizer.main import DetokenizerOrders
from sapwood.errors import ConfigError, EngineFailed, SapwoodError
from sapwood.grammar.api import GrammarOptions
from sapwood.grammar.check import ConstraintChecker
from sapwood.messages.flight import read_steps
from sapwood.messages.topology import Topology, create_topology
from sapwood.messages.types import Answer, Ready, StepTexts
from sapwood.observability.metrics import Metrics, NullMetrics
from sapwood.parsing.formats import find_format
from sapwood.server.app import create_app
from sapwood.server.backend import ServedModel
from sapwood.server.context import ServerContext
from sapwood.server.frontend import Frontend
from sapwood.server.inquest import Inquest
from sapwood.server.keys import read_keys
from sapwood.server.ledger import open_ledger
from sapwood.server.limits import ServingState, serving_limits
from sapwood.server.link import ReplicaLink
from sapwood.server.liveness import PROBE_INTERVAL_S, Liveness
from sapwood.server.protocol import protocol_options
from sapwood.server.recovery import Household, Recovery, unit_of
from sapwood.server.supervisor import ChildSpec, Supervisor
from sapwood.server.tls import check_tls
from sapwood.server.watchdog import StepWatchdog
from sapwood.tokenizer.fim import find_fim
from sapwood.tokenizer.load import open_chat, open_tokenizer
from sapwood.tokenizer.main import TokenizerOrders
from sapwood.tokenizer.tokenizer import Tokenizer
from sapwood.weights import catalog

FAREWELL_S = 3.0
"""How long a server whose engine died still answers, so that clients and health checks hear of it."""
CHILD_GRACE_S = 5.0
"""How long drained children may take to end by themselves."""
MAX_DISPLACING = 64
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

logger = logging.getLogger(__name__)


def serve(config: Config) -> int:
    """Serve until SIGINT or SIGTERM, or until a process dies; returns the exit status. From then on both signals are held back:
    the process is about to end."""
    options = config.model
    model_path = options.model_path if options.is_null else str(catalog.resolve(options.model_path))
    read_keys(config.server)
    check_tls(config.server.tls)
    has_lanes = config.engine.device == "cpu" and config.engine.kernel_backend != "reference" and not options.is_null
    with interrupting_nobody() if has_lanes else contextlib.nullcontext(), listening(config.server) as listener:
        return uvloop.run(_serve(config, model_path, listener))


def _hold_back_signals() -> None:
    """All has ended but the process: another Ctrl-C would only make its status a failure. Blocked first, so that what came before
    is handled; ignored then, because not every thread obeys a mask and the interpreter takes its own handlers back as it ends."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


async def _serve(config: Config, model_path: str, listener: socket.socket) -> int:
    tokenizer = open_tokenizer(config.model.tokenizer_path or model_path)
    topology = create_topology()
    try:
        return await Replica(config, model_path, topology, tokenizer).run(listener)
    finally:
        topology.close()


@contextlib.contextmanager
def listening(settings: ServerSection) -> Iterator[socket.socket]:
    """The HTTP socket, bound before anything expensive happens; raises ConfigError when the port is taken."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, settings.port))
        except OSError as error:
            message = f"cannot listen on {settings.host}:{settings.port} ({error.strerror}); choose another --port"
            raise ConfigError(message, param="port") from None
        yield listener


def child_specs(config: Config, model_path: str, topology: Topology, weights: str | None = None) -> list[ChildSpec]:
    """The processes of one replica, with their orders; `weights` are other ones than the model began with."""
    launch = config.launch
    tokenizer_path = config.model.tokenizer_path or model_path
    specs = []
    for rank in range(launch.tp_size):
        orders = {
            "name": f"worker {rank}",
            "rank": rank,
            "topology": topology,
            "model_path": weights or model_path,
            "model": config.model,
            "engine": config.engine,
            "scheduler": config.scheduler,
            "inline_detokenizer": launch.inline_detokenizer,
            "log_level": launch.log_level,
        }
        module = "sapwood.worker.null_main" if config.model.is_null else "sapwood.worker.main"
        specs.append(ChildSpec(f"worker {rank}", module, orders))
    for index in range(launch.tokenizer_worker_num):
        name = f"tokenizer {index}"
        specs.append(ChildSpec(name, "sapwood.tokenizer.main", TokenizerOrders(name, index, topology, tokenizer_path)))
    if not launch.inline_detokenizer:
        name = "detokenizer"
        specs.append(ChildSpec(name, "sapwood.detokenizer.main", DetokenizerOrders(name, topology, tokenizer_path)))
    return specs


class Replica:
    """One replica and the HTTP server in front of it, for one run on the running event loop."""

    def __init__(self, config: Config, model_path: str, topology: Topology, tokenizer: Tokenizer) -> None:
        self._config = config
        self._loop = asyncio.get_running_loop()
        launch, settings = config.launch, config.server
        self._supervisor = Supervisor(self._loop, self._on_death)
        self._link = ReplicaLink(topology, tokenizer, launch.tokenizer_worker_num, launch.inline_detokenizer)
        metrics = Metrics(settings.served_model_name) if settings.enable_metrics else NullMetrics()
        self._frontend = Frontend(
            self._link,
            metrics=metrics,
            ledger=open_ledger(settings, tokenizer.decode),
            random_seed=settings.random_seed,
            num_recent=settings.request_timelines,
        )
        grammar = config.engine.grammar
        options = GrammarOptions(grammar.any_whitespace, tokenizer.control_ids, grammar.limits)
        self._constraints = ConstraintChecker(options, is_on=grammar.backend != "none")
        self._model = served_model(config.model, model_path, tokenizer, settings)
        self._model_path = model_path
        folder = Path(launch.crash_dump_folder) if launch.crash_dump_folder else catalog.cache_folder() / "crashes"
        self._inquest = Inquest(self._frontend, lambda: self._link.topology, folder)
        self._recovery = Recovery(
            Household(
                supervisor=self._supervisor,
                link=self._link,
                frontend=self._frontend,
                specs=self._specs,
                on_worker=self._note_worker,
                give_up=self._fail,
                startup_timeout_s=launch.startup_timeout_s,
            )
        )
        self._end = asyncio.Event()
        self._hurry = asyncio.Event()
        self._failure: SapwoodError | None = None
        self._rescue: asyncio.Task[None] | None = None
        self._has_started = False
        self._drain_until_s: float | None = None

    async def run(self, listener: socket.socket) -> int:
        """Start everything, serve until told to stop or until a process dies, end everything; returns the exit status."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_signal)  # the loop would take a handler of its own back before the process has ended
        self._link.attach(self._loop, self._deliver)
        for spec in self._specs(self._link.topology):
            self._supervisor.start(spec)
        try:
            async with http_server(create_app(self._context()), listener, self._config.server):
                await self._serve()
        finally:
            save_s = self._time_to_save_s()
            self._link.drain(save_s)
            saving = asyncio.ensure_future(self._hurry_once())
            grace_s = save_s + CHILD_GRACE_S if self._has_started else 0.0  # what still starts up hears nothing yet
            await self._supervisor.stop(grace_s)
            saving.cancel()
            self._link.close(self._loop)
            self._frontend.ledger.close()
            _hold_back_signals()
        return 1 if self._failure else 0

    def _context(self) -> ServerContext:
        return ServerContext(self._frontend, self._model, self._config.server, constraints=self._constraints)

    async def _serve(self) -> None:
        starting = asyncio.ensure_future(self._supervisor.wait_ready(self._config.launch.startup_timeout_s))
        ending = asyncio.ensure_future(self._end.wait())
        await asyncio.wait((starting, ending), return_when=asyncio.FIRST_COMPLETED)
        try:
            if not starting.done():
                starting.cancel()
                return
            self._start_serving(starting.result()["worker 0"])
        except EngineFailed as error:
            self._fail(error)
        async with asyncio.TaskGroup() as guards:
            watching = [guards.create_task(guard) for guard in self._guards()]
            await ending
            if not self._failure:
                await self._drain()
            for task in watching:
                task.cancel()
        if self._failure and self._has_started:
            await asyncio.sleep(FAREWELL_S)

    def _guards(self) -> list[Coroutine[Any, Any, None]]:
        """What notices processes that hang, and brings back those that died, as long as there are requests."""
        timeout_s = self._config.launch.watchdog_timeout_s
        probes = {"worker 0": self._frontend.probe_worker, **self._link.probes}
        notice = partial(Liveness, probes, self._frontend.set_stalled, PROBE_INTERVAL_S, timeout_s)
        if not self._restarts:
            return [notice().run()]
        watchdog = StepWatchdog(lambda: self._link.topology.flight, partial(self._on_hang, "worker 0"), timeout_s)
        return [notice(self._on_silence).run(), watchdog.run(), self._recovery.run()]

    def _specs(self, topology: Topology) -> list[ChildSpec]:
        return child_specs(self._config, self._model_path, topology, self._frontend.steering.weights)

    def _note_worker(self, worker: Ready) -> None:
        """Serve within the limits of this worker; one that is started in its place is to have the same."""
        settings, info, vocabulary = self._config.server, worker.info, self._model.vocabulary
        num_running = info["max_running_requests"]
        self._frontend.steering.on_new_worker()
        self._frontend.limits = replace(
            serving_limits(info, num_running + settings.max_queued_requests + self._num_displacing()),
            allow_auto_truncate=settings.allow_auto_truncate,
            caps=settings.caps,
            longest_token_chars=max(len(vocabulary.token_bytes(token_id)) for token_id in range(vocabulary.vocab_size)),
        )
        sizes = {"max_total_tokens": info["max_total_num_tokens"], "max_running_requests": num_running}
        self._config = replace(self._config, engine=replace(self._config.engine, **sizes))

    def _start_serving(self, worker: Ready) -> None:
        settings = self._config.server
        self._note_worker(worker)
        spare_the_living()
        self._link.alive = self._has_started = True
        self._frontend.start_serving(self._frontend.limits)
        scheme = "https" if settings.tls else "http"
        logger.info("ready: %s at %s://%s:%d", self._model.name, scheme, settings.host, settings.port)

    def _num_displacing(self) -> int:
        """How many requests are let through to a full queue, where the scheduler decides which of them displaces another."""
        return MAX_DISPLACING if self._config.scheduler.priority_scheduling else 0

    async def _drain(self) -> None:
        """Let open requests finish, up to the deadline or a second signal."""
        timeout_s = self._config.launch.drain_timeout_s
        self._drain_until_s = self._loop.time() + timeout_s
        logger.info("draining: %d open requests, up to %.0f s (signal again to stop at once)", self._frontend.num_open, timeout_s)
        draining = asyncio.ensure_future(self._frontend.drain(timeout_s))
        hurrying = asyncio.ensure_future(self._hurry.wait())
        await asyncio.wait((draining, hurrying), return_when=asyncio.FIRST_COMPLETED)
        hurrying.cancel()
        if not draining.done():
            self._frontend.abort("", "the server is shutting down")
        await draining

    def _time_to_save_s(self) -> float:
        """What is left of the drain time, for the cache."""
        if self._failure or self._hurry.is_set() or self._drain_until_s is None:
            return 0.0
        return max(self._drain_until_s - self._loop.time(), 0.0)

    async def _hurry_once(self) -> None:
        await self._hurry.wait()
        self._link.hurry()

    def _deliver(self, message: StepTexts | Answer | Ready) -> None:
        if isinstance(message, Ready):
            self._supervisor.mark_ready(message)
        self._frontend.on_message(message)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(lambda: (self._hurry if self._end.is_set() else self._end).set())

    @property
    def _restarts(self) -> bool:
        return self._config.launch.restart == "always"

    def _on_death(self, name: str, pid: int, code: int) -> None:
        if self._failure is not None:
            return
        how = self._inquest.hold(name, pid, code)
        if self._restarts and self._has_started:
            self._recovery.on_death(name, how)
        else:
            self._fail(EngineFailed(f"the {name} process died (status {code}); the server ends, start it again"))

    def _on_hang(self, name: str, what: str) -> None:
        pids = {child: pid for child, pid in self._supervisor.pids.items() if unit_of(child) == unit_of(name)}
        self._rescue = self._loop.create_task(self._inquest.end(name, what, pids))

    def _on_silence(self, name: str) -> None:
        """What starts up is silent, and a worker may be in a long step; both have deadlines of their own."""
        if self._frontend.state is ServingState.RECOVERING:
            return
        if name != "worker 0" or all(step.ended_s for step in read_steps(self._link.topology.flight)):
            self._on_hang(name, f"it did not answer for {self._config.launch.watchdog_timeout_s:g} s")

    def _fail(self, error: SapwoodError) -> None:
        """The replica is lost: tell everybody once, then end."""
        if self._failure is None:
            self._failure = error
            logger.error("%s", error.message)
            self._link.fail(error)
            self._frontend.fail_all(error)
            self._end.set()


@contextlib.asynccontextmanager
async def http_server(app: FastAPI, listener: socket.socket, settings: ServerSection) -> AsyncIterator[None]:
    """uvicorn on a bound socket, accepting inside the block; on leaving, open connections get a moment to end."""
    options = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=2,
        **protocol_options(settings),
    )
    server = uvicorn.Server(options)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]  # signals are the replica's, to the very end
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        yield
    finally:
        server.should_exit = True
        await serving


def served_model(options: ModelOptions, model_path: str, tokenizer: Tokenizer, settings: ServerSection) -> ServedModel:
    """The model as clients see it."""
    chat = open_chat(tokenizer, options.chat_template)
    names = {options.model_path, model_path, Path(model_path).name}
    files = _model_files(Path(model_path))
    return ServedModel(
        name=options.served_model_name,
        path=options.model_path,
        vocabulary=tokenizer,
        render_chat=chat.render if chat.has_template else None,
        aliases=tuple(sorted(names)),
        tokenizer_facts=(*sorted(tokenizer.special_token_texts.items()), ("chat_template", tokenizer.chat_template)),
        fim=find_fim(tokenizer),
        frame=tokenizer.frame,
        output=find_format(settings.tool_call_parser, settings.reasoning_parser, chat.source, frozenset(tokenizer.control_texts)),
        reads_tools=chat.reads_tools,
        format=files[0].suffix.removeprefix(".") if files else "",
        num_bytes=sum(file.stat().st_size for file in files),
    )


def _model_files(path: Path) -> list[Path]:
    """The files of weights; none for the null model."""
    return [path] if path.is_file() else sorted(path.glob("*.safetensors"))
