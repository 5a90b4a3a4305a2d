"""The table of options: names are unique, defaults are legal, every source speaks the same language."""

from __future__ import annotations

import pytest

from sapwood.config.options import BY_NAME, GROUPS, OPTIONS, find
from sapwood.config.values import Option, coerce
from sapwood.errors import ConfigError
from sapwood.scheduler.policy import policies


def test_names_flags_and_variables_are_unique() -> None:
    names = [name for option in OPTIONS for name in (option.name, *option.aliases)]
    assert len(names) == len(set(names)) == len(BY_NAME)
    assert len({option.env for option in OPTIONS}) == len(OPTIONS)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_is_complete_and_its_default_legal(option: Option) -> None:
    assert option.group in GROUPS
    assert option.help.endswith(".")
    if option.default is None:
        assert option.automatic, "None needs to say what happens"
    else:
        assert coerce(option, option.default, "default") == option.default


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("port", "8000", 8000),
        ("mem_fraction_static", "0.5", 0.5),
        ("kv_cache_bytes", "2GiB", 2 * 2**30),
        ("kv_cache_bytes", "1.5g", 1_500_000_000),
        ("kv_cache_bytes", "4096", 4096),
        ("dtype", "half", "float16"),
        ("dtype", "BFloat16", "bfloat16"),
        ("enable_metrics", "true", True),
        ("enable_metrics", "0", False),
        ("chunked_prefill_size", "-1", -1),
    ],
)
def test_text_becomes_a_value(name: str, text: str, value: object) -> None:
    assert coerce(find(name, "test"), text, "test") == value


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("port", "70000", "between 0 and 65535"),
        ("port", "http", "whole number"),
        ("port", True, "whole number"),
        ("port", 1.5, "whole number"),
        ("mem_fraction_static", "nan", "number"),
        ("mem_fraction_static", "1.0", "less than 1"),
        ("page_size", "24", "power of two"),
        ("chunked_prefill_size", "0", ">= 1"),
        ("kv_cache_bytes", "2 gallons", "a size"),
        ("schedule_mode", "decode-first", "mixed, prefill-first"),
        ("restart", "sometimes", "never, always"),
        ("trust_remote_code", "true", "never runs code"),
        ("model_path", " ", "must not be empty"),
        ("model_path", 3, "text"),
        ("startup_timeout_s", "1e999", "number"),
    ],
)
def test_illegal_values_name_the_source_the_flag_and_the_rule(name: str, value: object, rule: str) -> None:
    option = find(name, "test")
    with pytest.raises(ConfigError, match=rule) as caught:
        coerce(option, value, "SOMEWHERE")
    assert caught.value.message.startswith(f"SOMEWHERE: {option.flags[0]}")
    assert caught.value.param == name


def test_a_secret_is_never_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        coerce(find("api_key", "test"), 31337, "file")
    assert "31337" not in caught.value.message


def test_an_unknown_option_is_answered_with_the_closest() -> None:
    with pytest.raises(ConfigError, match="did you mean chunked_prefill_size"):
        find("chunk_prefill_size", "test")
    with pytest.raises(ConfigError, match=r"options\.md"):
        find("xyzzy", "test")


def test_choices_are_what_the_registries_hold() -> None:
    assert set(find("schedule_policy", "test").choices) == set(policies)
