"""The server spec: what to serve and how, in words every engine shares, and the command, secrets hidden."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?(:[\w.-]+)?")
_CONFIGS = ("config.json", "params.json")  # the latter is Mistral's own
HIDDEN = "***"
_SECRET = re.compile(r"(keys?|token|secrets?|passwords?|passwd|credentials?)", re.IGNORECASE)


class LaunchError(Exception):
    """A server cannot be launched; the message is one line: what is wrong, what to do."""


class ServerSpec(msgspec.Struct, frozen=True):
    """What to serve and how; None, "" or () is the engine's default.

    `memory_fraction` is of the device's memory, 0 to 1; `max_running` is the most requests at once;
    `spans_url` is where it exports a span of each request, by OTLP over HTTP, path and all;
    `arguments` go last, so that they override; `environment` is added to the caller's; `python` is an
    interpreter or the directory of a venv, or where llama.cpp's program is. Without `asks` nothing that the
    spec names is run to make its command, and what is missing is no error: it is to be read before it may be.
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
    max_running: int | None = None
    trace_directory: str | None = None
    spans_url: str | None = None
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = msgspec.field(default_factory=dict)
    python: str | None = None
    asks: bool = True


# vLLM and SGLang export by gRPC unless this says otherwise.
SPANS_BY_HTTP = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}


class Command(msgspec.Struct, frozen=True):
    """A command to run; `environment` is added to the caller's.

    `end`, `kill` and `root_pid` are the commands that stop a container, remove it, and print the pid of
    its first process; () for a plain process. `directories` must be there before it is run.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    end: tuple[str, ...] = ()
    kill: tuple[str, ...] = ()
    root_pid: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()


def flags(values: Mapping[str, object]) -> tuple[str, ...]:
    """The flags, each followed by its value; True is a flag without one, None and False no flag."""
    given = {flag: value for flag, value in values.items() if value is not None and value is not False}
    return tuple(
        word for flag, value in given.items() for word in (flag, str(value))[: 1 + (value is not True)]
    )


def is_hub_name(model: str) -> bool:
    """Whether a model's name can be one on a hub, and is not that of a GGUF file."""
    return bool(_HUB_NAME.fullmatch(model)) and (":" in model or not model.endswith(".gguf"))


def check_model(model: str) -> None:
    """Raises LaunchError unless `model` is a model's directory, a GGUF file, a URL or a name on a hub."""
    if not model:
        raise LaunchError("no model to serve: pass --model with a directory or a model of the hub")
    if os.path.isdir(model):
        if not any(os.path.isfile(os.path.join(model, name)) for name in _CONFIGS):
            raise LaunchError(f"{model} holds no model: there is no config.json in it")
    elif os.path.isfile(model):
        if not model.endswith(".gguf"):
            raise LaunchError(f"{model} is a file: give the model's directory, or a .gguf file")
    elif "://" not in model and not is_hub_name(model):
        raise LaunchError(f"{model} does not exist or cannot be read: give a directory with a config.json")


def refuse_unsupported(spec: ServerSpec, who: str, advice: Mapping[str, str]) -> None:
    """Raises LaunchError for the first field of `advice` that `spec` sets; its value is what to do."""
    default = ServerSpec(model="", port=0)
    for name, what_to_do in advice.items():
        value = getattr(spec, name)
        if value != getattr(default, name):
            raise LaunchError(f"{who} does not support {name.replace('_', ' ')} ({value}): {what_to_do}")


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
