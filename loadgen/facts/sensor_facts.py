"""Sensor facts: memory, energy, heat and clocks of a run as stored, and joules per token."""

from __future__ import annotations

from pydantic import BaseModel


class MemoryUse(BaseModel, extra="forbid", frozen=True):
    """Bytes of memory over the window."""

    peak_bytes: int
    steady_bytes: int  # median of the window's second half
    how: str  # it was learned, in words


class SampleSpread(BaseModel, extra="forbid", frozen=True):
    """Mean, least and greatest value of a quantity's samples in the window."""

    min: float
    mean: float
    max: float


class Energy(BaseModel, extra="forbid", frozen=True):
    """Joules and watts over the window; idle power is from before the run."""

    joules: float
    mean_w: float
    idle_w: float | None = None
    source: str  # in words
    parts: dict[str, float] = {}  # J by GPU or rail; they sum up to `joules`
    under: dict[str, float] = {}  # J of rails and GPUs whose power is part of those

    @property
    def is_of_cpu(self) -> bool:
        """Whether it is that of CPU packages and their memory, and of nothing else."""
        return bool(self.parts) and all(where.startswith("CPU ") for where in self.parts)

    def sum_by_host(self) -> dict[str, float]:
        """Return the joules by machine, "" for this one; the machine is named at the end of a place."""
        hosts: dict[str, float] = {}
        for where, joules in self.parts.items():
            host = where.partition(" of ")[2]
            hosts[host] = hosts.get(host, 0.0) + joules
        return hosts


class SensorSummary(BaseModel, extra="forbid", frozen=True):
    """Memory, energy, temperature and clocks over the measured window; `missing` explains each None."""

    duration_s: float
    period_s: float
    samples: int  # in the window
    cpu_ms_per_sample: float
    # Those with memory of the server, or all where that is not reported; and all of --power-url.
    gpus: tuple[str, ...] = ()
    server_gpus: tuple[str, ...] = ()  # those with its memory; empty: it is not reported
    gpus_how: str = ""
    server: MemoryUse | None = None  # GPU memory of the server
    device: MemoryUse | None = None  # GPU memory in use by all processes on those GPUs
    rss: MemoryUse | None = None  # host memory of the server's processes
    pss: MemoryUse | None = None
    system: MemoryUse | None = None  # memory of the machine in use
    energy: Energy | None = None  # of the board, else of the GPUs, else of the CPU
    cpu_energy: Energy | None = None  # of CPU packages and their memory, in no sum with a GPU's
    temperature_c: dict[str, SampleSpread] = {}
    sm_mhz: dict[str, SampleSpread] = {}
    memory_mhz: dict[str, SampleSpread] = {}
    held_back: dict[str, float] | None = None  # reason → share of the samples; None: not reported
    missing: tuple[str, ...] = ()  # what could not be read, and why

    def joules_per_token(self, output_tokens: int) -> float | None:
        """Return the window's joules per output token of the window; None without energy or tokens."""
        return self.energy.joules / output_tokens if self.energy is not None and output_tokens > 0 else None
