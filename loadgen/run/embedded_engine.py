"""Embedded engine: the server of a run that names none, in a process of its own, and its presets' times."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import msgspec

from loadgen.base.errors import UsageError
from loadgen.base.imports import importing
from loadgen.features.roofline.roofline_settings import PREFIX
from loadgen.run.command.options import Options
from loadgen_servers.process.embedded import Embedded


def begin_engine(options: Options, stack: ExitStack) -> Embedded | None:
    """Start the embedded engine, which ends with `stack`; return None if the flags name another server.

    Raises UsageError for a preset on a roofline that is not known.
    """
    if not options.embedded:
        return None
    arguments: list[str] = []
    if options.preset is not None:
        with importing():
            made = _make_roofline_preset(options)
        arguments += ["--preset", options.preset] if made is None else ["--preset-json", made]
    if options.model is not None or options.served_model_name is not None:
        arguments += ["--served-model-name", options.served_model_name or options.model or ""]
    embedded = stack.enter_context(Embedded(arguments))
    embedded.begin()
    return embedded


def _make_roofline_preset(options: Options) -> str | None:
    """Make the preset of a machine and a model at its roofline, as JSON; None for one of another name."""
    if not (options.preset or "").startswith(PREFIX):
        return None
    from loadgen.features.roofline.estimate import make_preset

    return make_preset(options)


class PresetSteps(msgspec.Struct, frozen=True):
    """The step times of a preset of the embedded engine: of a prompt, and of a token in a batch."""

    step_ms: Callable[[int, int, int, int], float]  # of the fields of the engine's Work

    def prefill_ms(self, tokens: int) -> float:
        """Return the milliseconds that a prompt of `tokens` tokens takes."""
        return self.step_ms(0, tokens, 0, tokens * tokens // 2)

    def tpot_ms(self, batch: float, context: float) -> float:
        """Return the ms of a step that gives each of `batch` requests a token, at a mean context."""
        return self.step_ms(round(batch), 0, round(batch * context), 0)


def find_preset_steps(options: Options) -> PresetSteps | None:
    """Return the step times of the preset that the flags name; None if none or an invalid one is named."""
    if options.preset is None:
        return None
    from loadgen_servers.engine import presets  # only what estimates the time of a series needs these
    from loadgen_servers.engine.step_times import Age, Work

    try:
        made = _make_roofline_preset(options)
        timing = (presets.preset(options.preset) if made is None else presets.given(made)).timing
    except (UsageError, ValueError):
        return None  # the run refuses it by name
    return PresetSteps(lambda *work: timing.step_ns(Work(*work), Age(0, 0)) / 1e6)
