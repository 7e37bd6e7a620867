"""Launch flags: how a server is started for the run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from loadgen.base.errors import UsageError
from loadgen.base.text import quote_value
from loadgen.settings.server_settings import LaunchRows, ServerKeys
from loadgen.settings.setting import make_option_struct

_LINES = ("--server-args", "--container-args")
_OF_A_START = ("python", "timeout_s", "dry_run")
_ROWS = (*ServerKeys.rows, *LaunchRows.rows)

if TYPE_CHECKING:

    class _Launch(LaunchRows, frozen=True):
        """What each of these rows is, for checkers."""

else:
    _Launch = make_option_struct("_Launch", LaunchRows)


class Launching(_Launch, frozen=True):
    """What is to be started, and how."""

    settings: dict[str, Any] = msgspec.field(default_factory=dict)  # of the server, those that were given

    @property
    def wanted(self) -> bool:
        """Whether a server is to be started at all."""
        return bool(self.engine or self.command or self.container)

    @property
    def name(self) -> str:
        """Its name in the report and in the log's directory."""
        return self.engine or ("container" if self.container else "command")


def joined(argv: Sequence[str]) -> list[str]:
    """The command line with each line of flags for others in one word with its own, so that none is ours.

    Flags with underscores are those with dashes, as vLLM's parser has them.
    """
    words, rest = [], iter(argv)
    for raw in rest:
        flag, equals, value = raw.partition("=")
        word = f"{flag.replace('_', '-')}{equals}{value}" if raw.startswith("--") else raw
        line = next(rest, None) if word in _LINES else None
        words.append(word if line is None else f"{word}={line}")
    return words


def launching(values: dict[str, Any]) -> Launching:
    """The launch that the flags' `values` ask for, which are taken out of them; raises UsageError."""
    values["server_args"] = _words("--server-args", values.get("server_args", ""))
    values["container_args"] = _words("--container-args", values.get("container_args", ""))
    values["server_env"] = _environment(values.get("server_env", []))
    own = {row.name: values.pop(row.dest) for row in _ROWS if row.dest in values}
    asked = {row.name: own.pop(row.name, None) for row in ServerKeys.rows}
    settings = {name: value for name, value in asked.items() if value not in (None, (), {})}
    launch = Launching(settings=settings, **own)
    _check(launch)
    return launch


def _check(launch: Launching) -> None:
    if launch.command is not None and launch.engine:
        raise UsageError("--launch-command is the whole command: leave out --launch")
    if not 0 < launch.timeout_s < 1e9:
        raise UsageError(f"--launch-timeout-sec {launch.timeout_s:g}: give seconds, more than 0")
    if launch.container is None and (launch.container_engine or launch.container_args):
        raise UsageError("--container-engine and --container-args go with --launch-container")
    if launch.wanted:
        return
    needless = [row.option for row in ServerKeys.rows if row.name in launch.settings]
    own = [row for row in LaunchRows.rows if row.name in _OF_A_START]
    needless += [row.option for row in own if getattr(launch, row.name) != row.default]
    if needless:
        raise UsageError(
            f"{needless[0]} applies to a server that loadgen starts: "
            "add --launch, --launch-command or -container"
        )


def _words(flag: str, line: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(line))
    except ValueError as error:
        raise UsageError(f"{flag} {quote_value(line)}: {str(error).lower()}") from None


def _environment(pairs: list[str]) -> dict[str, str]:
    environment = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"--server-env {quote_value(name)}: write NAME=VALUE")
        environment[name] = value
    return environment
