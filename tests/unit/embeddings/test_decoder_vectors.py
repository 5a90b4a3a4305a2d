"""Decoders that are served for vectors: last and mean pooling, and classification heads, as transformers computes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tiny_encoders import SIZES, TEXTS, cosine, save_tokenizer

from sapwood import LLM
from sapwood.errors import ConfigError, InvalidRequest

OPTIONS: dict[str, Any] = {**SIZES, "num_key_value_heads": 2, "tie_word_embeddings": False, "bos_token_id": 2, "eos_token_id": 3}


def save_decoder(folder: Path, kind: str, **options: Any) -> Any:
    """A random decoder of class transformers.`kind`, saved in `folder`."""
    family = kind.removesuffix("Model").removesuffix("ForSequenceClassification").removesuffix("ForCausalLM")
    torch.manual_seed(5)
    model = getattr(transformers, kind)(getattr(transformers, f"{family}Config")(**{**OPTIONS, **options})).eval().float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                parameter.normal_(0.0, 0.3 if "embed" in name else parameter.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("kind", ["LlamaModel", "Qwen3Model", "Qwen2ForCausalLM"])
@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_pooled_rows_are_those_of_transformers(kind: str, pooling: str, tmp_path: Path) -> None:
    """In chunks of seven tokens, beside each other, and a second time with a cache that may hold the beginning."""
    tokenizer = save_tokenizer(tmp_path)
    oracle = save_decoder(tmp_path, kind)
    with LLM(str(tmp_path), device="cpu", is_embedding=True, pooling=pooling, chunked_prefill_size=7, page_size=4) as llm:
        found = llm.encode(TEXTS)
        again = llm.encode(TEXTS)
    base = getattr(oracle, "model", oracle)
    for text, vector in zip(TEXTS, found, strict=True):
        with torch.inference_mode():
            rows = base(tokenizer(text, return_tensors="pt").input_ids).last_hidden_state[0]
        expected = rows[-1] if pooling == "last" else rows.mean(dim=0)
        assert cosine(vector, expected) > 1 - 1e-5
    np.testing.assert_allclose(found, again, atol=1e-5)


@pytest.mark.parametrize("kind", ["LlamaForSequenceClassification", "Qwen2ForSequenceClassification"])
def test_classification_heads(kind: str, tmp_path: Path) -> None:
    tokenizer = save_tokenizer(tmp_path)
    oracle = save_decoder(tmp_path, kind, num_labels=3)
    with LLM(str(tmp_path), device="cpu") as llm:
        found = llm.encode(TEXTS)
        with pytest.raises(InvalidRequest, match="does not make text"):
            llm.generate("a")
    for text, scores in zip(TEXTS, found, strict=True):
        with torch.inference_mode():
            expected = oracle(tokenizer(text, return_tensors="pt").input_ids).logits[0]
        np.testing.assert_allclose(scores, expected, atol=1e-4)


def test_a_model_of_text_is_asked_for_vectors_only_on_purpose(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    oracle = save_decoder(tmp_path, "LlamaForCausalLM")
    with LLM(str(tmp_path), device="cpu") as llm:
        with pytest.raises(InvalidRequest, match="--is-embedding"):
            llm.encode("a")
        labels = [7, 9, 20]
        (scores,) = llm.score("the sun ", ["is warm"], labels)
        (shares,) = llm.score("the sun ", ["is warm"], labels, apply_softmax=True)
        ids = llm._prompts.ids("the sun is warm", 0)
    with torch.inference_mode():
        logits = oracle(torch.tensor([ids])).logits[0, -1]
    np.testing.assert_allclose(scores, logits.softmax(0)[labels], atol=1e-3)
    np.testing.assert_allclose(shares, logits[labels].softmax(0), atol=1e-3)


def test_the_first_row_of_a_decoder_has_seen_only_itself(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    save_decoder(tmp_path, "LlamaForCausalLM")
    with pytest.raises(ConfigError, match="take last or mean"):
        LLM(str(tmp_path), device="cpu", is_embedding=True, pooling="cls")
