"""Flags: the machine and the model that the user names, checked before a run."""

from __future__ import annotations

import msgspec

from loadgen.base.files import expand_path as expanded


class Flags(msgspec.Struct, frozen=True):
    """The flags that name the machine and the model."""

    hardware: str | None = None
    bandwidth_gb_per_s: float | None = None
    model_config: str | None = None

    def check(self) -> None:
        """Find errors in these flags before a run; raises UsageError."""
        if (self.hardware, self.bandwidth_gb_per_s) != (None, None):
            from loadgen.roofline.machines import choose_machine  # few runs name one

            choose_machine(self.hardware, self.bandwidth_gb_per_s)
        if self.model_config is not None:
            from loadgen.roofline import architecture

            architecture.read_architecture(expanded(self.model_config))
