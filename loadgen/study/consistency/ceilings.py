"""Ceilings: what the machine could do at best, for runs that do not record it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from msgspec.structs import replace

from loadgen.base.errors import UsageError
from loadgen.base.files import expand_path
from loadgen.facts.ceiling import Ceiling, Machine, Weights
from loadgen.features.roofline import machines, models
from loadgen.features.roofline.estimate import estimate_ceiling
from loadgen.study.run_summary import Reported
from loadgen.study.speed import speed_rows

# The two formulas may differ by a factor of 64.
_NO_FORMULA = "the formula of the speed is unknown: write one of them below the table: " + " or ".join(
    f"Speed = {formula}" for formula in speed_rows.FORMULAS
)


class Hardware(msgspec.Struct, frozen=True):
    """The machine and the model's shape that a user names, in place of what runs do not report."""

    machine: Machine | None = None
    config: Path | None = None  # the config.json of models that the table does not know
    unknown: str = ""  # a machine that a campaign recorded, and this table does not have

    @classmethod
    def find(
        cls, key: str | None = None, bandwidth_gb_per_s: float | None = None, config: str | None = None
    ) -> Hardware:
        """Find the machine of a key, a bandwidth or both, and check a config.json; raises UsageError."""
        file = None if config is None else expand_path(config)
        if file is not None:
            models.read_architecture(file)
        return cls(machines.choose_machine(key, bandwidth_gb_per_s), file)

    @classmethod
    def from_flags(cls, flags: argparse.Namespace) -> Hardware:
        """Find the hardware that the roofline's flags name; raises UsageError as `find`."""
        return cls.find(flags.hardware, flags.bandwidth, flags.model_config)

    def add_recorded_machine(self, key: str | None) -> Hardware:
        """Return this; without a machine, with that of a campaign's `key`, or with why it is unknown."""
        if self.machine is not None or key is None:
            return self
        try:
            return replace(self, machine=machines.find_machine(key))
        except UsageError as error:
            return replace(self, unknown=f"no roofline: {error}")


@dataclass
class Ceilings:
    """The ceilings of runs, each computed once for a name and a machine; or why there is none."""

    machine: Machine | None  # overrides what a run reports; None: as each run names it
    model: str = ""  # read in place of each run's name
    advice: str = "--model-config, its config.json"  # what to pass for a model of unknown shape
    _made: dict[tuple[str, str], Ceiling | str] = field(default_factory=dict)

    def find(self, run: Reported, config: Path | None) -> tuple[Ceiling | None, str]:
        """Find a run's ceiling, else None and the reason; by its own weights before any table's.

        `config` is the shape of a model that the table does not have. What was computed is kept by name and
        machine.
        """
        if run.speed_formula == speed_rows.UNKNOWN:
            return None, _NO_FORMULA
        if run.ceiling is not None and not self.model:
            machine = machines.settle_machine(self.machine, run.machine, run.ceiling.machine)
            return run.ceiling.model_copy(update={"machine": machine}), ""
        key = run.checkpoint, run.machine
        if key not in self._made:
            self._made[key] = self._compute(run, config)
        made = self._made[key]
        return (made, "") if isinstance(made, Ceiling) else (None, made)

    def _compute(self, run: Reported, config: Path | None) -> Ceiling | str:
        """Estimate a run's ceiling by its name, machine and `config`; else return why there is none."""
        if self.machine is None and run.simulated:
            return "no model runs in a simulation"
        machine = machines.settle_machine(self.machine, run.machine)
        if machine is None:
            problem = f"the machine {run.machine!r} is unknown" if run.machine else "no machine is named"
            return f"{problem}: pass --hardware KEY, as jetson-thor, or --bandwidth GB/s"
        name = self.model or run.checkpoint
        if (
            config is None
            and models.find_architecture(name) is None
            and not os.path.exists(os.path.expanduser(name))
        ):
            return f"the shape of {name} is unknown: pass {self.advice}"
        quantization = (
            models.find_suffix(run.checkpoint) if self.model and not models.find_suffix(self.model) else ""
        )
        try:
            return estimate_ceiling(name, machine, quantization=quantization, config=config)
        except UsageError as error:
            return str(error)


def add_ceilings(reported: Sequence[Reported], hardware: Hardware) -> tuple[list[Reported], list[str]]:
    """Return the runs with their ceilings, and a line on each reason why some have none.

    --hardware overrides what a run reports; a run's own weights stay. Without it no line is on simulations.
    """
    ceilings = Ceilings(hardware.machine)
    made = [
        ceilings.find(run, hardware.config if models.find_architecture(run.checkpoint) is None else None)
        for run in reported
    ]
    runs = [replace(run, ceiling=own) for run, (own, _) in zip(reported, made, strict=True)]
    reasons = [why for _, why in made]
    if hardware.machine is None:  # of a simulation on no machine it goes without saying
        reasons = [why for run, why in zip(reported, reasons, strict=True) if not run.simulated]
    problems = [f"no roofline: {problem}" for problem in dict.fromkeys(reasons) if problem]
    return runs, [*filter(None, [hardware.unknown]), *problems] if problems else []


def find_weights(model: str) -> Weights | None:
    """Estimate weights by a checkpoint's name or directory; None if its shape or storage is unknown."""
    try:
        return estimate_ceiling(model, machines.make_machine(1.0)).weights
    except UsageError:
        return None
