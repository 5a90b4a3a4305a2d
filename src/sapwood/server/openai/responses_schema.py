"""The bodies of the responses routes, as they come over the wire.

Types and JSON names only. Invariant: a field that is typed here is honoured, one in `ResponseRefusals` is refused by name, and
any other is ignored, as OpenAI clients expect.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from sapwood.server.body import make_refusals
from sapwood.server.native.schema import Int32, Int64
from sapwood.server.openai.schema import Part, Text


class Item(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One item of the input: a message, reasoning that is sent back, a call of a function, or its output."""

    type: str = "message"
    id: str | None = None
    status: str | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[Part] | None = None
    call_id: Text | None = None
    name: Text | None = None
    arguments: str | None = None
    output: Any = None
    summary: list[Part] | None = None


class Tool(msgspec.Struct, kw_only=True):
    """A function that may be called; tools that the provider runs itself are refused."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: Any = None
    strict: bool | None = None


class ReasoningFields(msgspec.Struct, kw_only=True):
    """`reasoning`: how much to think. There are no summaries here."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: str | None = None


class TextFields(msgspec.Struct, kw_only=True):
    """`text`: what the text has to look like."""

    format: Any = None
    verbosity: str | None = None


class PromptFields(msgspec.Struct, kw_only=True):
    """What makes the prompt: all that `/v1/responses/input_tokens` reads."""

    model: str | None = None
    input: str | list[Item] | None = None
    instructions: str | None = None
    previous_response_id: Text | None = None
    tools: list[Tool] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningFields | None = None
    text: TextFields | None = None
    truncation: Literal["auto", "disabled"] | None = None
    max_output_tokens: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None


class ResponseFields(msgspec.Struct, kw_only=True):
    """What makes the answer, and what becomes of it."""

    temperature: float | None = None
    top_p: float | None = None
    seed: Int64 | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    store: bool | None = None
    background: bool | None = None
    metadata: dict[str, str] | None = None
    priority: Int32 | None = None
    include: list[str] | None = None
    user: str | None = None


ResponseRefusals = make_refusals(
    "ResponseRefusals", ("conversation", "prompt", "top_logprobs", "max_tool_calls", "context_management")
)
