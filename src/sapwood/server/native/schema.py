"""The bodies of SGLang's native routes, as they come over the wire.

Types and JSON names only; meaning is in the route files. Invariant: a field that is typed here is honoured, one in
`GenerateRefusals` or `SamplingRefusals` is refused by name, and any other is ignored.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from sapwood.core.constraint import ConstraintKind
from sapwood.server.body import make_refusals
from sapwood.server.sessions import SessionParams

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Ids = list[Int64]
Seconds = Annotated[float, msgspec.Meta(gt=0.0, le=1e9)]
Key = Annotated[str, msgspec.Meta(max_length=512)]


class SamplingFields(msgspec.Struct, kw_only=True):
    """`sampling_params`: null means the default, except for `max_new_tokens`, where it means the end of the context."""

    max_new_tokens: Int64 | None | UnsetType = UNSET
    min_new_tokens: Int64 | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int64 | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[Int64, float] | None = None
    n: Int64 | None = None
    sampling_seed: Int64 | None = None
    stop: str | list[str] | None = None
    stop_token_ids: Ids | None = None
    stop_regex: str | list[str] | None = None
    no_stop_trim: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    stream_interval: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None
    json_schema: dict[str, Any] | str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: dict[str, Any] | str | None = None
    beam_width: Any = None
    custom_params: Any = None
    watermark: Any = None


SAMPLING_REFUSALS = ("beam_width", "custom_params", "watermark")
CONSTRAINTS: tuple[ConstraintKind, ...] = ("json_schema", "regex", "ebnf", "structural_tag")


class GenerateFields(msgspec.Struct, kw_only=True):
    """The body of `/generate`. A list of texts, or a list of lists of ids, is a batch; other fields may then be lists too.
    `prefix_ids` stand before each of `input_ids`, and are sent once."""

    text: str | list[str] | None = None
    input_ids: list[Int64 | Ids] | None = None
    prefix_ids: Ids | None = None
    sampling_params: SamplingFields | list[SamplingFields] | None = None
    stream: bool | None = None
    rid: str | list[str] | None = None
    return_logprob: bool | list[bool] | None = None
    logprob_start_len: Int64 | list[Int64] | None = None
    top_logprobs_num: Int64 | list[Int64] | None = None
    token_ids_logprob: list[Int64 | Ids | None] | None = None
    return_text_in_logprobs: bool | None = None
    return_prompt_token_ids: bool | None = None
    parse_special: bool | None = None
    priority: Int32 | None = None
    routing_key: Key | None = None
    queue_timeout_s: Seconds | None = None
    timeout_s: Seconds | None = None
    cache_salt: str | list[str] | None = None
    extra_key: str | list[str] | None = None
    session_params: SessionParams | None = None


GenerateRefusals = make_refusals(
    "GenerateRefusals",
    (
        "input_embeds", "image_data", "video_data", "audio_data", "lora_path", "custom_logit_processor",
        "session_id", "return_hidden_states", "return_routed_experts", "return_indexer_topk", "return_sampling_mask",
        "return_entropy", "return_bytes", "return_flat_raw_top_logprobs", "return_flat_raw_output_top_logprobs",
        "positional_embed_overrides", "token_indices_to_pool", "multi_item_delimiter_indices", "bootstrap_host",
        "bootstrap_room", "disagg_prefill_dp_rank", "routed_dp_rank", "data_parallel_rank", "require_reasoning",
        "max_thinking_tokens", "watermark",
    ),
)  # fmt: skip


class AbortFields(msgspec.Struct, kw_only=True):
    """The body of `/abort_request`: every request whose id starts with `rid`, or all."""

    rid: str | None = None
    abort_all: bool | None = None
    abort_message: Annotated[str, msgspec.Meta(max_length=1000)] | None = None


class ParseCallFields(msgspec.Struct, kw_only=True):
    """The body of `/parse_function_call`: a text, the functions that it may call, and the parser (default: the model's)."""

    text: str
    tools: list[Any]
    tool_call_parser: Key | None = None


class SeparateReasoningFields(msgspec.Struct, kw_only=True):
    """The body of `/separate_reasoning`: a text, and the parser (default: the model's)."""

    text: str
    reasoning_parser: Key | None = None


class DetokenizeFields(msgspec.Struct, kw_only=True):
    """The body of `/detokenize`: ids, or a list of lists of them."""

    model: str | None = None
    tokens: list[Int64 | Ids] | None = None
    input_ids: list[Int64 | Ids] | None = None
    skip_special_tokens: bool | None = None
