"""Encoders and their heads agree with transformers, whatever runs beside a prompt."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_encoders import SIZES, TEXTS, cosine, save_encoder, save_pooling, save_tokenizer

from sapwood import LLM
from sapwood.core.pooling import PoolingKind
from sapwood.errors import ConfigError, InvalidRequest, WeightsError
from sapwood.weights.encoder import read_encoder_config

LABELS = {"id2label": {0: "no", 1: "maybe", 2: "yes"}, "label2id": {"no": 0, "maybe": 1, "yes": 2}}


@pytest.mark.parametrize("kind", ["BertModel", "RobertaModel", "XLMRobertaModel"])
@pytest.mark.parametrize("mode", ["mean", "cls"])
def test_embeddings_are_those_of_transformers(kind: str, mode: str, tmp_path: Path) -> None:
    tokenizer = save_tokenizer(tmp_path, is_roberta="Roberta" in kind)
    oracle = save_encoder(tmp_path, kind)
    save_pooling(tmp_path, "pooling_mode_mean_tokens" if mode == "mean" else "pooling_mode_cls_token")
    with LLM(str(tmp_path), device="cpu") as llm:
        found = llm.encode(TEXTS * 3)
        alone = llm.encode(TEXTS[1])
    for index, text in enumerate(TEXTS):
        with torch.inference_mode():
            hidden = oracle(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        expected = hidden.mean(dim=0) if mode == "mean" else hidden[0]
        assert cosine(found[index], expected) > 1 - 1e-5
        assert np.linalg.norm(found[index]) == pytest.approx(1.0, abs=1e-6)
        np.testing.assert_allclose(found[index], found[index + len(TEXTS)], atol=1e-6)
    np.testing.assert_allclose(alone[0], found[1], atol=1e-6)


@pytest.mark.parametrize("kind", ["BertForSequenceClassification", "RobertaForSequenceClassification"])
def test_pairs_are_scored_as_by_transformers(kind: str, tmp_path: Path) -> None:
    """The second text has its own segment, and RoBERTa's two separators."""
    tokenizer = save_tokenizer(tmp_path, is_roberta="Roberta" in kind)
    oracle = save_encoder(tmp_path, kind, **LABELS)
    with LLM(str(tmp_path), device="cpu") as llm:
        found = llm.score(TEXTS[0], TEXTS[1:4])
        probabilities = llm.score(TEXTS[0], TEXTS[1:4], apply_softmax=True)
        single = llm.encode(TEXTS[2])
    with torch.inference_mode():
        for text, scores, shares in zip(TEXTS[1:4], found, probabilities, strict=True):
            logits = oracle(**tokenizer(TEXTS[0], text, return_tensors="pt")).logits[0]
            np.testing.assert_allclose(scores, logits, atol=1e-5)
            np.testing.assert_allclose(shares, logits.softmax(0), atol=1e-5)
        np.testing.assert_allclose(single[0], oracle(**tokenizer(TEXTS[2], return_tensors="pt")).logits[0], atol=1e-5)


def test_dimensions_cut_and_scale(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    save_encoder(tmp_path, "BertModel")
    with LLM(str(tmp_path), device="cpu") as llm:
        whole, part = llm.encode(TEXTS[0]), llm.encode(TEXTS[0], dimensions=5)
        np.testing.assert_allclose(part[0], whole[0, :5] / np.linalg.norm(whole[0, :5]), atol=1e-6)
        with pytest.raises(InvalidRequest, match="from 1 to 32"):
            llm.encode(TEXTS[0], dimensions=33)
        with pytest.raises(InvalidRequest, match="does not make text"):
            llm.generate(TEXTS[0])


def test_the_limits_are_the_checkpoints(tmp_path: Path) -> None:
    save_encoder(tmp_path, "RobertaModel", pad_token_id=1)
    config = read_encoder_config(tmp_path)
    assert (config.first_position, config.max_position) == (2, SIZES["max_position_embeddings"] - 2)
    assert config.pooling is PoolingKind.MEAN
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 20}')
    assert read_encoder_config(tmp_path).max_position == 20


@pytest.mark.parametrize(
    ("options", "message"),
    [({"hidden_act": "silu"}, "activation 'silu' is not supported"), ({"is_decoder": True}, "only encoders with absolute")],
)
def test_what_is_not_computed_is_refused(options: dict[str, object], message: str, tmp_path: Path) -> None:
    save_encoder(tmp_path, "BertModel", **options)
    with pytest.raises(WeightsError, match=message):
        read_encoder_config(tmp_path)


def test_options_that_cannot_work(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    save_encoder(tmp_path, "BertModel")
    with pytest.raises(ConfigError, match="no native kernels"):
        LLM(str(tmp_path), device="cpu", kernel_backend="native")


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    save_encoder(tmp_path, "BertModel")
    text = (tmp_path / "config.json").read_text().replace('"intermediate_size": 56', '"intermediate_size": 64')
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(WeightsError, match="has the shape"):
        LLM(str(tmp_path), device="cpu")
