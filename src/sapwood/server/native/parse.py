"""What a text means, without running the model: its calls of tools, or its reasoning; SGLang's two routes.

Knows parsers by name. Invariant: a text is taken apart exactly as the same text of the model's would be.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from sapwood.config.options import BY_NAME
from sapwood.errors import ConfigError, InvalidRequest
from sapwood.parsing.formats import NONE, OutputFormat, find_format
from sapwood.parsing.pieces import parse
from sapwood.server.body import Decoder
from sapwood.server.context import ServerContext
from sapwood.server.native.schema import ParseCallFields, SeparateReasoningFields
from sapwood.server.sse import json_response
from sapwood.server.tooling import openai_tool_use

_call_fields: Decoder[ParseCallFields] = Decoder(ParseCallFields)
_reasoning_fields: Decoder[SeparateReasoningFields] = Decoder(SeparateReasoningFields)


def parse_routes(context: ServerContext) -> APIRouter:
    """The router of this family."""
    router = APIRouter(tags=["sglang"])
    output = context.model.output

    async def parse_function_call(request: Request) -> Response:
        fields = await context.body(request, _call_fields)
        form = OutputFormat(_named("tool_call_parser", fields.tool_call_parser) or output.tool_format, NONE)
        answer = parse(form.parser(openai_tool_use(fields.tools, None, None).tools), fields.text)
        calls = [
            {"tool_index": index, "name": call.name, "parameters": call.arguments} for index, call in enumerate(answer.calls)
        ]
        return json_response({"normal_text": answer.content, "calls": calls})

    async def separate_reasoning(request: Request) -> Response:
        fields = await context.body(request, _reasoning_fields)
        form = OutputFormat(NONE, _named("reasoning_parser", fields.reasoning_parser) or output.reasoning_format)
        answer = parse(form.parser({}), fields.text)
        return json_response({"reasoning_text": answer.reasoning, "text": answer.content})

    router.add_api_route("/parse_function_call", parse_function_call, methods=["POST"], summary="The calls of tools in a text")
    router.add_api_route("/separate_reasoning", separate_reasoning, methods=["POST"], summary="The reasoning in a text")
    return router


def _named(option: str, name: str | None) -> str | None:
    """The format that the start option of the same name knows under `name`."""
    if name is None:
        return None
    value = dict(BY_NAME[option].values or ()).get(name, name)
    try:
        if option == "tool_call_parser":
            return find_format(value, NONE, "", frozenset()).tool_format
        return find_format(NONE, value, "", frozenset()).reasoning_format
    except ConfigError as error:
        raise InvalidRequest(f"{option}: {error.message}", param=option) from None
