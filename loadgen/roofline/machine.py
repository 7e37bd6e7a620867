"""Machine: what a device can do at best, from a table that names its sources."""

from __future__ import annotations

from pydantic import BaseModel


class Machine(BaseModel, extra="forbid", frozen=True):
    """One kind of device, or several that share a model; peaks are dense, without structured sparsity."""

    key: str  # jetson-thor, h20-96gb; "" if only a bandwidth is known
    name: str
    bandwidth_bytes_per_s: float  # nominal, of the memory that holds the weights
    peak_flop_per_s: dict[str, float]  # by the type that computes: bf16, fp8, fp4, int8; absent: unknown
    memory_bytes: int  # 0: unknown
    source: str
    note: str = ""
    devices: int = 1  # that share the model: bandwidth, peaks and memory above are of all of them
    of_all: bool = False  # a bandwidth that was given, of however many share the model

    def times(self, devices: int) -> Machine:
        """`devices` of them that share a model: bandwidth, peaks and memory add up."""
        if devices == 1:
            return self
        return self.model_copy(
            update={
                "name": f"{devices} × {self.name}",
                "bandwidth_bytes_per_s": devices * self.bandwidth_bytes_per_s,
                "peak_flop_per_s": {kind: devices * peak for kind, peak in self.peak_flop_per_s.items()},
                "memory_bytes": devices * self.memory_bytes,
                "devices": devices * self.devices,
            }
        )
