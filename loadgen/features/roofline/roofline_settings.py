"""Roofline settings: the machine and the model that a user names, and how near the bound a figure may be."""

from __future__ import annotations

from typing import Any

import msgspec

from loadgen.base.files import expand_path

# A nominal bandwidth is clock × width, and reads reach 90 % of it at most; what is allowed beyond it is for
# printed figures that are rounded, and for bytes of a checkpoint that its config does not declare.
TOLERANCE = 1.05
SLOW, LEAST_MS = 0.3, 5.0  # a share of the roofline, judged only if a step takes at least LEAST_MS
PREFIX = "roofline/"


class Flags(msgspec.Struct, frozen=True):
    """The flags by which the user names machine and model."""

    hardware: str | None = None
    bandwidth_gb_per_s: float | None = None
    model_config: str | None = None

    @classmethod
    def read(cls, values: Any) -> Flags:
        """Read the flags from a command's options, the attributes of `values`."""
        return cls(values.hardware, values.bandwidth, values.model_config)

    @property
    def names_machine(self) -> bool:
        """Whether they give a machine, or its bandwidth."""
        return (self.hardware, self.bandwidth_gb_per_s) != (None, None)

    def check(self) -> None:
        """Raise UsageError for an unknown machine, an impossible bandwidth, or an unusable config."""
        if self.names_machine:
            from loadgen.features.roofline.machines import choose_machine  # its table takes 20 ms

            choose_machine(self.hardware, self.bandwidth_gb_per_s)
        if self.model_config is not None:
            from loadgen.features.roofline import models

            models.read_architecture(expand_path(self.model_config))
