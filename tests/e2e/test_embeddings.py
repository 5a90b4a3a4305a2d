"""A real embedding model behind a real server: the vectors of transformers, through every dialect's client, from one process."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import ollama
import openai
import pytest
import torch
import transformers
from serving import RunningServer, serving

from sapwood.weights import catalog

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(600)]
MODEL = "all-minilm-l6-v2"
TEXTS = [
    "The weather is lovely today.",
    "It's so sunny outside!",
    "He drove to the stadium.",
    "naïve café — 東京 🌲",
    "A longer text about nothing in particular, " * 20,
    "x",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with serving(Path(tmp_path_factory.mktemp("embeddings")), MODEL) as running:
        yield running


@pytest.fixture(scope="module")
def oracle() -> np.ndarray:
    """What sentence-transformers does with this model: the mean of the last hidden rows, scaled to length one."""
    folder = catalog.resolve(MODEL)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    vectors = []
    for text in TEXTS:
        with torch.inference_mode():
            rows = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        vectors.append(torch.nn.functional.normalize(rows.mean(dim=0), dim=0).numpy())
    return np.stack(vectors)


def test_vectors_agree_within_1e_5_cosine(server: RunningServer, oracle: np.ndarray) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    found = client.embeddings.create(model=MODEL, input=TEXTS)
    vectors = np.array([item.embedding for item in found.data])
    assert vectors.shape == (len(TEXTS), 384)
    assert ((vectors * oracle).sum(axis=1) > 1 - 1e-5).all()
    by_ollama = ollama.Client(server.url).embed(model=MODEL, input=TEXTS).embeddings
    np.testing.assert_allclose(by_ollama, vectors, atol=1e-6)
    native = server.client.post("/encode", json={"text": TEXTS}).json()
    np.testing.assert_allclose([entry["embedding"] for entry in native], vectors, atol=1e-6)


def test_a_crowd_gets_the_same_vectors(server: RunningServer, oracle: np.ndarray) -> None:
    """Whatever shares a step with a text, its vector is its own."""

    def embed(index: int) -> float:
        body = {"input": TEXTS[index % len(TEXTS)], "model": MODEL}
        vector = server.client.post("/v1/embeddings", json=body).json()["data"][0]["embedding"]
        return float(np.array(vector) @ oracle[index % len(TEXTS)])

    with ThreadPoolExecutor(12) as pool:
        assert min(pool.map(embed, range(120))) > 1 - 1e-5
    state = server.client.get("/server_info").json()
    assert state["num_open_requests"] == 0 and state["internal_states"][0]["law_violations_total"] == 0


def test_what_is_near_ranks_first(server: RunningServer) -> None:
    body = {"query": "How is the weather?", "documents": [TEXTS[2], TEXTS[0]], "top_n": 1}
    assert server.client.post("/v1/rerank", json=body).json()[0]["index"] == 1
    refused = server.client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]})
    assert refused.status_code == 400, refused.text
