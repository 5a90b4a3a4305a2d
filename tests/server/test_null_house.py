"""The whole house but processes: real scheduler, index and detokenizer over the null engine, under a crowd of clients."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from serverkit import House, make_house, real_server, wait_until

from sapwood.detokenizer.detokenizer import Detokenizer
from sapwood.engine.null import NullEngine
from sapwood.engine.null_model import VOCAB_SIZE, null_limits
from sapwood.messages.types import Forget, StepEvents, ToWorker, Watch
from sapwood.scheduler.options import SchedulerOptions
from sapwood.scheduler.scheduler import Scheduler
from sapwood.server.backend import Pieces
from sapwood.server.limits import ServingLimits
from sapwood.tokenizer.byte_vocabulary import byte_tokenizer
from sapwood.worker.core import WorkerCore
from sapwood.worker.overhaul import ChangeableEngine, Recipe
from sapwood.worker.step_trace import StepTrace

CONTEXT_LEN = 512


class NullBackend:
    """A worker and a detokenizer in this process, one turn of the loop at a time."""

    def __init__(self, overlap: bool = True, profiles: Path | None = None) -> None:
        self.epoch = 1
        self.alive = True
        self.tokenizer = byte_tokenizer()
        self.detokenizer = Detokenizer(self.tokenizer)
        limits = null_limits(num_slots=32, max_len=CONTEXT_LEN, num_pages=256, page_size=16)
        self.scheduler = Scheduler(limits, SchedulerOptions(step_token_budget=128))
        recipe = Recipe("null", lambda path: None, lambda path: NullEngine(limits))
        engine = ChangeableEngine(NullEngine(limits), recipe, StepTrace(profiles or Path("nowhere")))
        self.core = WorkerCore(self.scheduler, engine, overlap)
        self.core.appoint(engine)
        self.inbox: list[ToWorker] = []
        self.deliver: Callable[[Any], None] = lambda message: None

    def send(self, message: ToWorker) -> None:
        self.inbox.append(message)

    def watch(self, message: Watch) -> None:
        assert self.detokenizer.watch(message) == []

    def forget(self, message: Forget) -> None:
        self.detokenizer.forget(message)

    async def tokenize(self, pieces: Pieces, add_special: bool) -> list[int]:
        return self.tokenizer.encode_pieces(pieces, add_special)

    async def pump(self) -> None:
        while True:
            await asyncio.sleep(0 if self.core.has_work else 0.001)
            if self.inbox or not self.scheduler.may_rest:
                self.turn()

    def turn(self) -> None:
        messages, self.inbox = self.inbox, []
        news = self.core.step(messages)
        for answer in news.answers:
            self.deliver(answer)
        if news.events:
            self.deliver(self.detokenizer.process(StepEvents(self.epoch, news.events, self.scheduler.stats())))


def null_house(overlap: bool = True, profiles: Path | None = None, **settings: Any) -> House:
    backend = NullBackend(overlap, profiles)
    house = make_house(backend, max_queued_requests=1000, **settings)  # type: ignore[arg-type]
    house.frontend.start_serving(ServingLimits(CONTEXT_LEN, 4096, VOCAB_SIZE, 1000))
    return house


def at_rest(house: House) -> bool:
    backend: Any = house.backend
    return house.frontend.num_open == 0 and not backend.core.has_work and not backend.inbox


def body_of(rng: random.Random, number: int) -> tuple[str, dict[str, Any]]:
    prompt = ("the same beginning " if rng.random() < 0.5 else "") + "".join(rng.choices("abc ", k=rng.randint(1, 60)))
    length, stream = rng.randint(0, 40), rng.random() < 0.5
    match number % 3:
        case 0:
            params = {"max_new_tokens": length, "n": rng.randint(1, 3), "stop": ["ee"], "temperature": rng.choice((0.0, 1.0))}
            return "/generate", {
                "text": prompt,
                "stream": stream,
                "sampling_params": params,
                "return_logprob": rng.random() < 0.3,
            }
        case 1:
            messages = [{"role": "user", "content": prompt}]
            return "/v1/chat/completions", {"messages": messages, "max_tokens": length, "stream": stream}
        case _:
            return "/v1/completions", {
                "prompt": [prompt, prompt],
                "max_tokens": length,
                "stream": stream,
                "echo": True,
                "logprobs": 1,
            }


async def one_client(client: httpx.AsyncClient, rng: random.Random, number: int) -> bool:
    """Runs one call; a third of the clients hang up early. Returns whether it was read to its end."""
    path, body = body_of(rng, number)
    if rng.random() < 0.33:
        with contextlib.suppress(TimeoutError, httpx.HTTPError):
            async with asyncio.timeout(rng.uniform(0.0, 0.05)):
                await client.post(path, json=body)
        return False
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    assert "error" not in response.text[:20]
    assert not body["stream"] or response.text.endswith("data: [DONE]\n\n")
    return True


@contextlib.asynccontextmanager
async def clients(url: str) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=250)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
        yield client


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])
def test_a_crowd_of_which_a_third_hangs_up(overlap: bool) -> None:
    house = null_house(overlap)
    backend: Any = house.backend
    probe = {"prompt": "what now", "max_tokens": 30, "temperature": 0}

    async def crowd(url: str) -> int:
        rng = random.Random(5)
        async with clients(url) as client:
            done = await asyncio.gather(*(one_client(client, random.Random(rng.random()), number) for number in range(200)))
        return sum(done)

    with real_server(house) as url:
        before = httpx.post(f"{url}/v1/completions", json=probe).json()["choices"][0]["text"]
        num_done = asyncio.run(crowd(url))
        assert 100 < num_done < 200
        assert wait_until(lambda: at_rest(house), 5.0)
        assert httpx.post(f"{url}/v1/completions", json=probe).json()["choices"][0]["text"] == before
        info = httpx.get(f"{url}/server_info").json()
    stats = info["internal_states"][0]
    assert stats["num_running"] == stats["num_waiting"] == 0
    assert stats["num_free_pages"] + stats["num_cached_pages"] == stats["num_pages"] == 256
    assert stats["num_evictable_pages"] == stats["num_cached_pages"]
    assert backend.scheduler.check() == [] and backend.core._turns is not None
    assert backend.detokenizer.num_watched == 0
    assert info["dropped"]["gap"] == info["dropped"]["duplicate"] == 0


def test_streams_and_whole_answers_agree_and_the_cache_is_reported() -> None:
    house = null_house()
    with real_server(house) as url:
        body = {
            "text": "a long enough beginning " * 4,
            "sampling_params": {"max_new_tokens": 40, "temperature": 0, "stop": ["q"]},
        }
        first = httpx.post(f"{url}/generate", json=body).json()
        again = httpx.post(f"{url}/generate", json=body).json()
        assert first["text"] == again["text"] and first["output_ids"] == again["output_ids"]
        assert first["meta_info"]["cached_tokens"] == 0 and again["meta_info"]["cached_tokens"] == 95
        events = httpx.post(f"{url}/generate", json={**body, "stream": True}).text.split("\n\n")
        assert f'"text":"{first["text"]}"' in events[-3]
        usage = httpx.post(f"{url}/v1/completions", json={"prompt": body["text"], "max_tokens": 1, "n": 3}).json()["usage"]
        assert usage["prompt_tokens"] == 96 and usage["completion_tokens"] == 3
        assert usage["prompt_tokens_details"]["cached_tokens"] == 95
        assert httpx.post(f"{url}/flush_cache").status_code == 200
        assert httpx.post(f"{url}/generate", json=body).json()["meta_info"]["cached_tokens"] == 0


def test_scores_through_the_whole_house() -> None:
    house = null_house()
    ids = [[97, 98, 99, 100], [101] * 20]
    with real_server(house) as url:
        body = {"prompt": ids, "max_tokens": 1, "logprobs": 1, "echo": True, "temperature": 0}
        for _ in range(2):  # the second time everything is cached, and still scored in full
            choices = httpx.post(f"{url}/v1/completions", json=body).json()["choices"]
            for prompt, choice in zip(ids, choices, strict=True):
                logprobs = choice["logprobs"]
                assert len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"]) == len(prompt) + 1
                assert logprobs["token_logprobs"][0] is None and None not in logprobs["token_logprobs"][1:]
                assert logprobs["token_logprobs"][-1] == max(logprobs["top_logprobs"][-1].values())
        scored = httpx.post(f"{url}/v1/completions", json={**body, "max_tokens": 0}).json()
        assert [len(choice["logprobs"]["tokens"]) for choice in scored["choices"]] == [4, 20]
        assert scored["usage"]["completion_tokens"] == 0


def test_deadlines_reach_the_client_and_the_queue_is_timed() -> None:
    house = null_house()
    with real_server(house) as url:
        body = {"text": "abc", "sampling_params": {"max_new_tokens": 300, "ignore_eos": True}}
        late = httpx.post(f"{url}/generate", json={**body, "timeout_s": 1e-6})
        assert late.status_code == 408 and late.json()["error"]["code"] == "timeout"
        stream = httpx.post(f"{url}/v1/completions", json={"prompt": "abc", "max_tokens": 300, "stream": True, "timeout_s": 1e-6})
        assert "timeout" in stream.text
        wrong = httpx.post(f"{url}/generate", json={**body, "queue_timeout_s": 0})
        assert wrong.status_code == 400 and "queue_timeout_s" in wrong.text
        done = httpx.post(f"{url}/generate", json={**body, "timeout_s": 60, "queue_timeout_s": 60}).json()["meta_info"]
        assert 0.0 <= done["queue_time"] < done["e2e_latency"]
        assert "request_queue_time_seconds_count" in httpx.get(f"{url}/metrics").text
        assert wait_until(lambda: at_rest(house), 5.0)


def test_a_requests_timeline_can_be_asked_for() -> None:
    house = null_house()
    with real_server(house) as url:
        body = {"text": "abc " * 60, "rid": "a/b", "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}
        httpx.post(f"{url}/generate", json=body)
        found = httpx.get(f"{url}/debug/requests/a/b").json()
        assert found["rid"] == "a/b" and found["state"] == "finished" and found["num_prompt_tokens"] == 240
        assert [moment["what"] for moment in found["moments"]] == ["queued", "admitted", "chunk", "chunk", "finished"]
        missing = httpx.get(f"{url}/debug/requests/nobody")
        assert missing.status_code == 404 and "--request-timelines" in missing.text
