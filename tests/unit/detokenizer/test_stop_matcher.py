"""Stop strings and regexes over streamed text, against an oracle that looks at the whole text after every character."""

from __future__ import annotations

import re

import hypothesis.strategies as st
import pytest
import re2
from hypothesis import given, settings

from sapwood.detokenizer.regex_width import UNBOUNDED, max_width
from sapwood.detokenizer.stopping import WINDOW_CHARS, StopMatcher
from sapwood.errors import InvalidRequest

SHORT = st.text(alphabet="ab", min_size=1, max_size=4)
PATTERN_PARTS = st.sampled_from(
    ["a", "b", "ab", "[ab]", "a?", "(a|bb)", "b{1,2}", ".", "(?:ba){2}", r"\w", r"\b", "^", "$", r"\B"]
)
BOUNDED = st.lists(PATTERN_PARTS, min_size=1, max_size=4).map("".join)


def cut(text: str, borders: list[int]) -> list[str]:
    marks = [0, *sorted(border % (len(text) + 1) for border in borders), len(text)]
    return [text[start:end] for start, end in zip(marks, marks[1:], strict=False)]


def run(matcher: StopMatcher, chunks: list[str]) -> tuple[str, str | None, int]:
    """(delivered text, what matched, chunks taken)."""
    delivered = ""
    for index, chunk in enumerate(chunks):
        delivered += matcher.push(chunk)
        if matcher.matched is not None:
            return delivered, matcher.matched, index + 1
    return delivered + matcher.finish(), None, len(chunks)


