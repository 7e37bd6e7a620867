"""What is to be served and the command that serves it: the words every launcher shares."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

HIDDEN = "***"
_SECRET = re.compile(r"(keys?|token|secrets?|passwords?|passwd|credentials?)", re.IGNORECASE)
_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?(:[\w.-]+)?")
_CONFIGS = ("config.json", "params.json")  # the latter is Mistral's own


class LaunchError(Exception):
    """A server cannot be launched; the message is one line: what is wrong, what to do."""


class Order(msgspec.Struct, frozen=True):
    """What is to be served and how, in words every engine knows; None, "" or () is the engine's default.

    `memory_fraction` is of the device's memory, 0 to 1; `arguments` go last, so that they win;
    `environment` is added to the caller's; `python` is an interpreter or the directory of a venv.
    """

    model: str
    port: int
    host: str = "127.0.0.1"
    served_model_name: str | None = None
    context_len: int | None = None
    memory_fraction: float | None = None
    tensor_parallel: int | None = None
    quantization: str | None = None
    skip_tokenizer: bool = False
    prefix_caching: bool | None = None
    seed: int | None = None
    trace_directory: str | None = None
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = msgspec.field(default_factory=dict)
    python: str | None = None


class Command(msgspec.Struct, frozen=True):
    """What would be run; `environment` is added to the caller's.

    `end`, `kill` and `root_pid` are a container's: how it is stopped, removed, and asked for the pid
    of its first process; () for a plain process.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    end: tuple[str, ...] = ()
    kill: tuple[str, ...] = ()
    root_pid: tuple[str, ...] = ()


class Launcher(Protocol):
    """Knows how one engine is told what an order asks for."""

    def command(self, order: Order) -> Command:
        """The command for `order`; nothing is started. Raises LaunchError."""
        ...


def options(values: Mapping[str, object]) -> tuple[str, ...]:
    """The flags whose value is not None, each followed by its value."""
    return tuple(word for flag, value in values.items() if value is not None for word in (flag, str(value)))


def check_model(model: str) -> None:
    """Raises LaunchError unless `model` is a model's directory, a GGUF file, a URL or a name on a hub."""
    if not model:
        raise LaunchError("no model to serve: name a directory, or a model of the hub, with --model")
    if os.path.isdir(model):
        if not any(os.path.isfile(os.path.join(model, name)) for name in _CONFIGS):
            raise LaunchError(f"{model} holds no model: there is no config.json in it")
    elif os.path.isfile(model):
        if not model.endswith(".gguf"):
            raise LaunchError(f"{model} is a file: give the model's directory, or a .gguf file")
    elif "://" not in model and not _may_be_on_a_hub(model):
        raise LaunchError(f"{model} does not exist or cannot be read: give a directory with a config.json")


def _may_be_on_a_hub(model: str) -> bool:
    file = model.endswith(".gguf") and ":" not in model
    return not file and _HUB_NAME.fullmatch(model) is not None


def refuse(order: Order, who: str, advice: Mapping[str, str]) -> None:
    """Raises LaunchError for the first field of `advice` that `order` asks for; its value says what to do."""
    default = Order(model="", port=0)
    for name, what_to_do in advice.items():
        asked = getattr(order, name)
        if asked != getattr(default, name):
            raise LaunchError(f"{who} cannot be told {name.replace('_', ' ')} ({asked}): {what_to_do}")


def without_secrets(command: Command) -> Command:
    """The command with the values of secret-looking names replaced, to be printed and kept."""
    environment = {name: HIDDEN if is_secret(name) else value for name, value in command.environment.items()}
    return replace(command, argv=tuple(_concealed(command.argv)), environment=environment)


def shown(command: Command) -> str:
    """The shell line that runs it by hand, environment first, secrets hidden."""
    safe = without_secrets(command)
    pairs = [_assignment(name, value) for name, value in safe.environment.items()]
    return " ".join([*pairs, shlex.join(safe.argv)])


def _assignment(name: str, value: str) -> str:
    """NAME=VALUE for a shell; what only goes before the caller's own is shown so: PATH=/venv/bin:"$PATH"."""
    inherited = os.pathsep + os.environ.get(name, "")
    if len(inherited) > 1 and value.endswith(inherited):
        return f'{name}={shlex.quote(value.removesuffix(inherited) + os.pathsep)}"${name}"'
    return f"{name}={shlex.quote(value)}"


def is_secret(name: str) -> bool:
    """Whether a variable or option is named as secrets are: HF_TOKEN, --api-key; not --max-num-tokens."""
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
