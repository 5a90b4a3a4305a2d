"""A chat template is a file from somewhere: filters, methods and operators whose result is huge were carried out before anybody
looked at its size (gigabytes and a minute, some while compiling), and what Python could not compile was no ConfigError."""

from __future__ import annotations

import tracemalloc

import pytest

from sapwood.errors import ConfigError, InvalidRequest
from sapwood.tokenizer.byte_vocabulary import byte_tokenizer
from sapwood.tokenizer.chat import ChatRenderer

TOKENIZER = byte_tokenizer()
HUGE = 300_000_000


def render(source: str) -> str:
    return "".join(text for text, _ in ChatRenderer(TOKENIZER, source).render([{"role": "user", "content": "a\nb\nc"}]))


@pytest.mark.parametrize(
    "expression",
    [
        f"'%{HUGE}d' % 1",
        f"'%*d' % ({HUGE}, 1)",
        f"'a'|center({HUGE})",
        f"messages[0].role.ljust({HUGE})",
        f"'{{:>{HUGE}}}'.format(1)",
        f"'%{HUGE}d'|format(1)",
        "('a' * 16000000).replace('a', 'b' * 16000000)",
        "('a' * 16000000)|replace('a', 'b' * 16000000)",
        f"messages[0].content|indent({HUGE})",
        f"messages|tojson(indent={HUGE})",
        f"'a'|batch({HUGE}, 'x')|list",
        "range(9999)|join('b' * 16000000)",
        "'abc'.translate({97: 'b' * 16000000, 98: 'b' * 16000000})",
        f"7|round({HUGE})",
        "['a']|map('center', 9**9)|list",
    ],
)
def test_what_would_be_huge_is_not_built(expression: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match="characters"):
            render("{{ " + expression + " }}")
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "step", ["[ns.x, ns.x]", "{'a': ns.x, 'b': ns.x}", "ns.x ~ ns.x", "dict(a=ns.x, b=ns.x)", "(ns.x, ns.x)"]
)
def test_what_doubles_ends_early(step: str) -> None:
    """Else writing it out, or comparing it, would take for ever."""
    with pytest.raises(InvalidRequest, match="characters"):  # and not for want of time
        render("{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = " + step + " %}{% endfor %}{{ ns.x }}")


def test_captured_blocks_that_double_end_early() -> None:
    step = "{% set x %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = x %}"
    with pytest.raises(InvalidRequest, match="characters"):
        render("{% set ns = namespace(x='a') %}{% for i in range(60) %}" + step + "{% endfor %}")


@pytest.mark.parametrize(
    "source",
    [
        "{{" + "(" * 3000 + "1" + ")" * 3000 + "}}",
        "{% for x in messages %}" * 50 + "{% endfor %}" * 50,
        "{{ " + "-" * 5000 + "1 }}",
        "a" * (2 << 20),
    ],
)
def test_what_python_cannot_compile_is_a_config_error(source: str) -> None:
    with pytest.raises(ConfigError, match="--chat-template"):
        ChatRenderer(TOKENIZER, source)


def test_what_is_of_use_still_works() -> None:
    assert render(
        "{{ '%s-%03d' % ('a', 7) }} {{ 'x'.center(5) }} {{ messages|tojson(indent=2)|length > 20 }} {{ [1, 'a'] ~ 'b' }}"
    )
    assert render("{{ 'a' ~ 1 ~ none ~ missing }}{% for a, b in [(1, 2)] %}{{ (a, b)[1] }}{% endfor %}") == "a1None2"
