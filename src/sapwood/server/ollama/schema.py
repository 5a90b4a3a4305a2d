"""The bodies of the Ollama routes, as they come over the wire, and the shapes of their answers.

Types and JSON names only. Invariant: a field that is typed here is honoured or says nothing about the answer, one in a refusals
struct is refused by name, and any other is ignored.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from sapwood.server.body import make_refusals
from sapwood.server.native.schema import Int64


class Options(msgspec.Struct, kw_only=True):
    """`options`: sampling and stopping. `num_ctx` and other hints on memory and threads are the server's own affair here."""

    temperature: float | None = None
    top_k: Int64 | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: Int64 | None = None
    num_predict: Int64 | None = None
    num_ctx: Int64 | None = None
    stop: str | list[str] | None = None
    repeat_penalty: float | None = None
    repeat_last_n: Int64 | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    typical_p: float | None = None
    tfs_z: float | None = None
    mirostat: Int64 | None = None


class CallFields(msgspec.Struct, kw_only=True):
    """What both routes have. `format` is "json" or a JSON Schema. The model stays loaded, whatever `keep_alive` says;
    streaming is the default."""

    model: str | None = None
    stream: bool | None = None
    options: Options | None = None
    keep_alive: float | str | None = None
    format: dict[str, Any] | str | None = None
    think: bool | Literal["low", "medium", "high"] | None = None


class ChatMessage(msgspec.Struct, kw_only=True):
    """One turn; `tool_name` is the tool whose result a turn of role tool is."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    images: list[Any] | None = None
    tool_calls: list[Any] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    thinking: str | None = None


class ChatFields(msgspec.Struct, kw_only=True):
    """What only chat has."""

    messages: list[ChatMessage] | None = None
    tools: list[Any] | None = None


class GenerateFields(msgspec.Struct, kw_only=True):
    """What only generate has. `raw` prompts go to the model as they are, `suffix` is what follows the text to be filled in."""

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    raw: bool | None = None


class ModelFields(msgspec.Struct, kw_only=True):
    """The body of `/api/show`; `name` is the older name of `model`."""

    model: str | None = None
    name: str | None = None


OllamaRefusals = make_refusals("OllamaRefusals", ("images", "template", "context", "logprobs", "top_logprobs"))


# ----------------------------------------------------------------------------------------------------- answers
class Details(msgspec.Struct, frozen=True, kw_only=True):
    """What kind of model it is; empty where the server does not know."""

    parent_model: str = ""
    format: str
    family: str = ""
    families: list[str] = []
    parameter_size: str = ""
    quantization_level: str = ""
