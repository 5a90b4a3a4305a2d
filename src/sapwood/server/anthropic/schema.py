"""The bodies of the Anthropic routes, as they come over the wire, and the shapes of their answers.

Types and JSON names only. Invariant: a field that is typed here is honoured, one in `AnthropicRefusals` is refused by name, and
any other is ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from sapwood.server.body import make_refusals
from sapwood.server.native.schema import Int64


class Block(msgspec.Struct, kw_only=True):
    """One block of a content: text, a call of a tool or its result, or what was thought; other kinds are refused.

    Marks for caching are ignored: every prefix is cached.
    """

    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    tool_use_id: str | None = None
    content: Any = None
    is_error: bool | None = None
    thinking: str | None = None


class Thinking(msgspec.Struct, kw_only=True):
    """`thinking`: whether the model may think first. How long it thinks is bounded by `max_tokens` alone."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Int64 | None = None


class Tool(msgspec.Struct, kw_only=True):
    """A function that the model may call; tools that the provider runs itself are refused."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: Any = None
    strict: bool | None = None


class ToolChoice(msgspec.Struct, kw_only=True):
    """Whether the model must call a tool, and whether several at once."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class InputMessage(msgspec.Struct, kw_only=True):
    """One turn. An assistant's turn at the end is the beginning of the answer."""

    role: Literal["user", "assistant"]
    content: str | list[Block]


class OutputConfig(msgspec.Struct, kw_only=True):
    """`output_config`: the form of the answer, a JSON Schema. Other hints are ignored."""

    format: dict[str, Any] | None = None


class PromptFields(msgspec.Struct, kw_only=True):
    """What makes the prompt: all that `/v1/messages/count_tokens` reads."""

    model: str | None = None
    messages: list[InputMessage]
    system: str | list[Block] | None = None
    thinking: Thinking | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None


class AnswerFields(msgspec.Struct, kw_only=True):
    """What makes the answer; `max_tokens` gives way to the context's end. `output_format` is an older name of
    `output_config.format`; `metadata` and `context_management` (nothing is ever cleared from the context here) change nothing."""

    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int64 | None = None
    stream: bool | None = None
    metadata: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    output_config: OutputConfig | None = None
    output_format: dict[str, Any] | None = None


AnthropicRefusals = make_refusals("AnthropicRefusals", ("mcp_servers", "container"))


# ----------------------------------------------------------------------------------------------------- answers
class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts: the prompt is the sum of the three input counts (writing to the cache is never charged apart)."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int


class TextBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A block of the answer."""

    type: str = "text"
    text: str


class ThinkingBlock(msgspec.Struct, frozen=True, kw_only=True):
    """What was thought. The signature proves nothing here and is empty."""

    type: str = "thinking"
    thinking: str
    signature: str = ""


class ToolUseBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a tool."""

    type: str = "tool_use"
    id: str
    name: str
    input: dict[str, Any]


AnswerBlock = TextBlock | ThinkingBlock | ToolUseBlock


class AnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer, or its empty beginning in a stream."""

    id: str
    type: str = "message"
    role: str = "assistant"
    model: str
    content: list[AnswerBlock]
    stop_reason: str | None
    stop_sequence: str | None
    usage: Usage


class MessageStart(msgspec.Struct, frozen=True, kw_only=True):
    """The first event: the message without content."""

    type: str = "message_start"
    message: AnswerMessage


class BlockStart(msgspec.Struct, frozen=True, kw_only=True):
    """A block begins."""

    type: str = "content_block_start"
    index: int
    content_block: AnswerBlock


class TextDelta(msgspec.Struct, frozen=True, kw_only=True):
    """New text of a block."""

    type: str = "text_delta"
    text: str


class ThinkingDelta(msgspec.Struct, frozen=True, kw_only=True):
    """New thoughts of a block."""

    type: str = "thinking_delta"
    thinking: str


class InputDelta(msgspec.Struct, frozen=True, kw_only=True):
    """More of a call's input; joined the parts are its JSON."""

    type: str = "input_json_delta"
    partial_json: str


class BlockDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A block grows."""

    type: str = "content_block_delta"
    index: int
    delta: TextDelta | ThinkingDelta | InputDelta


class BlockStop(msgspec.Struct, frozen=True, kw_only=True):
    """A block is complete."""

    type: str = "content_block_stop"
    index: int


class StopDelta(msgspec.Struct, frozen=True, kw_only=True):
    """Why the answer ended."""

    stop_reason: str | None
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, frozen=True, kw_only=True):
    """The end of the message, with the final counts."""

    type: str = "message_delta"
    delta: StopDelta
    usage: Usage


class MessageStop(msgspec.Struct, frozen=True, kw_only=True):
    """The last event."""

    type: str = "message_stop"


class TokenCount(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/v1/messages/count_tokens`."""

    input_tokens: int


Event = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop
