"""What operators can follow: a line for each ended request, spans, and a dashboard and alerts whose metrics exist."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from serverkit import House, client_of, make_house, wait_until

from sapwood.errors import ConfigError
from sapwood.messages.types import StepStats
from sapwood.observability.metrics import Metrics
from sapwood.observability.requests import COMPLAINT_INTERVAL_S, RequestFacts, RequestLog
from sapwood.observability.tracing import SpanSink, open_spans
from sapwood.server.ledger import Ledger

DEPLOY = Path(__file__).parents[2] / "deploy"
SECRET = "the prompt is nobody's business"
GENERATE = {"text": SECRET, "rid": "mine", "sampling_params": {"max_new_tokens": 5}}
CHAT = {"model": "fake", "messages": [{"role": "user", "content": SECRET}], "max_tokens": 4, "n": 2}
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
FACTS = RequestFacts(
    received=1.0, request_id="", rid="r", model="m", prompt_tokens=1, cached_tokens=0, completion_tokens=0,
    finish_reason="error", status=500, end_s=2.0, message="it broke",
)  # fmt: skip


def post(house: House, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    async def run() -> httpx.Response:
        async with client_of(house, **headers) as client:
            return await client.post(path, json=body)

    return asyncio.run(run())


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_for_each_request_without_its_texts(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    house = make_house(request_log=str(path))
    assert post(house, "/generate", GENERATE, **{"x-request-id": "call-1"}).status_code == 200
    assert post(house, "/v1/chat/completions", CHAT, **{"x-request-id": "call-2"}).status_code == 200
    house.frontend.ledger.close()
    first, second, third = lines_of(path)
    assert (first["request_id"], first["rid"], first["model"]) == ("call-1", "mine", "fake")
    assert (first["prompt_tokens"], first["completion_tokens"], first["cached_tokens"]) == (len(SECRET), 5, 3)
    assert (first["finish_reason"], first["status"], first["message"]) == ("length", 200, "")
    assert 0.0 < first["first_token_s"] <= first["end_s"] and abs(first["received"] - time.time()) < 60
    assert second["request_id"] == third["request_id"] == "call-2" and second["rid"] != third["rid"]
    assert "nobody" not in path.read_text() and not {"prompt", "completion"} & first.keys()


def test_texts_when_asked_and_clients_that_leave(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    house = make_house(request_log=str(path), request_log_texts=True)
    post(house, "/generate", GENERATE)

    async def leave() -> None:
        async with client_of(house) as client:
            house.backend.is_paused = True
            asking = asyncio.ensure_future(client.post("/generate", json=GENERATE))
            while not house.frontend.num_open:
                await asyncio.sleep(0.001)
            house.frontend.abort("mine")
            await asking

    asyncio.run(leave())
    house.frontend.ledger.close()
    done, aborted = lines_of(path)
    assert (done["prompt"], done["completion"]) == (SECRET, "Hello")
    assert (aborted["finish_reason"], aborted["status"]) == ("abort", 499) and "operator" in aborted["message"]
    assert aborted["first_token_s"] is None


def test_a_log_that_was_moved_away_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    house = make_house(request_log=str(path))
    post(house, "/generate", GENERATE)
    deadline_s = time.monotonic() + 10
    while not path.read_text() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    path.rename(tmp_path / "old")
    post(house, "/generate", GENERATE)
    house.frontend.ledger.close()
    assert len(lines_of(path)) == len(lines_of(tmp_path / "old")) == 1


def test_a_log_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match="choose another --request-log"):
        RequestLog(str(tmp_path / "nowhere" / "log"))
    house = make_house(request_log="/dev/full")
    for _ in range(3):
        assert post(house, "/generate", GENERATE).status_code == 200
    house.frontend.ledger.close()
    assert [message for message in caplog.messages if "request log" in message] == [
        "the request log /dev/full cannot be written; make room there, or see to its permissions (1 times so far)"
    ]


def test_a_log_that_fails_again_complains_again_but_not_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its folder is taken away and given back: what comes meanwhile is lost, what comes later is written."""
    folder, now_s, looks = tmp_path / "logs", 0.0, list[float]()
    folder.mkdir()

    def clock() -> float:
        looks.append(now_s)
        return now_s

    log = RequestLog(str(folder / "log"), clock=clock)

    def lose(num_complaints: int) -> None:
        """A line that cannot be written."""
        shutil.rmtree(folder)
        before = len(looks)
        log.ended(FACTS)
        assert wait_until(lambda: len(looks) > before)
        folder.mkdir()
        log.ended(FACTS)
        assert wait_until(lambda: (folder / "log").exists() and len((folder / "log").read_text().splitlines()) == 1)
        assert len([text for text in caplog.messages if "cannot be written" in text]) == num_complaints

    lose(num_complaints=1)
    lose(num_complaints=1)
    now_s += COMPLAINT_INTERVAL_S
    lose(num_complaints=2)
    assert "(1 times so far)" in caplog.messages[0] and "(3 times so far)" in caplog.messages[-1]
    log.close()


def test_spans_are_part_of_the_clients_trace() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    house = make_house()
    house.frontend.ledger = Ledger(SpanSink(provider), "fake")
    post(house, "/generate", GENERATE, traceparent=f"00-{TRACE}-00f067aa0ba902b7-01")
    post(house, "/generate", GENERATE, traceparent="nonsense")
    spans = exporter.get_finished_spans()
    assert [span.name for span in spans] == ["queue", "prefill", "decode", "llm_request"] * 2
    request = spans[3]
    assert f"{request.context.trace_id:032x}" == TRACE and f"{request.parent.span_id:016x}" == "00f067aa0ba902b7"
    assert all(span.parent.span_id == request.context.span_id for span in spans[:3])
    assert request.attributes["gen_ai.usage.input_tokens"] == len(SECRET)
    assert request.attributes["gen_ai.response.finish_reasons"] == ("length",)
    assert request.start_time <= spans[0].start_time <= spans[2].end_time <= request.end_time
    assert spans[7].parent is None and SECRET not in str(request.attributes)


def test_failed_requests_are_spans_with_an_error() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    SpanSink(provider).ended(FACTS)
    queue, request = exporter.get_finished_spans()
    assert (queue.name, request.status.is_ok, request.status.description) == ("queue", False, "it broke")


def test_a_collector_that_is_away_disturbs_nobody() -> None:
    sink = open_spans("http://127.0.0.1:9/v1/traces")
    house = make_house()
    house.frontend.ledger = Ledger(sink, "fake")
    assert post(house, "/generate", GENERATE).status_code == 200


def test_the_dashboard_and_the_alerts_use_metrics_that_exist() -> None:
    metrics = Metrics("m")
    metrics.observe_step(StepStats())
    metrics.observe_response(200)
    metrics.observe_death("worker 0")
    shown = set(re.findall(r"^(sapwood:\w+)", metrics.render().decode(), re.MULTILINE))
    dashboard = json.loads((DEPLOY / "grafana" / "sapwood.json").read_text())
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())["groups"][0]["rules"]
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    expressions = [*queries, *(rule["expr"] for rule in rules)]
    assert len(dashboard["panels"]) >= 10 and len(rules) >= 8
    assert all(re.search(r"sapwood:\w+", expression) for expression in expressions)
    used = {name for expression in expressions for name in re.findall(r"sapwood:\w+", expression)}
    assert used - shown == set()
    assert all(rule["annotations"]["summary"] for rule in rules)
