"""Role marks read off templates, transcripts, speculation, settings."""

from __future__ import annotations

from typing import Any

import pytest
from langkit import ScriptedBackend

import sapwood.lang as sgl
from sapwood.errors import InvalidRequest
from sapwood.lang.roles import NAMED_MARKS, Render, read_marks
from sapwood.lang.settings import GenOptions, GenSettings, gen_settings
from sapwood.lang.transcript import Transcript
from sapwood.tokenizer.byte_vocabulary import byte_tokenizer
from sapwood.tokenizer.chat import ChatOptions, ChatTemplate

CHATML = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nDefault.<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GEMMA = (
    "<bos>{% set first = '' %}{% if messages[0].role == 'system' %}{% set first = messages[0].content + '\n\n' %}"
    "{% set messages = messages[1:] %}{% endif %}{% for message in messages %}<start_of_turn>"
    "{{ 'model' if message.role == 'assistant' else message.role }}\n{{ first if loop.first else '' }}"
    "{{ message.content | trim }}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
LLAMA = (
    "<s>{% for message in messages %}{% if message.role == 'user' %}[INST] {{ message.content }} [/INST]"
    "{% elif message.role == 'assistant' %}{{ message.content }}</s>"
    "{% else %}{{ raise_exception('no system') }}{% endif %}{% endfor %}"
)
TALK = [("system", "Be kind."), ("user", "Hello?"), ("assistant", "Yes."), ("user", "Good.")]


def renderer(source: str) -> Render:
    template = ChatTemplate(source, byte_tokenizer())

    def render(messages: Any, is_asked: bool) -> str:
        return "".join(text for text, _ in template.render(messages, ChatOptions(add_generation_prompt=is_asked)))

    return render


def spoken(render: Render, talk: list[tuple[str, str]]) -> str:
    transcript = Transcript(read_marks(render))
    for role, content in talk:
        transcript.begin(role)
        transcript.say(content)
        transcript.end(role)
    transcript.begin("assistant")
    return transcript.text


@pytest.mark.parametrize("source", [CHATML, GEMMA, LLAMA])
@pytest.mark.parametrize("talk", [TALK, TALK[1:], TALK[:2], TALK[1:2]])
def test_marks_say_what_the_template_says(source: str, talk: list[tuple[str, str]]) -> None:
    if source == LLAMA and talk[0][0] == "system":
        assert spoken(renderer(source), talk).startswith("<s>[INST] Be kind.\n\nHello? [/INST]")
        return
    messages = [{"role": role, "content": content} for role, content in talk]
    expected = renderer(source)(messages, True)
    assert spoken(renderer(source), talk).rstrip() == expected.rstrip()


def test_a_template_that_drops_messages_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="leaves messages out"):
        read_marks(lambda messages, is_asked: "nothing")


def test_runs_of_one_kind_are_joined_and_ids_stay_apart() -> None:
    transcript = Transcript(NAMED_MARKS["chatml"])
    transcript.say("a")
    transcript.say("b")
    transcript.say("c", (1, 2))
    transcript.say("d")
    transcript.begin("user")
    transcript.say("e")
    transcript.say("f")
    assert [(run.text, run.is_special, run.ids) for run in transcript.prompt().merged()] == [
        ("ab", True, ()),
        ("c", False, (1, 2)),
        ("d<|im_start|>user\n", True, ()),
        ("ef", False, ()),
    ]
    assert transcript.prompt().partial == "ef"
    other = transcript.copy()
    other.say("g")
    assert transcript.text + "g" == other.text


def test_settings_carry_every_keyword_of_gen() -> None:
    names = {"min_tokens": "min_new_tokens"}
    assert {names.get(name, name) for name in GenOptions.__annotations__} | {"max_new_tokens"} == set(
        GenSettings.__struct_fields__
    )
    settings = gen_settings({"max_tokens": 3, "stop": "x", "return_logprob": True})
    assert settings.sampling() == {"max_new_tokens": 3, "stop": "x"} and settings.reporting() == {"return_logprob": True}


CARD = "Ada\nBorn: 1815\nJob: writer\n"


@sgl.function(num_api_spec_tokens=64)
def card(s: Any) -> None:
    s += sgl.user("a card")
    s += sgl.assistant(
        "Name: " + sgl.gen("name", stop="\n") + "\nBorn: " + sgl.gen("born", stop="\n") + "\nJob: " + sgl.gen("job", stop="\n")
    )


def test_one_call_serves_several_generations() -> None:
    backend = ScriptedBackend(lambda prompt, settings: CARD)
    state = card.run(backend=backend)
    assert (state["name"], state["born"], state["job"]) == ("Ada", "1815", "writer")
    assert len(backend.calls) == 1
    assert backend.calls[0].settings.max_new_tokens == 64 and backend.calls[0].settings.stop is None
    assert state.text().endswith("Name: Ada\nBorn: 1815\nJob: writer\n")


def test_a_wrong_guess_costs_another_call_and_nothing_else() -> None:
    def say(prompt: Any, settings: Any) -> str:
        return "1815\nJob: writer\n" if prompt.text.endswith("Born: ") else "Ada\nAge: 36\n"

    backend = ScriptedBackend(say)
    state = card.run(backend=backend)
    assert (state["name"], state["born"], state["job"]) == ("Ada", "1815", "writer")
    assert len(backend.calls) == 2


def test_a_model_of_messages_answers_in_its_own_words() -> None:
    backend = ScriptedBackend(lambda prompt, settings: "Here it is.\nName: Ada\nBorn: 1815\n Job: writer\n")
    backend.takes_messages = True
    state = card.run(backend=backend)
    assert (state["name"], state["born"], state["job"]) == ("Ada", "1815", "writer")
    assert len(backend.calls) == 1 and backend.calls[0].prompt.partial == ""

    backend.say = lambda prompt, settings: "no such thing"
    assert isinstance(card.run(backend=backend).error(), InvalidRequest)
