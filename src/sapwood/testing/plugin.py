"""pytest's fixtures: `sapwood_server`, a real model for the whole run, and `sapwood_null`, a server that says what a test wants.

Loaded by pytest in every environment that has Sapwood, so it imports nothing of it until a fixture is used. Invariant: a test
that uses neither pays nothing; scripts do not outlive their test.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sapwood.testing.scripted_server import ScriptedServer
    from sapwood.testing.server_process import ServerProcess

DEFAULT_MODEL = "smollm2-135m-instruct"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The plugin's options, on the command line and in pytest's configuration file."""
    group = parser.getgroup("sapwood")
    group.addoption("--sapwood-model", metavar="MODEL", help="the model of sapwood_server (also the ini option sapwood_model)")
    parser.addini("sapwood_model", "the model of sapwood_server", default=DEFAULT_MODEL)
    parser.addini("sapwood_options", "flags of `sapwood serve` for sapwood_server", type="args", default=[])


@pytest.fixture(scope="session")
def sapwood_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """`sapwood serve` with a real model on a free port, once for the whole run: `.url`, `.base_url`, `.model`, `.log`."""
    from sapwood.testing.server_process import ServerProcess

    config = request.config
    model = config.getoption("--sapwood-model") or config.getini("sapwood_model")
    with ServerProcess(model, tmp_path_factory.mktemp("sapwood"), config.getini("sapwood_options")) as server:
        yield server


@pytest.fixture(scope="session")
def _sapwood_scripted() -> Iterator[ScriptedServer]:
    from sapwood.testing.scripted_server import ScriptedServer

    with ScriptedServer() as server:
        yield server


@pytest.fixture
def sapwood_null(_sapwood_scripted: ScriptedServer) -> Iterator[ScriptedServer]:
    """A server without a model, whose `.script` says what it answers; also `.url`, `.base_url`, `.model`."""
    _sapwood_scripted.script.reset()
    yield _sapwood_scripted
    _sapwood_scripted.script.reset()
