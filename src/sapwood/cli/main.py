"""Entry point of `sapwood`: finds the command, parses its arguments, turns errors into one line and an exit code.

Knows the commands by name only; a command's module is imported when it is asked for. Invariant: exit code 0 is success, 1 a
failure of ours, 2 a mistake that the user can mend, 130 Ctrl-C; an error of the tree never shows a traceback.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from sapwood.config.options import unknown_option
from sapwood.config.raw import Parser
from sapwood.errors import ConfigError, InvalidRequest, SapwoodError, WeightsError

COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("sapwood.cli.serve", "serve a model over HTTP"),
    "run": ("sapwood.cli.run", "answer one prompt"),
    "chat": ("sapwood.cli.chat", "talk with a model"),
    "pull": ("sapwood.cli.pull", "fetch models of the catalog"),
    "models": ("sapwood.cli.models", "list the catalog and what has been fetched"),
    "tokenize": ("sapwood.cli.tokenize", "turn texts into token ids"),
    "simulate": ("sapwood.cli.simulate", "try policies and sizes on a trace, in virtual time"),
    "replay": ("sapwood.cli.replay", "repeat the decisions of a step log"),
    "bench": ("sapwood.cli.bench", "measure latency and throughput"),
    "doctor": ("sapwood.cli.doctor", "check whether this machine is ready"),
    "version": ("sapwood.cli.version", "print the version"),
}
MENDABLE = (ConfigError, InvalidRequest, WeightsError)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command named by the first word; returns the exit code."""
    name, *rest = (sys.argv[1:] if words is None else words) or [""]
    if name in ("-h", "--help", "help", ""):
        print(overview(), end="")
        return 0 if name else 2
    try:
        return _run("version" if name == "--version" else name, rest)
    except SapwoodError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 2 if isinstance(error, MENDABLE) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read our output has seen enough; the interpreter's own flush must not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def overview() -> str:
    """The help page of `sapwood` itself."""
    rows = "".join(f"  {name:<10} {summary}\n" for name, (_, summary) in COMMANDS.items())
    return f"usage: sapwood COMMAND [options]\n\n{rows}\n`sapwood COMMAND --help` lists a command's options.\n"


def _run(name: str, words: Sequence[str]) -> int:
    if name not in COMMANDS:
        raise unknown_option(name, COMMANDS, "command line") if name.startswith("-") else _unknown_command(name)
    module_name, summary = COMMANDS[name]
    module = importlib.import_module(module_name)
    parser = Parser(prog=f"sapwood {name}", description=f"{module.__doc__.splitlines()[0] if module.__doc__ else summary}")
    module.add_arguments(parser)
    code: int = module.run(parser.parse_args(words))
    sys.stdout.flush()
    return code


def _unknown_command(name: str) -> ConfigError:
    return ConfigError(f"there is no command {name!r}; the commands are {', '.join(COMMANDS)}")


if __name__ == "__main__":
    sys.exit(main())
