"""Keys: the flags of `loadgen bench` as keys of a table, and back into a command line."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from loadgen.base.errors import UsageError
from loadgen.base.parsing import suggest_name
from loadgen.base.secrecy import HIDDEN, Secrets
from loadgen.run.options import TABLE
from loadgen.settings.setting import OF_A_PROFILE, Makes
from loadgen.settings.table import profile_keys

# Why flags of `loadgen bench` are no keys of a campaign's tables.
_NOT_HERE = {
    "help": "cannot be used in a campaign",
    **dict.fromkeys(profile_keys(*(set(Makes) - {Makes.REQUEST})), OF_A_PROFILE),
    **{row.dest: row.campaign for row in TABLE if row.campaign},
}
_PATHS = tuple(row.dest for row in TABLE if row.path)
_MERGED = ("server_env", "header")  # tables of which a checkpoint gives some more
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
Flags = Mapping[str, Any]


def laid_over(server: Flags, checkpoint: Flags) -> dict[str, Any]:
    """A server's flags with a checkpoint's over them; variables and headers one by one."""
    merged = {**server, **checkpoint}
    for key in _MERGED:
        tables = [flags[key] for flags in (server, checkpoint) if isinstance(flags.get(key), dict)]
        if len(tables) == 2:
            merged[key] = {**tables[0], **tables[1]}
    return merged


class Variables(msgspec.Struct):
    """Variables of the environment that a file asks for: which it may read, and which are missing."""

    reads: Callable[[str], bool]
    missing: set[str] = msgspec.field(default_factory=set)  # not set
    barred: set[str] = msgspec.field(default_factory=set)  # not to be read by this file

    def value(self, match: re.Match[str]) -> str:
        """What stands in the place of ${VARIABLE} or ${VARIABLE:-default}."""
        name, default = match[1], match[2]
        set_value = os.environ.get(name)
        if set_value and not self.reads(name):
            self.barred.add(name)
            return match[0]
        value = set_value or default
        if value is None:
            self.missing.add(name)
        return match[0] if value is None else value


def filled(flags: Flags, variables: Variables) -> dict[str, Any]:
    """The flags with ${VARIABLE} and ${VARIABLE:-default} from the environment, and ~ in paths.

    A variable that is not set, or may not be read, stays as it is written, and is noted.
    """
    flags_filled: dict[str, Any] = _filled(dict(flags), variables)
    for key in _PATHS:
        if isinstance(flags_filled.get(key), str):
            flags_filled[key] = os.path.expanduser(flags_filled[key])
    return flags_filled


def _filled(value: Any, variables: Variables) -> Any:
    if isinstance(value, dict):
        return {key: _filled(item, variables) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, variables) for item in value]
    return _VARIABLE.sub(variables.value, value) if isinstance(value, str) else value


def words(flags: Flags, parser: argparse.ArgumentParser) -> list[str]:
    """The command line that these keys make; raises UsageError that names the key and the nearest known."""
    options = {
        option[2:].replace("-", "_"): (option, action)
        for action in parser._actions
        for option in action.option_strings
        if option.startswith("--")
    }
    own = [key for key, (_, action) in options.items() if action.dest not in _NOT_HERE]
    arguments: list[str] = []
    for key, value in flags.items():
        if key not in options:
            raise UsageError(f"unknown key {key!r}{suggest_name(key, own)}")
        option, action = options[key]
        if reason := _NOT_HERE.get(action.dest):
            raise UsageError(f"{key} {reason}")
        arguments += _word(option, action, value, f"{key} = {value!r}")
    return arguments


def _word(option: str, action: argparse.Action, value: Any, origin: str) -> Iterator[str]:
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise UsageError(f"{origin}: give true or false")
        switch = isinstance(action, argparse.BooleanOptionalAction)
        opposite = f"--{option[5:]}" if option.startswith("--no-") else f"--no-{option[2:]}"
        yield from [option] if value else [opposite] if switch else []
    elif isinstance(value, bool):
        raise UsageError(f"{origin}: give a value")
    elif action.nargs == "+":
        yield option
        yield from _several(value, origin)
    elif isinstance(action, argparse._AppendAction):
        yield from (f"{option}={item}" for item in _several(value, origin))
    elif isinstance(value, dict):
        yield f"{option}={json.dumps(value)}"
    elif isinstance(value, list):
        yield f"{option}={shlex.join(map(str, value))}"
    else:
        yield f"{option}={value}"


def _several(value: Any, origin: str) -> list[str]:
    if isinstance(value, dict):
        return [f"{name}={item}" for name, item in value.items()]
    items = value if isinstance(value, list) else [value]
    if not items or not all(isinstance(item, str) for item in items):
        raise UsageError(f"{origin}: give a table, or a list of strings")
    return items


def without_secrets(flags: Flags) -> dict[str, Any]:
    """The flags as they may be stored: no header's value, nothing that resembles a key."""
    shown: dict[str, Any] = Secrets.collect(tables=(flags,)).mask(dict(flags), names_too=True)
    if "header" in shown:
        pairs = flags["header"]
        names = list(pairs) if isinstance(pairs, dict) else [re.split("[=:]", str(pair))[0] for pair in pairs]
        shown["header"] = dict.fromkeys(names, HIDDEN)
    return shown
