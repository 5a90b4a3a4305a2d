"""How a generation wants its tokens chosen and reported, under SGLang's names, each of them optional.

Owns the names and how a program's own settings go before those of the run; the ranges are checked by whoever generates.
Invariant: None means "not said here".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

import msgspec

REPORTING = frozenset({"return_logprob", "logprob_start_len", "top_logprobs_num", "return_text_in_logprobs"})


class GenSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that `gen` and `run` may say about sampling, stopping, constraints and log-probabilities."""

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    stop_regex: str | list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    sampling_seed: int | None = None
    regex: str | None = None
    json_schema: str | None = None
    ebnf: str | None = None
    return_logprob: bool | None = None
    logprob_start_len: int | None = None
    top_logprobs_num: int | None = None
    return_text_in_logprobs: bool | None = None

    @property
    def is_constrained(self) -> bool:
        """Whether a grammar says what may be written."""
        return bool(self.regex or self.json_schema or self.ebnf)

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings, however many were given."""
        return tuple(as_list(self.stop))

    def given(self) -> dict[str, Any]:
        """What is said, by name."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}

    def over(self, defaults: GenSettings) -> GenSettings:
        """These settings, and where they say nothing, those of `defaults`."""
        return GenSettings(**{**defaults.given(), **self.given()})

    def sampling(self) -> dict[str, Any]:
        """What SGLang's `sampling_params` holds."""
        return {name: value for name, value in self.given().items() if name not in REPORTING}

    def reporting(self) -> dict[str, Any]:
        """The fields beside `sampling_params`."""
        return {name: value for name, value in self.given().items() if name in REPORTING}


class GenOptions(TypedDict, total=False):
    """The keywords of `gen` beside name and max_tokens."""

    min_tokens: int | None
    n: int | None
    stop: str | list[str] | None
    stop_token_ids: list[int] | None
    stop_regex: str | list[str] | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    repetition_penalty: float | None
    ignore_eos: bool | None
    sampling_seed: int | None
    regex: str | None
    json_schema: str | None
    ebnf: str | None
    return_logprob: bool | None
    logprob_start_len: int | None
    top_logprobs_num: int | None
    return_text_in_logprobs: bool | None


_RENAMED = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens"}
RUN_NAMES = frozenset(GenSettings.__struct_fields__)


def gen_settings(options: Mapping[str, Any]) -> GenSettings:
    """The settings behind keywords of `gen`; raises TypeError for a name that there is not."""
    renamed = {_RENAMED.get(name, name): value for name, value in options.items()}
    unknown = sorted(renamed.keys() - RUN_NAMES)
    if unknown:
        raise TypeError(f"there is no option {unknown[0]!r}; there are: {', '.join(GenSettings.__struct_fields__)}")
    return GenSettings(**renamed)


def as_list(value: str | list[str] | None) -> list[str]:
    """One text, several or none as a list."""
    if value is None:
        return []
    return [value] if isinstance(value, str) else list(value)
