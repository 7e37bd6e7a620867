"""Launch: the settings of a server that is started for the run, in words that every engine knows."""

from __future__ import annotations

import argparse
import os
import shlex
from functools import partial
from typing import Any

from loadgen.base.bounds import MOST_SEED, MOST_TOKENS
from loadgen.engines.engines import LAUNCHED
from loadgen.settings.groups import LAUNCH
from loadgen.settings.setting import NO_KEYWORD, KeyRows, Makes, OptionRows, setting

START_TIMEOUT_S = 1200.0
_MOST_GPUS = 1024
_MOST_RUNNING = 1 << 20


def _line(value: Any) -> Any:
    """One string is a command line, as of --server-args."""
    words = shlex.split(value) if isinstance(value, str) else value
    return tuple(words) if isinstance(words, list) else words


def _variables(value: dict[str, str] | None) -> dict[str, str] | None:
    if any(not name or "=" in name or "\0" in name + text for name, text in (value or {}).items()):
        raise ValueError(
            "a variable's name must not be empty or contain =, and neither it nor its value a zero byte"
        )
    return value


def _some_text(value: str | None) -> str | None:
    if value == "":
        raise ValueError("String should have at least 1 character")
    return value


# fmt: off
_launch = partial(setting, Makes.NOTHING, None, group=LAUNCH, apart=True, keyword=NO_KEYWORD)
_asked = partial(_launch, rank=2)


class LaunchRows(OptionRows, frozen=True):
    """What is to be started, and how."""

    engine: str | None = _launch("start this engine on --model, and stop it afterwards", flag="--launch",
        choices=LAUNCHED)
    command: str | None = _launch("start any server: a command line with {port} in it",
        flag="--launch-command", metavar="LINE")
    container: str | None = _launch("start it in a container (of vLLM, or of --launch)",
        flag="--launch-container", metavar="IMAGE")
    container_engine: str | None = _launch("docker or podman (default: the first on PATH)", metavar="NAME")
    container_args: tuple[str, ...] = setting(Makes.NOTHING, (),
        "more arguments of `docker run`, as '--shm-size 16g'", group=LAUNCH, metavar="LINE",
        keyword=NO_KEYWORD)
    python: str | None = _launch("interpreter or venv with the engine installed; llamacpp: its llama-server",
        flag="--server-python", metavar="PATH", rank=1, path=True)
    timeout_s: float = setting(Makes.NOTHING, START_TIMEOUT_S, "wait S seconds for it to be ready (default "
        "1200)", group=LAUNCH, flag="--launch-timeout-sec", apart=True, read=float, metavar="S",
        rank=3, keyword=NO_KEYWORD)
    dry_run: bool = setting(Makes.NOTHING, False, "print the command that would start it, then exit",
        group=LAUNCH, action="store_true", rank=3, keyword=NO_KEYWORD,
        campaign="is a flag of `loadgen campaign`")
    # The server may start in another directory.
    trace_directory: str | None = _launch("have the engine write a profiler trace of the run",
        flag="--server-trace", read=os.path.abspath, metavar="DIR", rank=3, names_server=True)


class ServerKeys(KeyRows, frozen=True):
    """What the server is asked for: the `[server]` table of a profile; None leaves it to the engine."""

    # Tokens, prompt and answer together.
    context_len: int | None = _asked("tokens of the longest request it accepts", read=int, metavar="N",
        least=1, most=MOST_TOKENS)
    # Of the GPU's.
    memory_fraction: float | None = _asked("share of the GPU's memory to use, 0 to 1", read=float,
        metavar="X", above=0.0, most=1.0)
    tensor_parallel: int | None = _asked("GPUs that share the model", read=int, metavar="N", least=1,
        most=_MOST_GPUS)
    quantization: str | None = _asked("default: from the checkpoint", metavar="NAME", check=_some_text)
    # Token ids in and out.
    skip_tokenizer: bool | None = _asked("serve token ids only", action="store_true")
    prefix_caching: bool | None = _asked("default: the engine's own", action=argparse.BooleanOptionalAction)
    seed: int | None = _asked("default: the engine's own", flag="--server-seed", read=int, metavar="N",
        least=0, most=MOST_SEED)
    # Requests at once.
    max_running: int | None = _asked("requests that it runs at once (llamacpp: its slots)", read=int,
        metavar="N", least=1, most=_MOST_RUNNING)
    # For the engine, as they are.
    arguments: tuple[str, ...] | None = _asked("passed to the engine unchanged", flag="--server-args",
        metavar="LINE", convert=_line, rank=0)
    # Added to the caller's.
    environment: dict[str, str] | None = _asked("added to its environment", flag="--server-env",
        action="extend", nargs="+", metavar="NAME=VALUE", check=_variables, rank=0)
# fmt: on
