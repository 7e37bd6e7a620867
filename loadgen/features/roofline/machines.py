"""Machines: the table in machines.toml, looked up by key or by a GPU's own name."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib import resources

from pydantic import BaseModel

from loadgen.base.errors import UsageError
from loadgen.base.parsing import MOST_GB_PER_S, find_nearest
from loadgen.facts.ceiling import Machine

_SHORT = {
    "h20": "h20-96gb",
    "a100": "a100-80gb",
    "h100-sxm": "h100",
    "dgx-spark": "gb10",
    "thor": "jetson-thor",
}
_COUNTED = re.compile(r"(\d{1,3})\s*[x×*]\s*(.+)")
_COUNTED_BEHIND = re.compile(r"(.+?\S)\s*[x×*]\s*(\d{1,3})")  # H100 x8
_SERIES = re.compile(r"\b(?:nvidia|geforce|jetson|tesla|amd|instinct|gpus?)\b|[\s_(),-]+")
_RAM_OFF = 0.15  # of what a board's memory shows as, by how much is kept back


class _MachineRow(BaseModel, extra="forbid"):
    name: str
    bandwidth_gb_s: float
    tflops: dict[str, float]
    memory_gb: float
    names: list[str]
    written: str = ""
    source: str
    note: str = ""
    ram_gib: float = 0.0


def find_machine(key: str) -> Machine:
    """Find a machine by key, as jetson-thor, or several that share a model, as 4xh100.

    Raises UsageError with the nearest key, and what else can be passed.
    """
    counted = _COUNTED.fullmatch(key.strip())
    word = (counted[2] if counted else key).strip().lower()
    row = list_machines().get(_SHORT.get(word, word))
    count = int(counted[1]) if counted else 1
    if row is None or not count:
        close = find_nearest(word, [*list_machines(), *_SHORT])
        hint = f"the nearest is {close}" if close else f"there are {', '.join(list_machines())}"
        raise UsageError(f"--hardware {key}: unknown, {hint}; or pass --bandwidth GB/s of its memory")
    return row.multiply(count)


def make_machine(gb_per_s: float) -> Machine:
    """Make a machine of which only the memory bandwidth is known; raises UsageError for an impossible one."""
    if not 0 < gb_per_s <= MOST_GB_PER_S:
        raise UsageError(f"--bandwidth {gb_per_s:g}: give the GB/s of the machine's memory, such as 273")
    return Machine(
        key="",
        name="this machine",
        bandwidth_bytes_per_s=gb_per_s * 1e9,
        peak_flop_per_s={},
        memory_bytes=0,
        source="--bandwidth",
        of_all=True,
    )


def choose_machine(hardware: str | None, bandwidth_gb_per_s: float | None) -> Machine | None:
    """Return the machine of --hardware and --bandwidth; None without both. Raises UsageError.

    Together: the table's machine with that bandwidth, of all its devices.
    """
    if hardware is None:
        return None if bandwidth_gb_per_s is None else make_machine(bandwidth_gb_per_s)
    row = find_machine(hardware)
    if bandwidth_gb_per_s is None:
        return row
    machine = make_machine(bandwidth_gb_per_s)
    return row.model_copy(
        update={
            "bandwidth_bytes_per_s": machine.bandwidth_bytes_per_s,
            "source": f"{row.source}; its bandwidth by --bandwidth",
            "of_all": True,
        }
    )


def recognise_machine(gpu_name: str, memory_gib: float | None = None) -> Machine | None:
    """Recognize a machine by its GPU's name (NVML, nvidia-smi) or key; None if unknown.

    "4 × NVIDIA H100 80GB HBM3" is four that share a model. One name can be several machines, as "Orin
    (nvgpu)": the memory that the system sees distinguishes them; without it, or if none fits, it is the
    largest of them.
    """
    count, plain = _split_count(gpu_name)
    name = re.sub(r"^NVIDIA\s+", "", plain, flags=re.IGNORECASE)
    words = " ".join(_SERIES.sub(" ", plain.lower()).split())  # without vendor, series and punctuation
    matches = [
        (key, row.ram_gib)
        for key, row in _read_rows().items()
        if name.lower() == key or any(re.fullmatch(pattern, name, re.IGNORECASE) for pattern in row.names)
    ] or [(key, 0.0) for key, row in _read_rows().items() if re.fullmatch(row.written or "(?!)", words)]
    if not matches:
        return None
    if memory_gib is not None:
        fits = [key for key, ram in matches if ram and abs(ram - memory_gib) <= _RAM_OFF * ram]
        matches = [(key, 0.0) for key in fits] or matches
    return list_machines()[matches[0][0]].multiply(count)


def _split_count(named: str) -> tuple[int, str]:
    """Split a count off a name, 8 of `8xH100` and of `H100 x8`; return both."""
    if (before := _COUNTED.fullmatch(named.strip())) is not None:
        return int(before[1]) or 1, before[2].strip()
    behind = _COUNTED_BEHIND.fullmatch(named.strip())
    return (1, named.strip()) if behind is None else (int(behind[2]) or 1, behind[1])


def settle_machine(given: Machine | None, named: str, own: Machine | None = None) -> Machine | None:
    """Return a run's machine: the given one, as many as the run reports; else the one it names, or None.

    `named` is the GPU's own name, perhaps with a count as in "4 × GPU"; `own` is the machine of the run's
    ceiling, where it has one. A bandwidth that is given is of all devices.
    """
    own = own or (recognise_machine(named) if named else None)
    if given is None or given.devices > 1 or given.of_all:
        return given or own
    devices = own.devices if own is not None else _split_count(named)[0]
    return given.multiply(devices) if devices else given


@cache
def list_machines() -> dict[str, Machine]:
    """Return every machine by key, in the order of the file."""
    return {
        key: Machine(
            key=key,
            name=row.name,
            bandwidth_bytes_per_s=row.bandwidth_gb_s * 1e9,
            peak_flop_per_s={kind: peak * 1e12 for kind, peak in row.tflops.items()},
            memory_bytes=round(row.memory_gb * 1e9),
            source=row.source,
            note=row.note,
        )
        for key, row in _read_rows().items()
    }


@cache
def _read_rows() -> dict[str, _MachineRow]:
    text = resources.files(__package__).joinpath("machines.toml").read_text("utf-8")
    return {key: _MachineRow(**row) for key, row in tomllib.loads(text).items()}
