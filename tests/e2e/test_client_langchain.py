"""LangChain's ChatOpenAI against a real model: words, tools and structured output, whole and streamed."""

from __future__ import annotations

from typing import Any

import pytest
from asking import CALLED, COLOURS, MAX_TOKENS, MODEL, TOOL, WEATHER
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field, SecretStr
from serving import RunningServer

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(300)]


class Person(BaseModel):
    """A person."""

    name: str
    age: int = Field(ge=0, le=150)


@pytest.fixture(scope="module")
def chat(coder_server: RunningServer) -> ChatOpenAI:
    url = f"{coder_server.url}/v1"
    return ChatOpenAI(model=MODEL, base_url=url, api_key=SecretStr("none"), temperature=0, max_completion_tokens=MAX_TOKENS)


def test_words(chat: ChatOpenAI) -> None:
    question = COLOURS[0]["content"]
    whole = chat.invoke(question)
    assert whole.content and whole.usage_metadata and whole.usage_metadata["output_tokens"] > 0
    assert "".join(str(chunk.content) for chunk in chat.stream(question)) == whole.content


def test_tools(chat: ChatOpenAI) -> None:
    with_tools = chat.bind_tools([TOOL])
    question = HumanMessage(WEATHER[0]["content"])
    whole = with_tools.invoke([question])
    joined: Any = None
    for chunk in with_tools.stream([question]):
        assert isinstance(chunk, AIMessageChunk)
        joined = chunk if joined is None else joined + chunk
    for message in (whole, joined):
        assert [(call["name"], call["args"]) for call in message.tool_calls] == [CALLED]
        assert message.response_metadata["finish_reason"] == "tool_calls"
    result = ToolMessage("sunny, 24 degrees", tool_call_id=whole.tool_calls[0]["id"])
    assert chat.invoke([question, whole, result]).content


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(chat: ChatOpenAI, method: Any) -> None:
    person = chat.with_structured_output(Person, method=method).invoke("Anna is 31 years old. Who is it?")
    assert isinstance(person, Person) and person.name == "Anna"
