"""`Engine` on the null model: SGLang's keywords in, SGLang's dicts out, the same tokens as `LLM`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import sapwood.lang as sgl
from sapwood import Aborted, ConfigError, Engine, InvalidRequest, SamplingParams, Unavailable

GREEDY = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(model_path="null", log_level="error", random_seed=1, context_length=512) as engine:
        yield engine


def one(answer: Any) -> dict[str, Any]:
    assert isinstance(answer, dict)
    return answer


def text_of(engine: Engine, prompt: str, length: int = 12) -> str:
    params = SamplingParams(temperature=0.0, max_new_tokens=length, ignore_eos=True)
    return engine.llm.generate(prompt, params)[0].text


def assert_idle(engine: Engine) -> None:
    assert engine.llm.desk._open == {} and not engine.llm.desk._worker.has_work


def test_one_prompt_gives_a_dict_and_a_batch_a_list(engine: Engine) -> None:
    answer = one(engine.generate("The sea", GREEDY))
    assert answer["text"] == text_of(engine, "The sea") and len(answer["output_ids"]) == 12
    meta = answer["meta_info"]
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (7, 12)
    assert meta["finish_reason"] == {"type": "length", "length": 12}
    both = engine.generate(["The sea", "A forest"], [GREEDY, {**GREEDY, "max_new_tokens": 3}])
    assert [len(cast(Any, item)["output_ids"]) for item in both] == [12, 3]
    assert one(engine.generate(input_ids=list(b"The sea"), sampling_params=GREEDY))["text"] == answer["text"]
    assert len(cast(Any, engine.generate("x", {"n": 3, "max_new_tokens": 2}))) == 3


def test_log_probabilities_have_sglangs_shape(engine: Engine) -> None:
    answer = one(engine.generate("abc", GREEDY, return_logprob=True, logprob_start_len=0, top_logprobs_num=2))
    meta = answer["meta_info"]
    assert tuple(meta["input_token_logprobs"][0]) == (None, 97, None)
    assert len(meta["output_token_logprobs"]) == 12 and len(meta["output_top_logprobs"][0]) == 2


def test_streams_grow(engine: Engine) -> None:
    chunks = list(cast(Iterator[Any], engine.generate("The sea", GREEDY, stream=True)))
    texts = [chunk["text"] for chunk in chunks]
    assert texts[-1] == text_of(engine, "The sea") and all(b.startswith(a) for a, b in zip(texts, texts[1:], strict=False))
    assert chunks[-1]["meta_info"]["finish_reason"]["type"] == "length" and chunks[0]["meta_info"]["finish_reason"] is None
    batch = list(cast(Iterator[Any], engine.generate(["a", "b"], {**GREEDY, "n": 2}, stream=True)))
    assert {chunk["index"] for chunk in batch} == {0, 1, 2, 3}


def test_closing_a_stream_ends_the_request(engine: Engine) -> None:
    stream = cast(Any, engine.generate("The sea", {**GREEDY, "max_new_tokens": 400}, stream=True))
    next(stream)
    with pytest.raises(Unavailable):
        engine.flush_cache()
    stream.close()
    engine.generate("x", GREEDY)
    assert_idle(engine)
    engine.flush_cache()


def test_async_generation_whole_and_streamed(engine: Engine) -> None:
    async def main() -> None:
        whole = await asyncio.gather(*(engine.async_generate(f"p{n}", GREEDY) for n in range(4)))
        assert [cast(Any, answer)["text"] for answer in whole] == [text_of(engine, f"p{n}") for n in range(4)]
        chunks = [chunk async for chunk in cast(AsyncIterator[Any], await engine.async_generate("p0", GREEDY, stream=True))]
        assert chunks[-1]["text"] == cast(Any, whole[0])["text"] and len(chunks) > 4
        task = asyncio.create_task(engine.async_generate("p0", {**GREEDY, "max_new_tokens": 400}))
        await asyncio.sleep(0.002)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    engine.generate("x", GREEDY)
    assert_idle(engine)


def test_sessions_remember_and_pin(engine: Engine) -> None:
    session = engine.open_session(1000)
    first = one(engine.generate("Hello, ", GREEDY, session_params={"id": session, "rid": None}, rid="one"))
    turn = {"id": session, "rid": "one"}
    second = one(engine.generate("and ", GREEDY, session_params=turn, rid="two"))
    assert second["text"] == text_of(engine, "Hello, " + first["text"] + "and ")
    assert second["meta_info"]["cached_tokens"] >= 18
    with pytest.raises(InvalidRequest, match="no turn"):
        engine.generate("x", GREEDY, session_params={"id": session, "rid": "zero"})
    engine.close_session(session)
    with pytest.raises(InvalidRequest, match="does not exist"):
        engine.generate("x", GREEDY, session_params=turn)


@pytest.mark.parametrize(
    ("call", "param"),
    [
        (lambda e: e.generate(), "prompt"),
        (lambda e: e.generate("x", {"top_p": 3}), "top_p"),
        (lambda e: e.generate("x", {"n": -1}), "n"),
        (lambda e: e.generate("x", GREEDY, lora_path="adapter"), "lora_path"),
        (lambda e: e.generate("x", GREEDY, image_data="cat.png"), "image_data"),
        (lambda e: e.generate([]), "prompt"),
        (lambda e: e.load_lora_adapter("a", "b"), "lora_path"),
        (lambda e: e.unload_lora_adapter("a"), "lora_name"),
        (lambda e: e.encode("x"), None),
    ],
)
def test_mistakes_are_refused_by_name(engine: Engine, call: Any, param: str | None) -> None:
    with pytest.raises(InvalidRequest) as caught:
        call(engine)
    assert param is None or caught.value.param == param


def test_scores_are_those_of_the_llm(engine: Engine) -> None:
    assert engine.score("The sea", [" is", " was"], [97, 98]) == engine.llm.score("The sea", [" is", " was"], [97, 98])
    assert asyncio.run(engine.async_score("is", ["The sea "], label_token_ids=[97], item_first=True)) == engine.llm.score(
        "The sea ", ["is"], [97]
    )


def test_information_programs_and_the_end(engine: Engine) -> None:
    info = engine.get_server_info()
    assert info["model_path"] == "null" and info["context_length"] == 512
    assert engine.get_model_info()["has_chat_template"] is True

    @sgl.function
    def program(s: Any) -> None:
        s += "abc" + sgl.gen("x", max_tokens=4)

    assert program.run(backend=engine).error() is None
    with pytest.raises(ConfigError):
        Engine("null", no_such_option=1)
    short = sgl.Engine("null")
    ticket = short.llm.submit([[97]])
    short.llm.cancel(ticket)
    with pytest.raises(Aborted):
        ticket.future.result()
    short.shutdown()
    short.shutdown()


def test_constraints_are_honoured_and_checked(engine: Engine) -> None:
    answer = one(engine.generate("x", {"regex": "(yes|no)", "max_new_tokens": 8}))
    assert answer["text"] in ("yes", "no")
    with pytest.raises(InvalidRequest):
        engine.generate("x", {"json_schema": "{", "max_new_tokens": 8})


def test_memory_is_released_and_resumed(engine: Engine) -> None:
    before = text_of(engine, "The sea")
    stream = cast(Any, engine.generate("The sea", {**GREEDY, "max_new_tokens": 400}, stream=True))
    next(stream)
    with pytest.raises(Unavailable, match="requests run"):
        engine.release_memory_occupation()
    stream.close()
    engine.generate("x", GREEDY)
    engine.release_memory_occupation()
    with pytest.raises(InvalidRequest, match="released"):
        engine.release_memory_occupation()
    for ask in (engine.generate, engine.llm.generate):
        with pytest.raises(Unavailable, match="resume it first"):
            ask("The sea", None)
    engine.resume_memory_occupation(tags=["weights", "kv_cache"])
    assert text_of(engine, "The sea") == before
    with pytest.raises(InvalidRequest, match="not released"):
        engine.resume_memory_occupation()
    with pytest.raises(InvalidRequest, match="tags"):
        engine.release_memory_occupation(tags=["weights"])
    assert text_of(engine, "The sea") == before
    assert_idle(engine)


def test_steps_are_recorded(engine: Engine) -> None:
    engine.start_profile(num_steps=3)
    with pytest.raises(InvalidRequest, match="already"):
        engine.start_profile()
    engine.generate("The sea", GREEDY)
    file = Path(engine.stop_profile())
    steps = json.loads(file.read_text())["traceEvents"]
    file.unlink()
    assert sum(step["name"].startswith("step ") for step in steps) == 3
    with pytest.raises(InvalidRequest, match="no steps"):
        engine.stop_profile()
    with pytest.raises(InvalidRequest) as caught:
        engine.start_profile(output_dir="x")
    assert caught.value.param == "output_dir"


def test_weights_that_cannot_be_had_are_reported(engine: Engine, tmp_path: Path) -> None:
    before = text_of(engine, "The sea")
    is_done, message, num_paused = engine.update_weights_from_disk(str(tmp_path))
    assert (is_done, num_paused) == (False, 0) and "name a model folder" in message
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert engine.update_weights_from_disk(str(tmp_path))[:2] == (False, "the null model has no weights to change")
    with pytest.raises(InvalidRequest) as caught:
        engine.update_weights_from_disk(str(tmp_path), load_format="pt")
    assert caught.value.param == "load_format"
    assert text_of(engine, "The sea") == before


def test_a_prefix_stands_before_every_prompt(engine: Engine) -> None:
    ids = [list(b"a wave"), list(b"a ship")]
    together = cast(Any, engine.generate(input_ids=ids, prefix_ids=list(b"The sea: "), sampling_params=GREEDY))
    assert [answer["text"] for answer in together] == [text_of(engine, "The sea: a wave"), text_of(engine, "The sea: a ship")]
    assert [answer["meta_info"]["prompt_tokens"] for answer in together] == [15, 15]
    with pytest.raises(InvalidRequest) as caught:
        engine.generate("x", GREEDY, prefix_ids=[1])
    assert caught.value.param == "prefix_ids"
