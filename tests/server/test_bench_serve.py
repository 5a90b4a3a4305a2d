"""The load generator against a real HTTP server of the fake model: what it sends, what it counts, what it says of failures."""

from __future__ import annotations

import asyncio
import json
from math import inf
from pathlib import Path

import pytest
from serverkit import SCRIPT, FakeBackend, make_house, real_server

from sapwood.bench.conversations import make_conversations
from sapwood.bench.http import endpoint, stream_events
from sapwood.bench.serve import Answered, ServeReport, measure_serve, serve_tables, summarise
from sapwood.cli.main import main
from sapwood.errors import ConfigError
from sapwood.messages.types import Submit, unpack_ids
from sapwood.simulate.workload import WorkloadOptions

OPTIONS = WorkloadOptions(
    num_requests=6, input_tokens=10, output_tokens=4, spread=0.0, num_prefixes=2, prefix_tokens=32, num_turns=3, rate=inf
)


def run(name: str, options: WorkloadOptions = OPTIONS, concurrency: int | None = None) -> tuple[ServeReport, list[Submit]]:
    backend = FakeBackend()
    load = make_conversations(name, options, 256, None)
    with real_server(make_house(backend)) as url:
        report = measure_serve(endpoint(url), None, name, load, concurrency)
    return report, [message for message in backend.sent if isinstance(message, Submit)]


@pytest.mark.parametrize(("name", "tokens"), [("random", 10), ("shared-prefix", 42), ("few-shot", 42)])
def test_prompts_of_ids(name: str, tokens: int) -> None:
    report, sent = run(name, concurrency=2)
    assert report.num_failed == 0, report.errors
    assert {len(unpack_ids(message.token_ids)) for message in sent} == {tokens} and len(sent) == 6
    assert (report.prompt_tokens, report.output_tokens) == (6 * tokens, 24)
    assert all(message.params.ignore_eos and message.params.max_new_tokens == 4 for message in sent)
    assert report.hit_rate is not None and report.hit_rate > 0.0
    assert report.ttft.count == report.e2e.count == report.tpot.count == 6
    assert 0.0 < report.ttft.p50 <= report.ttft.p99 <= report.e2e.p99 <= report.duration_s


def test_a_conversation_contains_the_answers() -> None:
    options = WorkloadOptions(num_requests=3, input_tokens=2, output_tokens=4, spread=0.0, num_turns=3, pause_s=0.01)
    report, sent = run("multi-turn", options)
    assert report.num_requests == 3 and report.num_failed == 0
    prompts = [bytes(unpack_ids(message.token_ids).tolist()).decode() for message in sent]
    for before, after in zip(prompts, prompts[1:], strict=False):
        assert after.startswith(before + SCRIPT[:4]), "the history is not in the next turn's prompt"


def test_a_tree_branches_from_one_answer() -> None:
    options = WorkloadOptions(
        num_requests=6, input_tokens=2, output_tokens=4, spread=0.0, num_turns=2, prefix_tokens=4, pause_s=0.0
    )
    report, sent = run("tree-of-thought", options)
    assert report.num_requests == 6 and report.num_failed == 0
    prompts = sorted((bytes(unpack_ids(message.token_ids).tolist()).decode() for message in sent), key=len)
    parents = {parent for parent in prompts[:3] for child in prompts[3:] if child.startswith(parent + SCRIPT[:4])}
    assert len(parents) == 1 and all(child.startswith(parents.copy().pop()) for child in prompts[3:])


def test_failures_are_reported_not_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    with real_server(make_house(FakeBackend())) as url:  # the fake model's context is 256 tokens
        words = ["bench", "serve", "--url", url, "--input-tokens", "400", "--num-requests", "2", "--vocab-size", "256"]
        assert main([*words, "--json", "-"]) == 1
        report = json.loads(capsys.readouterr().out)
    assert report["num_failed"] == 2 and "HTTP 400" in report["errors"][0]
    assert report["ttft"]["count"] == 0


