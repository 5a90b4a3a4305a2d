"""A clock that is set forward or back changes nothing: whatever is decided or measured uses the monotonic clock."""

from __future__ import annotations

import ast

import source_tree

WALL_CLOCKS = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}

# module -> why it may tell the time of day: it is only shown.
SHOWN: dict[str, str] = {
    "sapwood.bench.machine": "the date of a measurement",
    "sapwood.server.ledger": "when a request was received, for the request log and its spans",
    "sapwood.server.native.loads": "when the gauges were read",
    "sapwood.server.ollama.call": "`created_at` of an answer",
    "sapwood.server.ollama.models": "since when a model is loaded",
    "sapwood.server.openai.call": "`created` of an answer",
    "sapwood.server.openai.embeddings": "`created` of an answer",
    "sapwood.server.openai.models": "`created` of a model",
    "sapwood.server.openai.responses": "`created_at` and `completed_at` of a response",
    "sapwood.tokenizer.chat_sandbox": "templates may show the date",
    "sapwood.worker.event_feed": "the time stamp of a message, as routers expect it",
}


def test_only_what_is_shown_comes_from_the_wall_clock() -> None:
    found = set()
    for module in source_tree.modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in WALL_CLOCKS:
                found.add(module.name)
    assert found == SHOWN.keys()
