"""The bodies of the OpenAI routes, as they come over the wire.

Types and JSON names only. A body is read as several groups of fields, each shared by the routes that have it. Invariant: a field
that is typed here is honoured, one in `OpenAIRefusals` is refused by name, and any other is ignored, as OpenAI clients expect.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from sapwood.server.body import make_refusals
from sapwood.server.native.schema import Ids, Int32, Int64, Seconds

Text = Annotated[str, msgspec.Meta(max_length=512)]


class StreamOptions(msgspec.Struct, kw_only=True):
    """`stream_options`: a last chunk with the usage; the usage in every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class CallFields(msgspec.Struct, kw_only=True):
    """What any call has: whom it asks, how it wants the answer, and SGLang's names for caching and order."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    rid: str | list[str] | None = None
    priority: Int32 | None = None
    routing_key: Text | None = None
    queue_timeout_s: Seconds | None = None
    timeout_s: Seconds | None = None
    cache_salt: Text | None = None
    extra_key: Text | None = None
    modalities: Any = None


class SamplingFields(msgspec.Struct, kw_only=True):
    """Sampling and stopping: OpenAI's fields, SGLang's extras, and what llama-server's clients call `repetition_penalty` and
    `max_tokens`. Null means the default; a limit of -1 means none, a `top_k` of 0 all."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: Int64 | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[Int64, float] | None = None
    n: Int64 | None = None
    best_of: Int64 | None = None
    seed: Int64 | None = None
    max_tokens: Int64 | None = None
    max_completion_tokens: Int64 | None = None
    min_tokens: Int64 | None = None
    stop: str | list[str] | None = None
    stop_token_ids: Ids | None = None
    stop_regex: str | list[str] | None = None
    no_stop_trim: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    repeat_penalty: float | None = None
    n_predict: Int64 | None = None


class OtherSamplers(msgspec.Struct, kw_only=True):
    """Samplers of llama-server that are not here; clients send them at the values at which they do nothing."""

    mirostat: Int64 | None = None
    typical_p: float | None = None
    tfs_z: float | None = None
    dynatemp_range: float | None = None
    xtc_probability: float | None = None
    dry_multiplier: float | None = None
    top_n_sigma: float | None = None


OFF = {
    "mirostat": (0,), "typical_p": (1.0,), "tfs_z": (1.0,), "dynatemp_range": (0.0,), "xtc_probability": (0.0,),
    "dry_multiplier": (0.0,), "top_n_sigma": (-1.0, 0.0),
}  # fmt: skip


class Part(msgspec.Struct, kw_only=True):
    """One part of a message's content; only text is supported (a refusal that is sent back is text too)."""

    type: str
    text: str | None = None
    refusal: str | None = None


class Message(msgspec.Struct, kw_only=True):
    """One chat message."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Part] | None = None
    name: Text | None = None
    tool_calls: list[Any] | None = None
    tool_call_id: Text | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class ChatFields(msgspec.Struct, kw_only=True):
    """What only chat completions have."""

    messages: list[Message]
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    separate_reasoning: bool | None = None
    stream_reasoning: bool | None = None
    chat_template: Text | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Int64 | None = None


class CompletionFields(msgspec.Struct, kw_only=True):
    """What only completions have. `prompt`: a text, a list of texts, ids, or a list of lists of ids.

    With a `suffix`, which only some models understand, the prompt is what is before the gap, and control tokens in it are text.
    """

    prompt: str | list[str | Int64 | Ids]
    suffix: str | None = None
    echo: bool | None = None
    logprobs: Int64 | None = None
    add_special_tokens: bool | None = None
    parse_special: bool | None = None


class TokenizeFields(msgspec.Struct, kw_only=True):
    """The body of `/tokenize`: a text, a list of texts (`prompt`, or `text` as SGLang calls it), or chat messages."""

    model: str | None = None
    prompt: str | list[str] | None = None
    text: str | list[str] | None = None
    messages: list[Message] | None = None
    tools: list[Any] | None = None
    reasoning_effort: str | None = None
    chat_template: Text | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    parse_special: bool | None = None


OpenAIRefusals = make_refusals(
    "OpenAIRefusals",
    (
        "functions", "function_call", "audio", "web_search_options", "guided_whitespace_pattern",
        "use_beam_search", "beam_width", "allowed_token_ids", "bad_words", "logits_processors", "logit_processors",
        "custom_logit_processor", "custom_params", "prompt_logprobs", "lora_path", "session_params", "return_hidden_states",
        "return_routed_experts", "input_ids", "truncate_prompt_tokens", "documents", "watermark",
        "bootstrap_room", "images",
    ),
)  # fmt: skip
