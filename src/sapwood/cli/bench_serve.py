"""Puts load on a server: `sapwood bench serve --url http://127.0.0.1:30000 --workload shared-prefix --max-concurrency 16`.

Turns options into requests and shows the report. Invariant: knows servers only by OpenAI's completions route, so that any engine
which has it can be measured; exit code 1 when a request failed.
"""

from __future__ import annotations

import argparse
from math import inf

from sapwood.bench.conversations import SERVE_WORKLOADS, make_conversations
from sapwood.bench.http import endpoint
from sapwood.bench.plot import check_plot, plot_serve
from sapwood.bench.serve import hold, observe, serve_tables, summarise
from sapwood.bench.show import emit
from sapwood.cli.bench import at_least_one
from sapwood.config.raw import Parser
from sapwood.errors import ConfigError
from sapwood.simulate.workload import WorkloadOptions

VOCAB_SIZE = 32000


def add_arguments(parser: Parser) -> None:
    """The server, and the load."""
    parser.add_argument("--url", default="http://127.0.0.1:30000", help="of the server [%(default)s]")
    parser.add_argument("--model", metavar="NAME", help="as the server calls it, where it serves several")
    parser.add_argument("--api-key", metavar="KEY", help="sent as a bearer token")
    parser.add_argument("--workload", choices=SERVE_WORKLOADS, default="random", help="[%(default)s]")
    parser.add_argument("--dataset", metavar="FILE", help="conversations in ShareGPT's format, for that workload")
    parser.add_argument("--request-rate", type=float, metavar="FLOAT", default=inf, help="arrivals per second, Poisson [inf]")
    parser.add_argument("--max-concurrency", type=int, metavar="INT", help="requests that are open at once [no limit]")
    for name, default, meaning in (
        ("num-requests", 64, "requests in all"),
        ("input-tokens", 128, "tokens of a prompt of its own; in conversations words of a turn"),
        ("output-tokens", 64, "tokens of each completion"),
        ("num-prefixes", 1, "groups that share a prefix"),
        ("prefix-tokens", 1000, "tokens of a shared prefix"),
        ("num-turns", 4, "turns of a conversation or agent, depth of a tree"),
        ("vocab-size", VOCAB_SIZE, "random ids are below this"),
        ("seed", 0, "of the load"),
    ):
        parser.add_argument(f"--{name}", type=int, metavar="INT", default=default, help=f"{meaning} [%(default)s]")
    parser.add_argument(
        "--pause", type=float, metavar="S", default=0.0, help="seconds between answer and next turn [%(default)s]"
    )
    parser.add_argument("--plot", metavar="FILE", help="draw latencies and throughput: .png, .svg or .pdf; extra `plot`")
    parser.add_argument("--spread", type=float, metavar="FLOAT", default=0.0, help="share by which lengths vary [%(default)s]")


def run(args: argparse.Namespace) -> int:
    """Send, wait, print the report."""
    at_least_one(
        args, "num_requests", "input_tokens", "output_tokens", "num_prefixes", "num_turns", "vocab_size", "max_concurrency"
    )
    if not args.request_rate > 0:
        raise ConfigError(f"--request-rate must be above 0, got {args.request_rate}", param="request_rate")
    options = WorkloadOptions(
        num_requests=args.num_requests,
        rate=args.request_rate,
        input_tokens=args.input_tokens,
        output_tokens=args.output_tokens,
        spread=args.spread,
        num_prefixes=args.num_prefixes,
        prefix_tokens=args.prefix_tokens,
        num_turns=args.num_turns,
        pause_s=args.pause,
        seed=args.seed,
    )
    if args.plot:
        check_plot(args.plot)
    load = make_conversations(args.workload, options, args.vocab_size, args.dataset)
    answers, duration_s = hold(endpoint(args.url, api_key=args.api_key), args.model, load, args.max_concurrency)
    report = summarise(args.workload, answers, duration_s)
    emit(report, serve_tables(report), args.json)
    if args.plot:
        plot_serve(report, observe(answers), args.plot)
    return 1 if report.num_failed else 0
