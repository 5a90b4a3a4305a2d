"""`sapwood run` and `chat` on the null model: answers on standard output, everything else on standard error."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

from sapwood import LLM, SamplingParams
from sapwood.cli.main import main

GREEDY = SamplingParams(temperature=0.0, max_new_tokens=12)
OPTIONS = ["--max-new-tokens", "12"]


def feed(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def answer(prompt: str) -> str:
    with LLM("null") as llm:
        text = llm.generate(prompt, GREEDY)[0].text
    assert text, "an empty answer would prove nothing"
    return text


def chat_answers(*turns: str) -> list[str]:
    """The answers to a conversation of these user turns."""
    history: list[dict[str, str]] = []
    with LLM("null") as llm:
        for turn in turns:
            history.append({"role": "user", "content": turn})
            history.append({"role": "assistant", "content": llm.chat(history, GREEDY)[0].text})
    return [message["content"] for message in history[1::2]]


def test_run_raw(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "null", "A forest", "--raw", *OPTIONS]) == 0
    assert capsys.readouterr().out == answer("A forest") + "\n"


def test_run_uses_the_chat_template(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--model", "null", "hi", *OPTIONS]) == 0
    assert capsys.readouterr().out == chat_answers("hi")[0] + "\n"


@pytest.mark.parametrize("words", [["null", "-"], ["--model", "null"], ["--model", "null", "-"]])
def test_run_reads_standard_input(words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    feed(monkeypatch, "A forest")
    assert main(["run", *words, "--raw", *OPTIONS]) == 0
    assert capsys.readouterr().out == answer("A forest") + "\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "run needs a prompt"),
        (["--model", "null", "a", "b", "c"], "put the prompt in quotes"),
        (["null", "x", "--temperature", "nan"], "temperature must be"),
        (["null", "x", "--port", "1"], "unknown option --port"),
        (["no-such-model", "x"], "there is no model 'no-such-model'"),
    ],
)
def test_mistakes(words: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    feed(monkeypatch, "")
    assert main(["run", *words]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_chat_keeps_the_conversation(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    feed(monkeypatch, "hi\n\nand then?\n")
    assert main(["chat", "null", *OPTIONS]) == 0
    assert capsys.readouterr().out == "".join(text + "\n" for text in chat_answers("hi", "and then?"))


def test_chat_reset_and_exit(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    feed(monkeypatch, "hi\n/reset\nhi\n/exit\nnever read\n")
    assert main(["chat", "null", *OPTIONS]) == 0
    assert capsys.readouterr().out == f"{chat_answers('hi')[0]}\n" * 2


def test_chat_survives_a_turn_that_is_too_long(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    feed(monkeypatch, f"{'long ' * 100}\nhi\n")
    assert main(["chat", "null", "--context-length", "128", *OPTIONS]) == 0
    captured = capsys.readouterr()
    assert "error: prompt has" in captured.err
    assert captured.out == chat_answers("hi")[0] + "\n"


def test_a_system_message_leads(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    feed(monkeypatch, "hi\n")
    assert main(["chat", "null", "--system", "Be brief.", *OPTIONS]) == 0
    assert capsys.readouterr().out != chat_answers("hi")[0] + "\n"


def test_a_configuration_file_of_the_server_serves_here_too(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path_factory.mktemp("options") / "options.yaml"
    file.write_text("model-path: null-is-not-this\nport: 30001\ncontext-length: 64\n")
    assert main(["run", "null", "A forest", "--raw", "--config", str(file), *OPTIONS]) == 0
    assert capsys.readouterr().out == answer("A forest") + "\n"


def test_standard_output_is_the_answer_and_nothing_else() -> None:
    command = [sys.executable, "-m", "sapwood.cli.main", "run", "null", "A forest", "--raw", "--verbose", *OPTIONS]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=True)
    assert done.stdout == answer("A forest") + "\n"