def first_stop(text: str, stops: list[str]) -> tuple[int, int, str] | None:
    """(start, end, stop) of the stop whose last character comes first, the longest of those."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return end - len(longest), end, longest
    return None


@given(
    text=st.text(alphabet="ab", max_size=30),
    stops=st.lists(SHORT, min_size=1, max_size=4),
    borders=st.lists(st.integers(0, 100), max_size=8),
    keep=st.booleans(),
)
@settings(max_examples=400, deadline=None)
def test_stop_strings_agree_with_the_oracle_however_cut(text: str, stops: list[str], borders: list[int], keep: bool) -> None:
    chunks = cut(text, borders)
    delivered, matched, num_chunks = run(StopMatcher(stops, keep_match=keep), chunks)
    expected = first_stop(text, stops)
    if expected is None:
        assert (delivered, matched) == (text, None)
        return
    start, end, stop = expected
    assert (delivered, matched) == (text[: end if keep else start], stop)
    assert len("".join(chunks[: num_chunks - 1])) < end <= len("".join(chunks[:num_chunks]))


@given(text=st.text(alphabet="ab", max_size=30), stops=st.lists(SHORT, min_size=1, max_size=3))
@settings(max_examples=200, deadline=None)
def test_no_more_is_held_than_could_become_a_stop(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    delivered = ""
    for index, char in enumerate(text):
        delivered += matcher.push(char)
        if matcher.matched is not None:
            return
        held = text[len(delivered) : index + 1]
        beginnings = [length for stop in stops for length in range(len(stop)) if text[: index + 1].endswith(stop[:length])]
        assert len(held) == max(beginnings)


@given(text=st.text(alphabet="ab\n", max_size=30), pattern=BOUNDED, borders=st.lists(st.integers(0, 100), max_size=8))
@settings(max_examples=400, deadline=None)
def test_bounded_regexes_agree_with_a_search_of_the_whole_text(text: str, pattern: str, borders: list[int]) -> None:
    chunks = [chunk for chunk in cut(text, borders) if chunk]
    oracle = re2.compile(pattern)
    if oracle.search("") is not None:
        with pytest.raises(InvalidRequest, match="empty text"):
            StopMatcher(stop_regex=[pattern])
        return
    delivered, matched, num_chunks = run(StopMatcher(stop_regex=[pattern]), chunks)
    for count in range(1, len(chunks) + 1):
        found = oracle.search("".join(chunks[:count]))
        if found is not None:
            assert (delivered, matched, num_chunks) == (text[: found.start()], pattern, count)
            return
    assert (delivered, matched) == (text, None)


@given(pattern=BOUNDED, text=st.text(alphabet="ab\n", max_size=12))
@settings(max_examples=300, deadline=None)
def test_no_match_is_wider_than_the_bound(pattern: str, text: str) -> None:
    widths = [len(found[0]) for start in range(len(text)) for found in re.compile(pattern).finditer(text, start)]
    assert max(widths, default=0) <= max_width(pattern) < UNBOUNDED


@pytest.mark.parametrize(
    ("pattern", "width"),
    [
        ("", 0),
        ("abc", 3),
        ("a|bcd|ef", 3),
        ("(?i)ab{2,5}?", 6),
        (r"\n\n+", UNBOUNDED),
        ("x*", UNBOUNDED),
        ("a{3,}", UNBOUNDED),
        ("a{,3}", 5),
        (r"[^\]abc[:alpha:]]{4}", 4),
        ("[]a][^]a]", 2),
        (r"\x{1F600}\x41\p{Greek}\pN\012\.", 6),
        (r"\Qa.b*\E", 4),
        (r"\Qab", 2),
        (r"a\Q\E*", UNBOUNDED),
        (r"a(?i)*", UNBOUNDED),
        ("(?P<name>ab)?(?:c|d)(?i:ef)(?-s)", 5),
        (r"^\Aa\z$", 1),
        (r"\bend\b", 5),
        ("((a{9}){9}){9}", 729),
    ],
)
def test_widths(pattern: str, width: int) -> None:
    assert max_width(pattern) == width


def test_unbounded_regex_trims_what_was_not_delivered() -> None:
    matcher = StopMatcher(stop_regex=["ab+c"])
    assert [matcher.push(text) for text in ("xa", "bb", "b")] == ["xa", "bb", "b"]
    assert matcher.push("yab") == "yab"
    assert matcher.push("zabbcd") == "z"
    assert matcher.matched == "ab+c"
    keeping = StopMatcher(stop_regex=["ab+c"], keep_match=True)
    assert keeping.push("xabcd") == "xabc"


def test_bounded_regex_is_trimmed_exactly() -> None:
    matcher = StopMatcher(stop_regex=["E[NM]D"])
    assert [matcher.push(text) for text in ("so E", "N", "D!")] == ["so", " ", ""]
    assert matcher.matched == "E[NM]D"


def test_anchors_mean_the_whole_text() -> None:
    long = "x" * (2 * WINDOW_CHARS)
    matcher = StopMatcher(stop_regex=["^b", r"\bb"])
    assert matcher.push("a") + matcher.push(long) + matcher.push("b") + matcher.finish() == f"a{long}b"
    assert matcher.matched is None
    assert StopMatcher(stop_regex=["^b"]).push("b") == ""


def test_a_regex_against_a_string_in_the_same_text() -> None:
    matcher = StopMatcher(["world"], ["o, w"])
    assert matcher.push("hello, world") == "hell"
    assert matcher.matched == "o, w"
    tie = StopMatcher(["ab"], ["abc?"])
    assert (tie.push("xabc"), tie.matched) == ("x", "ab")


def test_long_stops_cost_linear_time() -> None:
    stop = "a" * 50_000 + "b"
    matcher = StopMatcher([stop])
    assert "".join(matcher.push("a" * 1000) for _ in range(100)) == "a" * 50_000
    assert matcher.push("b") == ""
    assert matcher.matched == stop


@pytest.mark.parametrize(
    "pattern", ["(", "(?=a)", r"(a)\1", "a{1001}", "((a{99}){99}){99}", "a*", "", "^", r"\pL{1000}", "\ud800"]
)
def test_regexes_that_cannot_be_used(pattern: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        StopMatcher(stop_regex=[pattern])
    assert caught.value.param == "stop_regex"