def test_a_picture_of_the_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "load.svg"
    with real_server(make_house(FakeBackend())) as url:
        words = ["bench", "serve", "--url", url, "--input-tokens", "8", "--num-requests", "3", "--vocab-size", "256"]
        assert main([*words, "--plot", str(path)]) == 0
        assert main([*words, "--plot", str(tmp_path / "load.txt")]) != 0
    assert "random: 3 requests" in path.read_text() and "end to end" in capsys.readouterr().out


def test_nobody_listens() -> None:
    load = make_conversations("random", OPTIONS, 256, None)
    report = measure_serve(endpoint("http://127.0.0.1:9"), None, "random", load, None)
    assert report.num_failed == 6 and len(report.errors) == 1 and len(serve_tables(report)) == 2


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"hello\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\n\r\ndata: {}\n\n", "before its last event"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nshort", "broke off"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "broke off"),
        (b"HTTP/1.1 503 No\r\n\r\nbusy", "HTTP 503: busy"),
    ],
)
def test_broken_answers(answer: bytes, message: str) -> None:
    with pytest.raises(ConnectionError, match=message):
        asyncio.run(exchange(answer))


def test_events_are_found_however_the_bytes_are_cut() -> None:
    body = b'data: {"a": 1}\r\n\r\ndata:{"b": 2}\n\n: comment\n\ndata: [DONE]\n\n'
    chunks = b"".join(b"1\r\n" + body[i : i + 1] + b"\r\n" for i in range(len(body))) + b"0\r\n\r\n"
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    assert asyncio.run(exchange(head + chunks)) == [b'{"a": 1}', b'{"b": 2}']
    assert asyncio.run(exchange(b"HTTP/1.1 200 OK\r\n\r\n" + body)) == [b'{"a": 1}', b'{"b": 2}']


async def exchange(answer: bytes) -> list[bytes]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n{}")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        return [payload async for payload in stream_events(endpoint(f"http://127.0.0.1:{port}"), b"{}")]


def test_arrivals_follow_the_rate() -> None:
    options = WorkloadOptions(num_requests=400, rate=50.0, input_tokens=2, output_tokens=1)
    moments = [conversation.arrival_s for conversation in make_conversations("random", options, 256, None)]
    assert moments == sorted(moments) and 6.0 < moments[-1] < 10.0


def test_share_gpt_files(tmp_path: Path) -> None:
    path = tmp_path / "share.json"
    records = [
        {"id": "a", "conversations": [{"from": "human", "value": "Hello?"}, {"from": "gpt", "value": "x" * 40}]},
        {"id": "b", "conversations": [{"from": "gpt", "value": "I begin"}, {"from": "human", "value": "no"}]},
        {"id": "c", "conversations": [{"from": "human", "value": "alone"}]},
    ]
    path.write_text(json.dumps(records))
    (conversation,) = make_conversations("sharegpt", OPTIONS, 256, str(path))
    assert (conversation.first.prompt, conversation.first.num_new, conversation.first.then) == ("Hello?", 10, [])
    path.write_text('{"no": "list"}')
    for broken in (str(path), str(tmp_path / "missing"), None):
        with pytest.raises(ConfigError):
            make_conversations("sharegpt", OPTIONS, 256, broken)


@pytest.mark.parametrize("url", ["127.0.0.1:30000", "ftp://host", "http://"])
def test_addresses(url: str) -> None:
    with pytest.raises(ConfigError, match="not the address"):
        endpoint(url)
    assert endpoint("https://host/proxy/v1/").path == "/proxy/v1/completions"


def test_latencies_by_hand() -> None:
    answers = [Answered(10.0, [11.0, 11.5, 12.5], 12.5, "abc", 7, 4, 2), Answered(10.0, error="refused")]
    report = summarise("by hand", answers, 5.0)
    assert (report.ttft.mean, report.tpot.mean, report.itl.mean, report.e2e.mean) == (1.0, 0.5, 0.75, 2.5)
    assert (report.num_failed, report.hit_rate, report.output_tokens_per_s) == (1, 2 / 7, 0.8)
