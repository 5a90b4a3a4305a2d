"""What was typed: options gathered from the command line, the environment, a YAML file and keywords, checked one by one.

Only validation: no look at the machine, the model or other options. Invariant: a `RawOptions` holds only options that
someone set, each of its option's type and in range, with the source that set it; the nearest source won.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import yaml

from sapwood.config.options import GROUPS, OPTIONS, find, unknown_option
from sapwood.config.values import Option, coerce
from sapwood.errors import ConfigError

COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True)
class RawOptions:
    """Options that were set, by name, and where."""

    values: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    def get(self, name: str) -> Any:
        """The value that was set, or the table's default."""
        return self.values[name] if name in self.values else find(name, "table").default

    def over(self, other: RawOptions) -> RawOptions:
        """Both, where `self` wins."""
        return RawOptions({**other.values, **self.values}, {**other.sources, **self.sources})


class Parser(argparse.ArgumentParser):
    """An argument parser that raises ConfigError where argparse would exit, and never guesses abbreviations."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **settings)

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing usage and exiting."""
        raise ConfigError(f"{COMMAND_LINE}: {message}; --help lists what it takes")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse, but an unknown option is answered with the closest known one."""
        parsed, unknown = self.parse_known_args(args, namespace)
        for word in unknown:
            if word.startswith("--"):
                flag = word.partition("=")[0]
                raise unknown_option(flag, self._option_string_actions, COMMAND_LINE)
        if unknown:
            raise ConfigError(f"{COMMAND_LINE}: unexpected argument {unknown[0]!r}; --help lists what it takes")
        return parsed


def add_options(parser: Parser, groups: Sequence[str] = tuple(GROUPS)) -> None:
    """Teach `parser` the table's options of these groups, and --config."""
    parser.add_argument("--config", metavar="FILE", help="YAML file of options; flags and environment variables win over it.")
    for group in groups:
        section = parser.add_argument_group(group, GROUPS[group])
        for option in OPTIONS:
            if option.group == group:
                _add_flag(section, option)


def _add_flag(section: argparse._ArgumentGroup, option: Option) -> None:
    settings: dict[str, Any] = {"dest": option.name, "default": argparse.SUPPRESS, "help": _help(option)}
    if option.kind == "bool":
        settings["action"] = argparse.BooleanOptionalAction
    else:
        settings["metavar"] = "{" + ",".join(option.choices) + "}" if option.choices else option.kind.upper()
    section.add_argument(*option.flags, **settings)


def _help(option: Option) -> str:
    if option.refused or option.kind == "bool":
        return option.help.replace("%", "%%")
    default = option.automatic if option.default is None else option.default
    return f"{option.help} [{default}]".replace("%", "%%")


def from_command_line(parsed: argparse.Namespace) -> RawOptions:
    """The table's options among parsed arguments."""
    named = {o.name: getattr(parsed, o.name) for o in OPTIONS if hasattr(parsed, o.name)}
    return from_mapping(named, COMMAND_LINE)


def from_environment(environ: Mapping[str, str]) -> RawOptions:
    """Options set by SAPWOOD_<NAME>; other variables are left alone, an empty one counts as not set."""
    values = {o.name: coerce(o, environ[o.env], o.env) for o in OPTIONS if environ.get(o.env)}
    return RawOptions(values, dict.fromkeys(values, "environment"))


def from_file(path: str) -> RawOptions:
    """Options of a YAML file: one mapping whose keys are flag names without the leading dashes."""
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the options in {path}: {error}; give --config a readable YAML file") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if content is None:
        return RawOptions()
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ConfigError(f"{path} must hold one mapping, such as `port: 30000`")
    return from_mapping(content, path)


def from_mapping(named: Mapping[str, Any], source: str) -> RawOptions:
    """Options by name or alias; None counts as not set. Raises ConfigError for an unknown, illegal or doubled one."""
    values: dict[str, Any] = {}
    for name, value in named.items():
        option = find(name, source)
        if option.name in values:
            raise ConfigError(f"{source}: {option.flags[0]} is set twice; keep one spelling", param=option.name)
        if value is not None:
            values[option.name] = coerce(option, value, source)
    return RawOptions(values, dict.fromkeys(values, source))


def gather(parsed: argparse.Namespace, environ: Mapping[str, str]) -> RawOptions:
    """Command line over environment over the file of --config."""
    chosen = from_command_line(parsed).over(from_environment(environ))
    return chosen.over(from_file(parsed.config)) if parsed.config else chosen
