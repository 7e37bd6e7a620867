"""Secrets in commands: values of variables and options that are named as secrets are, replaced by ***."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from loadgen_servers.launch.spec import Command

HIDDEN = "***"
_SECRET = re.compile(r"(keys?|token|secrets?|passwords?|passwd|credentials?)", re.IGNORECASE)


def without_secrets(command: Command) -> Command:
    """The command with the values of secret-looking names replaced, to be printed and stored."""
    environment = {name: HIDDEN if is_secret(name) else value for name, value in command.environment.items()}
    return replace(command, argv=tuple(_concealed(command.argv)), environment=environment)


def shown(command: Command) -> str:
    """The shell line that runs the command, environment first, secrets hidden."""
    safe = without_secrets(command)
    pairs = [_assignment(name, value) for name, value in safe.environment.items()]
    return " ".join([*pairs, shlex.join(safe.argv)])


def _assignment(name: str, value: str) -> str:
    """NAME=VALUE for a shell; a value put before the caller's own is shown as PATH=/venv/bin:"$PATH"."""
    inherited = os.pathsep + os.environ.get(name, "")
    if len(inherited) > 1 and value.endswith(inherited):
        return f'{name}={shlex.quote(value.removesuffix(inherited) + os.pathsep)}"${name}"'
    return f"{name}={shlex.quote(value)}"


def is_secret(name: str) -> bool:
    """Whether a variable or an option is named as secrets are: HF_TOKEN, --api-key; not --max-num-tokens."""
    plain = re.fullmatch(r"[\w.-]+", name) is not None
    return plain and any(_SECRET.fullmatch(word) for word in re.split(r"[_.-]", name))


def _concealed(words: Sequence[str]) -> Iterator[str]:
    hiding = False
    for word in words:
        if word.startswith("-"):
            hiding = "=" not in word and is_secret(word)
            yield _without_value(word)
        else:
            yield HIDDEN if hiding else _without_value(word)


def _without_value(word: str) -> str:
    """NAME=VALUE, --name=VALUE and --env=NAME=VALUE, their value hidden where the name is a secret's."""
    name, equals, value = word.partition("=")
    if not equals:
        return word
    return f"{name}={HIDDEN if is_secret(name) else _without_value(value)}"
