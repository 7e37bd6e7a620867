"""Ceilings: what the machine could do at best, for runs that do not bring it along."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from loadgen.analysis.run_summary import Reported
from loadgen.errors import UsageError
from loadgen.roofline import architecture, machines, models
from loadgen.roofline.ceiling import Ceiling, Weights
from loadgen.roofline.estimate import ceiling
from loadgen.roofline.machine import Machine


class Hardware(msgspec.Struct, frozen=True):
    """What a user says of machine and model, where the runs do not."""

    key: str | None = None
    bandwidth_gb_per_s: float | None = None
    config: Path | None = None  # the config.json of models that the table does not know

    def machine(self) -> tuple[Machine | None, str]:
        """The machine, or None and why it is unknown; raises UsageError where machine or config is wrong."""
        if self.config is not None:
            architecture.read(self.config)
        return machines.named(self.key, self.bandwidth_gb_per_s)


def completed(reported: Sequence[Reported], hardware: Hardware) -> tuple[list[Reported], list[str]]:
    """The runs with their ceilings, and a line on each reason why some have none.

    What --hardware says stands over what a run says; a run's own weights stay. Raises UsageError where the
    config cannot be read.
    """
    given, unknown = hardware.machine()
    known: dict[tuple[str, str], Ceiling | str] = {}
    found = []
    for run in reported:
        own = _own(run, given)
        if own is None:
            at = run.name, run.machine
            if at not in known:
                known[at] = _ceiling(run, given, hardware.config)
            own = made if isinstance(made := known[at], Ceiling) else None
        found.append(replace(run, ceiling=own))
    lacking = dict.fromkeys(why for why in known.values() if isinstance(why, str))
    return found, [*filter(None, [unknown]), *(f"no roofline: {why}" for why in lacking)]


def _own(run: Reported, given: Machine | None) -> Ceiling | None:
    if run.ceiling is None or given is None:
        return run.ceiling
    return run.ceiling.model_copy(update={"machine": machines.meant(given, run.machine, run.ceiling.machine)})


def _ceiling(run: Reported, given: Machine | None, config: Path | None) -> Ceiling | str:
    """The ceiling, or why there is none."""
    if given is None and run.simulated:
        return "no model runs in a simulation"
    machine = machines.meant(given, run.machine)
    if machine is None:
        told = f"the machine {run.machine!r} is unknown" if run.machine else "the runs name no machine"
        return f"{told}: pass --hardware KEY, as jetson-thor, or --bandwidth GB/s"
    try:
        return ceiling(run.name, machine, config=config if models.named(run.name) is None else None)
    except UsageError as error:
        return str(error)


def stored(model: str) -> Weights | None:
    """What a checkpoint's weights come to by its name; None where the model is not known here."""
    try:
        return ceiling(model, machines.of_bandwidth(1.0)).weights
    except UsageError:
        return None
