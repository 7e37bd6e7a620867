"""Embedded engine: the server of a run that names none, in a process of its own."""

from __future__ import annotations

from contextlib import ExitStack

from loadgen.base.errors import UsageError
from loadgen.base.files import expand_path
from loadgen.run.command.options import Options
from loadgen.run.verbs import importing
from loadgen_servers.engine import presets
from loadgen_servers.engine.step_times import Age, Timing, Work
from loadgen_servers.process.embedded import Embedded, EngineFailed


def begin_engine(options: Options, stack: ExitStack) -> Embedded | None:
    """The engine as it starts, where the flags name no other server; it ends with `stack`.

    Raises UsageError for an unknown preset.
    """
    if not options.embedded:
        return None
    arguments: list[str] = []
    if options.preset is not None:
        config = None if options.model_config is None else expand_path(options.model_config)
        with importing():
            from loadgen.roofline import estimate  # most runs have no preset

            arguments += estimate.make_engine_arguments(options.preset, config)
    if options.model is not None or options.served_model_name is not None:
        arguments += ["--served-model-name", options.served_model_name or options.model or ""]
    embedded = stack.enter_context(Embedded(arguments))
    embedded.begin()
    return embedded


class PresetSteps:
    """The step times of a preset, as a roofline has them: of a prompt, and of a token in a batch."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing

    def prefill_ms(self, tokens: int) -> float:
        """Milliseconds that a prompt takes in one step."""
        return self._step_ms(Work(0, tokens, 0, tokens * tokens // 2))

    def tpot_ms(self, batch: float, context: float) -> float:
        """Milliseconds of a step that gives each request of a batch a token, at that context on average."""
        return self._step_ms(Work(round(batch), 0, round(batch * context), 0))

    def _step_ms(self, work: Work) -> float:
        return self._timing.step_ns(work, Age(0, 0)) / 1e6


def preset_steps(options: Options) -> PresetSteps | None:
    """The steps of the preset that the flags name; None where they name none, or one that is unknown."""
    if options.preset is None:
        return None
    from loadgen.roofline import estimate

    config = None if options.model_config is None else expand_path(options.model_config)
    try:
        _, named = estimate.make_engine_arguments(options.preset, config)
        of = presets.preset(named) if named == options.preset else presets.given(named)
    except (UsageError, ValueError):
        return None  # the run refuses it by name
    return PresetSteps(of.timing)


def wait_until_ready(embedded: Embedded) -> str:
    """Its base URL once it listens; raises UsageError where it does not start."""
    try:
        return embedded.listening().base_url
    except EngineFailed as error:
        raise UsageError(f"the embedded engine did not start: {error}") from None
