"""Bodies that the OpenAPI page shows, one or two for each route, for the model that is served.

Data alone. Invariant: every one of them is accepted by its route (a test sends them all).
"""

from __future__ import annotations

from typing import Any

Examples = dict[str, dict[str, Any]]
"""By what it shows."""


def examples(model: str) -> dict[str, Examples]:
    """Examples by path."""
    hello = [{"role": "user", "content": "Name three trees."}]
    return {
        "/generate": {
            "one prompt": {"text": "The capital of France is", "sampling_params": {"temperature": 0, "max_new_tokens": 16}},
            "a batch with log-probabilities": {
                "text": ["One, two,", "Red, green,"],
                "sampling_params": {"temperature": 0.7, "top_p": 0.9, "max_new_tokens": 8, "stop": ["."]},
                "return_logprob": True,
                "top_logprobs_num": 2,
            },
        },
        "/open_session": {"a session": {"capacity_of_str_len": 400}},
        "/close_session": {"its end": {"session_id": "my-session"}},
        "/abort_request": {"by the beginning of its id": {"rid": "job-7"}},
        "/tokenize": {"a text": {"prompt": "Hello, world"}, "a chat": {"messages": hello}},
        "/detokenize": {"ids": {"tokens": [72, 105]}},
        "/v1/chat/completions": {
            "a chat": {"model": model, "messages": hello, "max_tokens": 32},
            "streamed, with usage": {
                "model": model,
                "messages": [{"role": "system", "content": "Be brief."}, *hello],
                "temperature": 0,
                "max_tokens": 32,
                "stream": True,
                "stream_options": {"include_usage": True},
            },
        },
        "/v1/completions": {
            "a text": {"model": model, "prompt": "The capital of France is", "max_tokens": 16, "temperature": 0},
            "log-probabilities of a prompt": {"model": model, "prompt": "Hello", "max_tokens": 1, "echo": True, "logprobs": 1},
        },
        "/v1/messages": {"a message": {"model": model, "max_tokens": 32, "messages": hello}},
        "/v1/messages/count_tokens": {"a message": {"model": model, "messages": hello}},
        "/api/chat": {"a chat": {"model": model, "messages": hello, "stream": False, "options": {"num_predict": 32}}},
        "/api/generate": {"a text": {"model": model, "prompt": "Why is the sky blue?", "options": {"num_predict": 32}}},
        "/api/show": {"the model": {"model": model}},
        **_vector_examples(model),
        **_agent_examples(model),
        "/pause_generation": {"keep what runs": {"mode": "retract"}},
        "/update_weights_from_disk": {"a checkpoint": {"model_path": "step-1000", "weight_version": "1000"}},
        "/release_memory_occupation": {"everything": {}},
        "/resume_memory_occupation": {"everything": {"tags": ["weights", "kv_cache"]}},
        "/start_profile": {"a hundred steps": {"num_steps": 100}},
    }


def _vector_examples(model: str) -> dict[str, Examples]:
    return {
        "/api/embed": {"two texts": {"model": model, "input": ["a pine", "an oak"]}},
        "/api/embeddings": {"a text": {"model": model, "prompt": "a pine"}},
        "/v1/embeddings": {
            "two texts": {"model": model, "input": ["a pine", "an oak"]},
            "base64": {"model": model, "input": "a pine", "encoding_format": "base64"},
        },
        "/v1/classify": {"two texts": {"model": model, "input": ["lovely", "dreadful"]}},
        "/encode": {"a text": {"text": "a pine"}},
        "/classify": {"a text": {"text": "lovely"}},
        "/v1/score": {
            "labels, for a model of text": {
                "query": "Is this a tree? ",
                "items": ["pine", "stone"],
                "label_token_ids": [1, 2],
                "apply_softmax": True,
            }
        },
        "/v1/rerank": {"two documents": {"query": "trees", "documents": ["a pine", "a stone"], "top_n": 1}},
        "/v1/ranking": {"two passages": {"query": {"text": "trees"}, "passages": [{"text": "a pine"}, {"text": "a stone"}]}},
    }


def _agent_examples(model: str) -> dict[str, Examples]:
    called = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    weather = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    return {
        "/v1/responses": {"an answer": {"model": model, "input": "Name three trees.", "max_output_tokens": 32}},
        "/v1/responses/input_tokens": {"a text": {"model": model, "input": "Name three trees."}},
        "/parse_function_call": {"a call": {"text": called, "tools": [weather], "tool_call_parser": "hermes"}},
        "/separate_reasoning": {"thought": {"text": "<think>Hm.</think>Oslo.", "reasoning_parser": "qwen3"}},
    }


RANGES: dict[str, dict[str, float]] = {
    "temperature": {"minimum": 0},
    "top_p": {"exclusiveMinimum": 0, "maximum": 1},
    "min_p": {"minimum": 0, "maximum": 1},
    "top_k": {"minimum": -1, "maximum": 2**31 - 1},
    "frequency_penalty": {"minimum": -2, "maximum": 2},
    "presence_penalty": {"minimum": -2, "maximum": 2},
    "repetition_penalty": {"exclusiveMinimum": 0, "maximum": 2},
    "repeat_penalty": {"exclusiveMinimum": 0, "maximum": 2},
    "n": {"minimum": 1, "maximum": 128},
    "max_new_tokens": {"minimum": 0, "maximum": 2**31 - 1},
    "min_new_tokens": {"minimum": 0, "maximum": 2**31 - 1},
    "max_tokens": {"minimum": 0, "maximum": 2**31 - 1},
    "top_logprobs_num": {"minimum": 0, "maximum": 128},
    "top_logprobs": {"minimum": 0, "maximum": 128},
}
"""What the numbers of a body may be, where its type does not say so (`core.sampling.validate` refuses the rest)."""

QUERIES: dict[str, tuple[dict[str, Any], ...]] = {
    "/flush_cache": (
        {
            "name": "timeout",
            "in": "query",
            "description": "Seconds to wait until nothing runs.",
            "schema": {"type": "number", "minimum": 0, "maximum": 3600, "default": 0},
        },
    ),
    "/v1/loads": (
        {
            "name": "include",
            "in": "query",
            "description": "Sections, separated by commas: all, core, memory, queues.",
            "schema": {"type": "string", "default": "all"},
        },
        {"name": "dp_rank", "in": "query", "schema": {"type": "integer", "enum": [0], "default": 0}},
        {"name": "format", "in": "query", "schema": {"type": "string", "enum": ["json", "prometheus"], "default": "json"}},
    ),
}
"""Parameters in the query of a path."""
