"""Custom: any command line that serves on a port it is given."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from typing import Any

import msgspec

from loadgen_servers.launch.order import Command, LaunchError, Order, refuse

# Braces of JSON stay as they are: a name must follow at once, and the brace that closes it.
_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_IN_THE_LINE = "write it into the command line"
_ADVICE = dict.fromkeys(
    (
        "served_model_name",
        "context_len",
        "memory_fraction",
        "tensor_parallel",
        "quantization",
        "skip_tokenizer",
        "prefix_caching",
        "seed",
        "trace_directory",
        "python",
    ),
    _IN_THE_LINE,
)


class Custom(msgspec.Struct, frozen=True):
    """Launches a command line with `{port}`, and `{host}` and `{model}` where it wants them.

    It is split as a shell would, and run without one; NAME=VALUE before the command go into the environment.
    """

    template: str

    def command(self, order: Order) -> Command:
        """The command line with the order's words in it; raises LaunchError."""
        command = spelt(self.template, order)
        if shutil.which(command.argv[0]) is None:
            raise LaunchError(
                f"{command.argv[0]} is not installed, or not on PATH: give the path of a program"
            )
        return command


def spelt(template: str, order: Order) -> Command:
    """`template` split into words, with the order's in it; raises LaunchError."""
    refuse(order, "a command of your own", _ADVICE)
    try:
        words = shlex.split(template)
    except ValueError as error:
        raise LaunchError(f"the command cannot be read ({str(error).lower()}): {template}") from None
    known: dict[str, Any] = {"port": order.port, "host": order.host, "model": order.model}
    used = {name for word in words for name in _PLACEHOLDER.findall(word)}
    if unknown := sorted(used - set(known)):
        raise LaunchError(
            f"the command has {{{unknown[0]}}}: only {{port}}, {{host}} and {{model}} are known"
        )
    if "port" not in used:
        raise LaunchError("the command has no {port}: write it where the server is told its port")
    if "model" in used:
        _check_path(order.model)
    filled = [_PLACEHOLDER.sub(lambda name: str(known[name[1]]), word) for word in words]
    environment: dict[str, str] = {}
    while filled and (assignment := _ASSIGNMENT.fullmatch(filled[0])):
        environment[assignment[1]] = assignment[2]
        del filled[0]
    if not filled or not filled[0]:
        raise LaunchError("the command is empty: write the program that serves, and {port}")
    return Command((*filled, *order.arguments), {**environment, **order.environment})


def _check_path(model: str) -> None:
    """What a model is, is the server's to say; that there is one is not."""
    if not model:
        raise LaunchError("the command has {model}, and none is given: name it with --model")
    if os.path.isabs(model) and not os.path.exists(model):
        raise LaunchError(f"{model} does not exist or cannot be read: give the model's path")
