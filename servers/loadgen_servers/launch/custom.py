"""Custom: any command line that serves on the port it is given."""

from __future__ import annotations

import os
import re
import shlex
import shutil

from loadgen_servers.launch.spec import Command, LaunchError, ServerSpec, refuse_unsupported

# Braces of JSON are left alone: a placeholder is a name with a brace right before and right after it.
_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_IN_TEMPLATE = ("model", "port", "host", "arguments", "environment", "asks")
_ADVICE = dict.fromkeys(
    (name for name in ServerSpec.__struct_fields__ if name not in _IN_TEMPLATE),
    "write it into the command line",
)


def command(template: str, spec: ServerSpec) -> Command:
    """As `serve_command`, of a program on this machine; raises LaunchError where it is not installed."""
    made = serve_command(template, spec)
    if spec.asks and shutil.which(made.argv[0]) is None:
        raise LaunchError(f"{made.argv[0]} is not installed, or not on PATH: give the path of a program")
    return made


def serve_command(template: str, spec: ServerSpec) -> Command:
    """The template with `{port}`, and any `{host}` and `{model}`, filled in; raises LaunchError.

    It is split as a shell would, and run without one; NAME=VALUE before the command go into the environment.
    """
    refuse_unsupported(spec, "a command of your own", _ADVICE)
    try:
        words = shlex.split(template)
    except ValueError as error:
        raise LaunchError(f"the command cannot be read ({str(error).lower()}): {template}") from None
    values = {"port": str(spec.port), "host": spec.host, "model": spec.model}
    used = {name for word in words for name in _PLACEHOLDER.findall(word)}
    if unknown := sorted(used - set(values)):
        raise LaunchError(
            f"the command has {{{unknown[0]}}}: only {{port}}, {{host}} and {{model}} are known"
        )
    if "port" not in used:
        raise LaunchError("the command has no {port}: write it where the server expects its port")
    if "model" in used:  # whether there is one; which formats are valid is up to the server
        if not spec.model:
            raise LaunchError("the command has {model}, and no model is given: pass --model")
        if os.path.isabs(spec.model) and not os.path.exists(spec.model):
            raise LaunchError(f"{spec.model} does not exist or cannot be read: give the model's path")
    filled = [_PLACEHOLDER.sub(lambda name: values[name[1]], word) for word in words]
    environment: dict[str, str] = {}
    while filled and (assignment := _ASSIGNMENT.fullmatch(filled[0])):
        environment[assignment[1]] = assignment[2]
        del filled[0]
    if not filled or not filled[0]:
        raise LaunchError("the command is empty: write the program that serves, and {port}")
    return Command((*filled, *spec.arguments), {**environment, **spec.environment})
