"""The output of one response: items made from pieces, and the events that tell a stream of them.

Knows the dialect's items and events; runs nothing. Invariant: events number from 0 without gaps, an item's events lie between its
added and its done, and the items are the same whether anybody listens or not.
"""

from __future__ import annotations

import uuid
from typing import Any

from sapwood.parsing.pieces import CallArguments, CallStart, Content, Piece, Reasoning

Event = dict[str, Any]


class OutputWriter:
    """Takes the pieces of one answer."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._num_events = 0
        self._text = ""
        self._is_open = False

    def event(self, kind: str, **fields: Any) -> Event:
        """The next event."""
        self._num_events += 1
        return {"type": kind, "sequence_number": self._num_events - 1, **fields}

    def add(self, piece: Piece) -> list[Event]:
        """The events for a piece."""
        match piece:
            case Content(text):
                started = [] if self._is_in("message") else self._start_text("message", "msg", {"role": "assistant"})
                more = self._delta("output_text", text, logprobs=[])
            case Reasoning(text):
                started = [] if self._is_in("reasoning") else self._start_text("reasoning", "rs", {"summary": []})
                more = self._delta("reasoning_text", text)
            case CallStart(_, id, name):
                item = {"id": _id("fc"), "type": "function_call", "status": "in_progress", "call_id": id, "name": name}
                return [*self.close(), *self._start({**item, "arguments": ""})]
            case CallArguments(_, text):
                self._text += text
                started, more = [], [self._about("response.function_call_arguments.delta", delta=text)]
        return [*started, *more]

    def close(self, status: str = "completed") -> list[Event]:
        """The item that is open ends."""
        if not self._is_open:
            return []
        self._is_open = False
        item, text = self.items[-1], self._text
        if item["type"] == "function_call":
            item = {**item, "arguments": text}
            events = [self._about("response.function_call_arguments.done", arguments=text, name=item["name"])]
        else:
            kind = "output_text" if item["type"] == "message" else "reasoning_text"
            part = _part(item["type"], text)
            item = {**item, "content": [part]}
            extra: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
            events = [self._about(f"response.{kind}.done", content_index=0, text=text, **extra)]
            events.append(self._about("response.content_part.done", content_index=0, part=part))
        self.items[-1] = {**item, "status": status}
        return [*events, self.event("response.output_item.done", output_index=len(self.items) - 1, item=self.items[-1])]

    def _is_in(self, kind: str) -> bool:
        return self._is_open and self.items[-1]["type"] == kind

    def _start_text(self, kind: str, prefix: str, fields: dict[str, Any]) -> list[Event]:
        events = self.close()
        events += self._start({"id": _id(prefix), "type": kind, "status": "in_progress", **fields, "content": []})
        return [*events, self._about("response.content_part.added", content_index=0, part=_part(kind, ""))]

    def _start(self, item: dict[str, Any]) -> list[Event]:
        self.items.append(item)
        self._text, self._is_open = "", True
        return [self.event("response.output_item.added", output_index=len(self.items) - 1, item=item)]

    def _delta(self, kind: str, text: str, **fields: Any) -> list[Event]:
        self._text += text
        return [self._about(f"response.{kind}.delta", content_index=0, delta=text, **fields)] if text else []

    def _about(self, kind: str, **fields: Any) -> Event:
        return self.event(kind, item_id=self.items[-1]["id"], output_index=len(self.items) - 1, **fields)


def _part(kind: str, text: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
