"""Runs a workload through the real scheduler in virtual time: `sapwood simulate --workload shared-prefix`.

Turns options into a `Simulation` and shows its report. Invariant: needs no model and no device; scheduler options are those of
`serve`, under the same names.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
from rich.console import Console

from sapwood.config.raw import Parser, RawOptions, add_options, from_mapping, gather
from sapwood.config.resolve import probe_host, resolve
from sapwood.core.plan import EngineLimits
from sapwood.errors import ConfigError
from sapwood.observability.progress import Bars
from sapwood.scheduler.options import scheduler_options
from sapwood.simulate.cost import DEFAULT_COST, CostModel, calibrate, load_cost
from sapwood.simulate.report import tables
from sapwood.simulate.routing import routers
from sapwood.simulate.simulator import Simulation, simulate
from sapwood.simulate.traces import read_trace
from sapwood.simulate.workload import VOCAB_SIZE, SimRequest, WorkloadOptions, workloads

PIPED_WIDTH = 160
DEFAULT_SLOTS, DEFAULT_TOKENS, DEFAULT_CONTEXT, DEFAULT_CHUNK = 256, 2**19, 2**17, 2048


def add_arguments(parser: Parser) -> None:
    """The workload, the machine, and the options of the table that say how memory is cut and steps are made."""
    add_options(parser, ("memory", "scheduling"))
    defaults = WorkloadOptions()
    group = parser.add_argument_group("workload", "Who asks for what.")
    group.add_argument(
        "--workload", metavar="NAME|FILE", default="random", help=f"{', '.join(workloads)}, or a trace in JSON lines [random]"
    )
    group.add_argument("--num-requests", type=int, metavar="INT", help="requests in all [1000, or the whole trace]")
    group.add_argument("--request-rate", type=float, metavar="FLOAT", default=defaults.rate, help="arrivals per second [inf]")
    group.add_argument("--max-concurrency", type=int, metavar="INT", help="requests that are open at once [no limit]")
    for name, meaning in (
        ("input_tokens", "prompt tokens on average, beside prefix and history"),
        ("output_tokens", "completion tokens on average"),
        ("num_prefixes", "different shared prefixes"),
        ("prefix_tokens", "tokens of a shared prefix"),
        ("num_turns", "turns of a conversation or agent, depth of a tree"),
    ):
        flag = "--" + name.replace("_", "-")
        group.add_argument(flag, type=int, metavar="INT", default=getattr(defaults, name), help=f"{meaning} [%(default)s]")
    pause_help = "seconds between answer and next turn [%(default)s]"
    group.add_argument("--pause", type=float, metavar="S", default=defaults.pause_s, help=pause_help)
    machine = parser.add_argument_group("machine", "On what.")
    machine.add_argument("--cost-file", metavar="FILE", help="JSON with base_s, token_s, attended_s; or, for the first two, "
                                                             "points [[tokens, seconds], ...]")  # fmt: skip
    machine.add_argument("--calibrate", metavar="FILE", help="take the cost model from the measured steps of a `--step-log`")
    machine.add_argument("--context-length", type=int, metavar="INT", default=DEFAULT_CONTEXT, help="tokens [%(default)s]")
    machine.add_argument("--replicas", type=int, metavar="INT", default=1, help="replicas, each with this memory [1]")
    machine.add_argument("--routing", metavar="{" + ",".join(routers) + "}", default="round-robin", help="[round-robin]")
    machine.add_argument("--seed", type=int, metavar="INT", default=0, help="of the workload and of random orders [0]")
    parser.add_argument("--json", metavar="FILE", help="write the report there, too")


def run(args: argparse.Namespace) -> int:
    """Simulate, print the report."""
    simulation = _simulation(args)
    console = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
    requests = _requests(args)
    gc.freeze()  # a simulation makes millions of small objects that die by themselves
    gc.disable()
    with Bars() as bars:
        report = simulate(simulation, requests, lambda num_done: bars("simulate", num_done, args.num_requests or 0))
    gc.enable()
    with console.capture() as page:
        cost, ratios = simulation.cost, simulation.cost.spread or (1.0,)
        console.print(f"{msgspec.structs.replace(cost, spread=())}, steps vary from {ratios[0]:.2f} to {ratios[-1]:.2f} of that")
        for table in tables(report):
            console.print(table)
    print(page.get(), end="")
    if args.json:
        Path(args.json).write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))
    return 0


def _simulation(args: argparse.Namespace) -> Simulation:
    for name in ("replicas", "context_length", "max_concurrency", "num_requests"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, got {value}", param=name)
    raw = gather(args, os.environ)
    fixed = from_mapping({"model_path": "null", "random_seed": args.seed}, "simulate")
    config = resolve(RawOptions(fixed.over(raw).values, raw.sources), probe_host())
    num_tokens = config.engine.max_total_tokens or DEFAULT_TOKENS
    page_size = config.engine.page_size
    return Simulation(
        limits=EngineLimits(
            num_slots=config.engine.max_running_requests or DEFAULT_SLOTS,
            max_len=args.context_length,
            num_pages=max(num_tokens // page_size, 1),
            page_size=page_size,
            vocab_size=VOCAB_SIZE,
            eos_token_ids=(),
        ),
        options=replace(scheduler_options(config.scheduler, DEFAULT_CHUNK), max_queue=None, request_timelines=0),
        cost=_cost(args),
        num_replicas=args.replicas,
        routing=args.routing,
        max_concurrency=args.max_concurrency,
        overlap=config.scheduler.overlap,
    )


def _cost(args: argparse.Namespace) -> CostModel:
    if args.cost_file and args.calibrate:
        raise ConfigError("--cost-file and --calibrate both give the cost model; leave one of them out")
    if args.calibrate:
        return calibrate(args.calibrate)
    return load_cost(args.cost_file) if args.cost_file else DEFAULT_COST


def _requests(args: argparse.Namespace) -> Iterator[SimRequest]:
    if args.workload not in workloads and Path(args.workload).is_file():
        return read_trace(args.workload, args.num_requests)
    options = WorkloadOptions(
        num_requests=args.num_requests or WorkloadOptions().num_requests,
        rate=args.request_rate,
        input_tokens=args.input_tokens,
        output_tokens=args.output_tokens,
        num_prefixes=args.num_prefixes,
        prefix_tokens=args.prefix_tokens,
        num_turns=args.num_turns,
        pause_s=args.pause,
        seed=args.seed,
    )
    return workloads.get(args.workload)(options)
