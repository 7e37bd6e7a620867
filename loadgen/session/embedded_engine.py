"""Embedded engine: the server of a run that names none, in a process of its own."""

from __future__ import annotations

from contextlib import ExitStack

from loadgen.errors import UsageError
from loadgen.roofline import preset
from loadgen.session.importing import importing
from loadgen.session.options import Options
from loadgen.workload.paths import place
from loadgen_servers.process.embedded import Embedded, EngineFailed


def begun(options: Options, stack: ExitStack) -> Embedded | None:
    """The engine as it starts, where the flags name no other server; it ends with `stack`.

    Raises UsageError for an unknown preset.
    """
    if not options.embedded:
        return None
    arguments: list[str] = []
    if options.preset is not None:
        config = None if options.model_config is None else place(options.model_config)
        with importing():
            arguments += preset.arguments(options.preset, config)
    if options.model is not None or options.served_model_name is not None:
        arguments += ["--served-model-name", options.served_model_name or options.model or ""]
    embedded = stack.enter_context(Embedded(arguments))
    embedded.begin()
    return embedded


def ready(embedded: Embedded) -> str:
    """Its base URL once it listens; raises UsageError where it does not start."""
    try:
        return embedded.listening().base_url
    except EngineFailed as error:
        raise UsageError(f"the embedded engine did not start: {error}") from None
