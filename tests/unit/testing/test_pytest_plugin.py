"""The plugin's fixtures in a test run of their own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
GUIDE = Path(__file__).parents[3] / "docs/guide/testing.md"
PLUGIN = ("-p", "sapwood.testing.plugin", "-p", "no:cacheprovider")


@pytest.fixture(autouse=True)
def no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of other packages take seconds to import."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def test_the_guides_example_runs(pytester: pytest.Pytester) -> None:
    examples = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL)
    pytester.makepyfile(test_guide=examples[0])
    pytester.runpytest_subprocess(*PLUGIN, timeout=100).assert_outcomes(passed=1)


def test_scripts_do_not_outlive_their_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import json, urllib.request

        def ask(server):
            body = json.dumps({"prompt": "p", "max_tokens": 99}).encode()
            with urllib.request.urlopen(f"{server.base_url}/completions", body) as reply:
                return json.load(reply)["choices"][0]["text"]

        def test_one(sapwood_null):
            sapwood_null.script.say("mine", "left over")
            assert ask(sapwood_null) == "mine"

        def test_two(sapwood_null):
            assert ask(sapwood_null) == "This is a scripted answer." and sapwood_null.script.prompts == ["p"]
        """
    )
    pytester.runpytest_subprocess(*PLUGIN, timeout=100).assert_outcomes(passed=2)


def test_a_real_server_for_the_whole_run(pytester: pytest.Pytester) -> None:
    """With the null model, so that this needs no weights; the second test finds the same server."""
    pytester.makeini(
        "[pytest]\nsapwood_model = smollm2-135m-instruct\nsapwood_options = --served-model-name mine --context-length 512"
    )
    pytester.makepyfile(
        """
        import json, urllib.request
        seen = []

        def test_one(sapwood_server):
            seen.append(sapwood_server.url)
            models = json.load(urllib.request.urlopen(f"{sapwood_server.base_url}/models"))
            assert models["data"][0]["id"] == "mine" and models["data"][0]["max_model_len"] == 512
            assert sapwood_server.model == "null"

        def test_two(sapwood_server):
            assert seen == [sapwood_server.url] and sapwood_server.log.exists()
        """
    )
    pytester.runpytest_subprocess(*PLUGIN, "--sapwood-model", "null", timeout=100).assert_outcomes(passed=2)


def test_a_server_that_cannot_start_says_why(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(sapwood_server): pass")
    result = pytester.runpytest_subprocess(*PLUGIN, "--sapwood-model", "no-such-model", timeout=100)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*no-such-model*"])


def test_an_unused_plugin_imports_nothing(pytester: pytest.Pytester) -> None:
    heavy = "torch", "numpy", "fastapi", "sapwood.server", "sapwood.worker"
    pytester.makepyfile(f"import sys\ndef test_it(): assert [name for name in {heavy} if name in sys.modules] == []")
    pytester.runpytest_subprocess(*PLUGIN, timeout=60).assert_outcomes(passed=1)
