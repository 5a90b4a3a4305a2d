"""A request head that came in several pieces was counted twice (once as bytes, once as headers) and refused below the limit."""

from __future__ import annotations

import asyncio
from unittest.mock import MagicMock

import pytest
import uvicorn
from fastapi import FastAPI
from uvicorn.server import ServerState

from sapwood.config.raw import from_mapping
from sapwood.config.resolve import HostFacts, resolve
from sapwood.server.protocol import protocol_options

SETTINGS = resolve(from_mapping({"model_path": "null"}, "test"), HostFacts(2, False)).server
HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n" + b"".join(b"a%d: %s\r\n" % (n, b"v" * 1000) for n in range(60))


@pytest.mark.parametrize("piece", [1, 999, 4096, 65536])
@pytest.mark.parametrize(("extra", "is_refused"), [(0, False), (6000, True)])
def test_a_head_counts_once_however_it_is_cut(piece: int, extra: int, is_refused: bool) -> None:
    async def answer() -> bool:
        config, transport = uvicorn.Config(FastAPI()), MagicMock(spec=asyncio.Transport)
        config.load()
        transport.is_closing.return_value = False
        connection = protocol_options(SETTINGS)["http"](config, ServerState(), {}, asyncio.get_running_loop())
        connection.connection_made(transport)
        head = HEAD + b"b: " + b"w" * extra + (b"\r\n\r\n" if is_refused else b"")
        for first in range(0, len(head), piece):
            connection.data_received(head[first : first + piece])
            if transport.close.called:
                break
        connection.connection_lost(None)
        return any(b" 431 " in call.args[0] for call in transport.write.call_args_list)

    assert asyncio.run(answer()) is is_refused
