"""Launch flags: how a server is started for the run."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from typing import Any

import msgspec

from loadgen.base.bounds import shown
from loadgen.base.errors import UsageError

ENGINES = ("vllm", "sglang", "transformers", "llamacpp")
_TIMEOUT_S = 1200.0
_LINES = ("--server-args", "--container-args")
_SETTINGS = (
    "context_len", "memory_fraction", "tensor_parallel", "quantization", "skip_tokenizer", "prefix_caching",
    "seed", "max_running", "arguments", "environment",
)  # fmt: skip
# Settings and fields of Launching whose flags have other names.
_FLAGS = {
    "seed": "server_seed", "arguments": "server_args", "environment": "server_env",
    "engine": "launch", "command": "launch_command", "container": "launch_container",
    "python": "server_python", "timeout_s": "launch_timeout_s", "trace_directory": "server_trace",
}  # fmt: skip


class Launching(msgspec.Struct, frozen=True):
    """What is to be started, and how."""

    engine: str | None = None
    command: str | None = None
    container: str | None = None
    container_engine: str | None = None
    container_args: tuple[str, ...] = ()
    python: str | None = None
    settings: dict[str, Any] = msgspec.field(default_factory=dict)  # those that were given
    timeout_s: float = _TIMEOUT_S
    dry_run: bool = False
    trace_directory: str | None = None

    @property
    def wanted(self) -> bool:
        """Whether a server is to be started at all."""
        return bool(self.engine or self.command or self.container)

    @property
    def name(self) -> str:
        """Its name in the report and in the log's directory."""
        return self.engine or ("container" if self.container else "command")


# fmt: off
def add_launch_flags(group: argparse._ArgumentGroup) -> None:
    """The flags that start a server."""
    add, yes_no = group.add_argument, argparse.BooleanOptionalAction
    add("--launch", choices=ENGINES, help="start this engine on --model, and stop it afterwards")
    add("--launch-command", metavar="LINE", help="start any server: a command line with {port} in it")
    add("--launch-container", metavar="IMAGE", help="start it in a container (of vLLM, or of --launch)")
    add("--container-engine", metavar="NAME", help="docker or podman (default: the first on PATH)")
    add("--container-args", metavar="LINE", help="more arguments of `docker run`, as '--shm-size 16g'")
    add("--server-args", metavar="LINE", help="passed to the engine unchanged")
    add("--server-env", nargs="+", action="extend", metavar="NAME=VALUE", help="added to its environment")
    add("--server-python", metavar="PATH",
        help="interpreter or venv with the engine installed; llamacpp: its llama-server")
    add("--context-len", type=int, metavar="N", help="tokens of the longest request it accepts")
    add("--memory-fraction", type=float, metavar="X", help="share of the GPU's memory to use, 0 to 1")
    add("--tensor-parallel", type=int, metavar="N", help="GPUs that share the model")
    add("--quantization", metavar="NAME", help="default: from the checkpoint")
    add("--skip-tokenizer", action="store_true", help="serve token ids only")
    add("--prefix-caching", action=yes_no, help="default: the engine's own")
    add("--server-seed", type=int, metavar="N", help="default: the engine's own")
    add("--max-running", type=int, metavar="N", help="requests that it runs at once (llamacpp: its slots)")
    add("--launch-timeout-sec", dest="launch_timeout_s", type=float, metavar="S",
        help="wait S seconds for it to be ready (default 1200)")
    add("--dry-run", action="store_true", help="print the command that would start it, then exit")
    # The server may start in another directory.
    add("--server-trace", type=os.path.abspath, metavar="DIR",
        help="have the engine write a profiler trace of the run")
# fmt: on


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
    names = (*_SETTINGS, *Launching.__struct_fields__)
    own = {name: values.pop(flag) for name in names if (flag := _FLAGS.get(name, name)) in values}
    settings = {name: value for name in _SETTINGS if (value := own.pop(name, None)) not in (None, (), {})}
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
    needless = [_FLAGS.get(name, name) for name in launch.settings]
    needless += ["server_python"] * (launch.python is not None) + ["dry_run"] * launch.dry_run
    needless += ["launch_timeout_sec"] * (launch.timeout_s != _TIMEOUT_S)
    if needless:
        flag = needless[0].replace("_", "-")
        raise UsageError(
            f"--{flag} applies to a server that loadgen starts: add --launch, --launch-command or -container"
        )


def _words(flag: str, line: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(line))
    except ValueError as error:
        raise UsageError(f"{flag} {shown(line)}: {str(error).lower()}") from None


def _environment(pairs: list[str]) -> dict[str, str]:
    environment = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"--server-env {shown(name)}: write NAME=VALUE")
        environment[name] = value
    return environment
