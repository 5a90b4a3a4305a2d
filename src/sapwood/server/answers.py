"""One call's answers taken apart: what is content, reasoning and calls of tools, streamed or whole.

Owns a parser for each sample; does not know a dialect. Invariant: the pieces of a stream join to what `whole` gives for the same
text, and are handed out once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from sapwood.core.constraint import Constraint
from sapwood.core.sampling import SamplingParams
from sapwood.errors import InvalidRequest
from sapwood.parsing.formats import OutputFormat
from sapwood.parsing.pieces import Answer, CallArguments, CallStart, Parser, Piece, Reasoning, join, merge
from sapwood.parsing.strict_formats import Rest
from sapwood.server.backend import Vocabulary
from sapwood.server.constraints import Wanted, want
from sapwood.server.record import RequestRecord, Update
from sapwood.server.tooling import NO_TOOLS, ToolUse


@dataclass(frozen=True, slots=True)
class Reading:
    """How the answers to one prompt are to be read. `prompt_end` is the end of the prompt's text.

    `separates`: reasoning is told from content; `streams_reasoning`: it is handed out while it comes, not in one piece; `wanted`
    is the form that the client wants the answer to have, if it makes no calls.
    """

    form: OutputFormat
    tool_use: ToolUse = NO_TOOLS
    prompt_end: str = ""
    separates: bool = True
    streams_reasoning: bool = True
    wanted: Constraint | None = None

    def params(self, params: SamplingParams) -> SamplingParams:
        """The parameters with which the text keeps the marks that the parser looks for."""
        if not self.form.needs_control_texts(bool(self.tool_use.functions), self.separates):
            return params
        return msgspec.structs.replace(params, skip_special_tokens=False)

    def bound(self) -> Wanted | None:
        """The form of an answer that must consist of calls, or may hold some whose arguments are bound."""
        if not self.tool_use.must_call:
            return self._bound_calls() if self.binds else None
        if self.wanted is not None:
            raise InvalidRequest(
                "tool_choice forces calls, which leave no room for another form; leave it out", param="tool_choice"
            )
        return want("tools", "json_schema", self.tool_use.call_schema)

    @property
    def binds(self) -> bool:
        """Whether calls that may be made are bound: where they are strict, or where there is no free text to find them in."""
        return self.tool_use.is_strict or (bool(self.tool_use.functions) and self._answer is not None)

    @property
    def _answer(self) -> dict[str, Any] | None:
        """The client's form of the answer, if that is JSON, for a structural tag."""
        if self.wanted is None or self.wanted.kind not in ("json_schema", "json_object"):
            return None
        schema = {"type": "object"} if self.wanted.kind == "json_object" else msgspec.json.decode(self.wanted.text)
        return {"type": "json_schema", "json_schema": schema}

    def _bound_calls(self) -> Wanted | None:
        """Free text, or the JSON that is wanted, in which every call has the form of its function's schema."""
        if self.wanted is not None and self._answer is None:
            message = "strict functions go with JSON as the form of the answer, and with no other form; leave out one of them"
            raise InvalidRequest(message, param="tools")
        tools = {use.name: use.parameters if use.is_strict else {"type": "object"} for use in self.tool_use.callable}
        form = self.form.strict_form(tools, Rest(self.tool_use.is_parallel, self._answer))
        if form is not None:
            return want("tools", "structural_tag", {"format": form})
        if self.tool_use.is_strict:
            message = "strict functions are not supported by a server that leaves calls in the text (--tool-call-parser none)"
            raise InvalidRequest(f"{message} unless tool_choice forces a call; leave out strict", param="tools")
        return None

    def parser(self) -> Parser:
        """A fresh parser."""
        use = self.tool_use
        forced, strict = use.must_call, self.binds
        return self.form.parser(use.tools, self.prompt_end, separates=self.separates, is_forced=forced, is_strict=strict)


PLAIN = Reading(OutputFormat())
"""All text is content."""


@dataclass(slots=True)
class _Sample:
    """One sample's parser, how many of its ids were found to be reasoning, and their bytes."""

    parser: Parser
    num_reasoning: int = 0
    num_counted_bytes: int = 0
    has_called: bool = False
    held: str = ""

    def hold_reasoning(self, pieces: list[Piece], is_last: bool) -> list[Piece]:
        """The pieces, with reasoning held back until something else comes."""
        given: list[Piece] = []
        for piece in pieces:
            if isinstance(piece, Reasoning):
                self.held += piece.text
            else:
                given += [Reasoning(self.held), piece] if self.held else [piece]
                self.held = ""
        if is_last and self.held:
            given.append(Reasoning(self.held))
            self.held = ""
        return given


class Answers:
    """The samples of one call."""

    def __init__(self, reading: Reading, vocabulary: Vocabulary) -> None:
        self._reading, self._vocabulary = reading, vocabulary
        self._samples: dict[int, _Sample] = {}

    def take(self, update: Update) -> list[Piece]:
        """The pieces that are new."""
        sample = self._sample(update.record)
        pieces = sample.parser.feed(update.text) if update.text else []
        if update.finish is not None:
            pieces += sample.parser.finish()
        if len(pieces) > 1:
            pieces = merge(pieces)
        if not self._reading.streams_reasoning:
            pieces = sample.hold_reasoning(pieces, update.finish is not None)
        if not self._reading.tool_use.is_parallel:
            pieces = [piece for piece in pieces if not isinstance(piece, (CallStart, CallArguments)) or piece.index == 0]
        sample.has_called = sample.has_called or any(isinstance(piece, CallStart) for piece in pieces)
        return pieces

    def whole(self, record: RequestRecord) -> Answer:
        """The whole answer of a record that has ended; its pieces are then handed out."""
        return join(self.take(record.everything()))

    def has_called(self, record: RequestRecord) -> bool:
        """Whether the answer so far calls a tool."""
        return self._sample(record).has_called

    def num_reasoning_tokens(self, record: RequestRecord) -> int:
        """How many of the record's ids so far make up its reasoning."""
        sample = self._sample(record)
        num_bytes = len(record.text[: sample.parser.num_reasoning_chars].encode()) if sample.parser.num_reasoning_chars else 0
        while sample.num_counted_bytes < num_bytes and sample.num_reasoning < len(record.token_ids):
            sample.num_counted_bytes += len(self._vocabulary.token_bytes(record.token_ids[sample.num_reasoning]))
            sample.num_reasoning += 1
        return sample.num_reasoning

    def _sample(self, record: RequestRecord) -> _Sample:
        if record.number not in self._samples:
            self._samples[record.number] = _Sample(self._reading.parser())
        return self._samples[record.number]
