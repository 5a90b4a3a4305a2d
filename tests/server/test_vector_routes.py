"""The routes for vectors and scores in every dialect, over a fake model whose vectors count remainders of ids."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import math
from typing import Any

import httpx
import numpy as np
import ollama
import openai
import pytest
from serverkit import CONTEXT_LEN, House, ask, client_of, fake_vector, make_house, real_server

from sapwood.core.pooling import Task
from sapwood.messages.types import Submit

TEXTS = ["hello", "how are you?", "fine"]


def house_for(task: Task, size: int = 4, **settings: Any) -> House:
    house = make_house(**settings)
    house.backend.vector_size = size
    labels = tuple("abcdefgh"[:size]) if task is Task.CLASSIFY else ()
    house.frontend.limits = dataclasses.replace(house.frontend.limits, task=task, vector_size=size, labels=labels)
    return house


def raw(text: str, size: int = 4) -> np.ndarray:
    return np.frombuffer(fake_vector(list(text.encode()), size), dtype="<f4")


def unit(text: str) -> np.ndarray:
    return raw(text) / np.linalg.norm(raw(text))


def post(house: House, path: str, **body: Any) -> Any:
    response = ask(house, "POST", path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def refused(house: House, path: str, **body: Any) -> dict[str, Any]:
    response = ask(house, "POST", path, json=body)
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


def test_the_openai_client_gets_unit_vectors_in_either_encoding() -> None:
    house = house_for(Task.EMBED)
    with real_server(house) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
        packed = client.embeddings.create(model="fake", input=TEXTS)  # the client asks for base64 by itself
        plain = client.embeddings.create(model="fake", input=TEXTS, encoding_format="float")
        part = client.embeddings.create(model="fake", input="hello", dimensions=2)
        ids = client.embeddings.create(model="fake", input=[[104, 101], [105]])
        one = client.embeddings.create(model="fake", input=list(b"hello"))
    for found in (packed, plain):
        assert [item.index for item in found.data] == [0, 1, 2] and found.model == "fake"
        np.testing.assert_allclose([item.embedding for item in found.data], [unit(text) for text in TEXTS], atol=1e-6)
        assert found.usage.prompt_tokens == found.usage.total_tokens == sum(map(len, TEXTS))
    np.testing.assert_allclose(part.data[0].embedding, raw("hello")[:2] / np.linalg.norm(raw("hello")[:2]), atol=1e-6)
    assert len(ids.data) == 2
    np.testing.assert_allclose(one.data[0].embedding, unit("hello"), atol=1e-6)
    assert house.frontend.num_open == 0 and not house.backend.runs


def test_base64_is_little_endian_float32() -> None:
    found = post(house_for(Task.EMBED), "/v1/embeddings", input="hello", encoding_format="base64")
    values = np.frombuffer(base64.b64decode(found["data"][0]["embedding"]), dtype="<f4")
    np.testing.assert_allclose(values, unit("hello"), atol=1e-6)


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, "input", "missing"),
        ({"input": []}, "input", "from 1 to"),
        ({"input": ""}, "input", "must not be empty"),
        ({"input": ["a", 5]}, "input", "texts or ids"),
        ({"input": [[]]}, "input", "empty prompt"),
        ({"input": [999]}, "input", "outside the vocabulary"),
        ({"input": "a" * (CONTEXT_LEN + 1)}, "input", "shorten the input"),
        ({"input": "a", "dimensions": 5}, "dimensions", "from 1 to 4"),
        ({"input": "a", "dimensions": 0}, "dimensions", ">= 1"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "hex"),
        ({"input": ["a", "b"], "rid": ["x"]}, "rid", "1 entries for 2"),
        ({"input": "a", "lora_path": "x"}, "lora_path", "not supported"),
        ({"input": ["a"] * 5000}, "input", "from 1 to 4096"),
    ],
)
def test_bad_embedding_bodies_name_the_field(body: dict[str, Any], param: str, words: str) -> None:
    error = refused(house_for(Task.EMBED), "/v1/embeddings", **body)
    assert error["param"] == param and words in error["message"]


def test_too_long_an_input_is_cut_where_the_server_may() -> None:
    house = house_for(Task.EMBED, allow_auto_truncate=True)
    found = post(house, "/v1/embeddings", input="a" * (CONTEXT_LEN + 50))
    assert found["usage"]["prompt_tokens"] == CONTEXT_LEN


def test_encode_answers_one_or_many() -> None:
    house = house_for(Task.EMBED)
    one = post(house, "/encode", text="hello", rid="r1")
    np.testing.assert_allclose(one["embedding"], unit("hello"), atol=1e-6)
    assert one["meta_info"]["id"] == "r1" and one["meta_info"]["prompt_tokens"] == 5
    many = post(house, "/encode", input_ids=[[104], [105, 106]])
    assert [entry["meta_info"]["prompt_tokens"] for entry in many] == [1, 2]
    assert refused(house, "/encode")["param"] == "text"
    assert refused(house, "/classify", text="a")["param"] == "model"


def test_classes() -> None:
    house = house_for(Task.CLASSIFY)
    found = post(house, "/v1/classify", input=TEXTS)
    for text, entry in zip(TEXTS, found["data"], strict=True):
        weights = np.exp(raw(text) - raw(text).max())
        np.testing.assert_allclose(entry["probs"], weights / weights.sum(), atol=1e-6)
        assert entry["label"] == "abcd"[int(raw(text).argmax())] and entry["num_classes"] == 4
    assert post(house, "/classify", text="hello")["embedding"] == raw("hello").tolist()
    for path, body in (("/v1/embeddings", {"input": "a"}), ("/encode", {"text": "a"}), ("/v1/rerank", None)):
        error = refused(house, path, **(body or {"query": "a", "documents": ["b"]}))
        assert error["param"] == "model"
    alone = post(house_for(Task.CLASSIFY, 1), "/v1/classify", input="hello")["data"][0]
    assert alone["probs"] == [pytest.approx(1 / (1 + math.exp(-5)))] and alone["label"] == "a"


def test_scores_of_a_classifier_are_of_the_pair() -> None:
    house = house_for(Task.CLASSIFY)
    found = post(house, "/v1/score", query="ab", items=["c", "dd"])
    assert found["scores"] == [raw("abc").tolist(), raw("abdd").tolist()]
    assert found["object"] == "scoring" and found["usage"]["total_tokens"] == 7
    assert [submit.pooling.second_start for submit in house.backend.sent_of(Submit)] == [2, 2]
    assert refused(house, "/v1/score", query=[1], items=[[2]])["param"] == "query"
    assert refused(house, "/v1/score", query="a", items=[[2]])["param"] == "items"
    assert refused(house, "/v1/score", query="a", items=[])["param"] == "items"


def test_scores_of_a_model_of_text_are_of_labels() -> None:
    house = make_house()
    found = post(house, "/v1/score", query="ab", items=["c", "d"], label_token_ids=[65, 66])
    assert found["scores"] == [[pytest.approx(math.exp(-9.0))] * 2] * 2
    assert post(house, "/v1/score", query=[97], items=[[98]], label_token_ids=[1], apply_softmax=True)["scores"] == [[1.0]]
    ids = [list(np.frombuffer(submit.token_ids, "<i4")) for submit in house.backend.sent_of(Submit)]
    assert ids == [list(b"abc"), list(b"abd"), [97, 98]]
    post(house, "/v1/score", query="ab", items="c", label_token_ids=[65], item_first=True)
    assert list(np.frombuffer(house.backend.sent_of(Submit)[-1].token_ids, "<i4")) == list(b"cab")
    assert refused(house, "/v1/score", query="a", items=["b"])["param"] == "label_token_ids"
    assert refused(house, "/v1/score", query="a", items=["b"], label_token_ids=[999])["param"] == "label_token_ids"


def test_reranking_by_embeddings_and_by_a_cross_encoder() -> None:
    documents = ["xyz", "hello you", "hello"]
    found = post(house_for(Task.EMBED), "/v1/rerank", query="hello", documents=documents, top_n=2)
    cosines = [float(unit("hello") @ unit(text)) for text in documents]
    assert [entry["index"] for entry in found] == sorted(range(3), key=lambda i: -cosines[i])[:2]
    assert [entry["score"] for entry in found] == [pytest.approx(cosines[entry["index"]], abs=1e-6) for entry in found]
    assert found[0]["document"] == "hello"
    house = house_for(Task.CLASSIFY, 1)
    found = post(house, "/v1/rerank", query="a", documents=["b", {"text": "cc"}], return_documents=False)
    assert [(entry["index"], "document" in entry) for entry in found] == [(1, False), (0, False)]
    assert found[0]["score"] == pytest.approx(1 / (1 + math.exp(-3)))
    ranked = post(house, "/v1/ranking", query={"text": "a"}, passages=[{"text": "b"}, {"text": "cc"}])
    assert ranked == {"rankings": [{"index": 1, "logit": 3.0}, {"index": 0, "logit": 2.0}]}
    assert refused(house, "/v1/rerank", query="a", documents=[])["param"] == "documents"
    assert refused(house, "/v1/rerank", query="a", documents=["b"], top_n=0)["param"] == "top_n"


def test_a_model_of_text_is_not_asked_for_vectors_by_accident() -> None:
    house = make_house()
    for path, body in (("/v1/embeddings", {"input": "a"}), ("/encode", {"text": "a"}), ("/v1/classify", {"input": "a"})):
        assert "--is-embedding" in refused(house, path, **body)["message"]
    assert "--is-embedding" in ask(house, "POST", "/api/embed", json={"model": "fake", "input": "a"}).json()["error"]
    assert not house.backend.sent_of(Submit)


def test_a_model_of_vectors_is_not_asked_for_text() -> None:
    house = house_for(Task.EMBED)
    assert "/v1/embeddings" in refused(house, "/v1/completions", prompt="a")["message"]
    assert "/v1/embeddings" in refused(house, "/generate", text="a")["message"]
    assert ask(house, "GET", "/health_generate").status_code == 200
    assert ask(house, "GET", "/model_info").json()["is_generation"] is False


def test_the_ollama_client_gets_vectors() -> None:
    house = house_for(Task.EMBED)
    with real_server(house) as url:
        client = ollama.Client(url)
        found = client.embed(model="fake", input=[*TEXTS, "x" * (CONTEXT_LEN + 9)])
        old = client.embeddings(model="fake", prompt="hello")
        with pytest.raises(ollama.ResponseError, match="shorten"):
            client.embed(model="fake", input="x" * (CONTEXT_LEN + 9), truncate=False)
        assert client.show("fake").capabilities == ["embedding"]
    np.testing.assert_allclose(found.embeddings[:3], [unit(text) for text in TEXTS], atol=1e-6)
    assert found.prompt_eval_count == sum(map(len, TEXTS)) + CONTEXT_LEN and found.total_duration > 0
    np.testing.assert_allclose(old.embedding, raw("hello"))


def test_a_client_that_goes_away_ends_its_prompts() -> None:
    house = house_for(Task.EMBED)
    house.backend.is_paused = True

    async def leave() -> None:
        async with client_of(house) as client:
            with pytest.raises((httpx.TimeoutException, TimeoutError)):
                async with asyncio.timeout(0.2):
                    await client.post("/v1/embeddings", json={"input": TEXTS})

    asyncio.run(leave())
    assert house.frontend.num_open == 0
