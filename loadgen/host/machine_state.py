"""Machine state: how the machine of the server was set and how warm it was, before a run and at its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

import msgspec

from loadgen.base.text import GIB

T = TypeVar("T")
MEMORY_BANDWIDTH = "memory bandwidth"
_CLOCK = 0.02  # of a clock or a power cap: less is rounding
_WARMER_C = 10.0
_WARMER_CPU_C = 20.0  # it follows each burst of work within a second
_SLOWER = 0.2  # of the memory probe: one thread's copy varies by a tenth
_PINNED = {True: "pinned", False: "not pinned"}
_FREE_SHARE = 0.2  # of the machine's memory
_MEMORY_SHARE = 0.1  # of the machine's memory


class ClockState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A clock at one moment, in MHz; None where it is not reported."""

    now_mhz: float | None = None
    limit_mhz: float | None = None  # the most that is allowed now
    most_mhz: float | None = None  # the most that the hardware allows
    pinned: bool | None = None  # held at a value that someone chose


class PowerCap(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The power limit of a GPU, in watts; None where it is not reported."""

    now_w: float | None = None
    default_w: float | None = None
    least_w: float | None = None  # that may be set
    most_w: float | None = None


class GpuUse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a GPU was doing at one moment; None where it is not reported."""

    name: str = ""
    used_bytes: int | None = None  # by all processes
    total_bytes: int | None = None
    others: int | None = None  # processes that are not the server's
    others_bytes: int | None = None  # their memory on the GPU
    busy_percent: float | None = None
    memory_busy_percent: float | None = None
    power_w: float | None = None


class MachineState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The machine at one moment; what it does not report is empty or None, with the reason in `missing`."""

    power_mode: str = ""  # a Jetson's, or the platform's profile
    cpu_governor: str = ""  # with its driver
    driver: str = ""  # of the GPUs
    firmware: dict[str, str] = {}  # by its place: BIOS, GPU 0
    clocks: dict[str, ClockState] = {}  # CPU, GPU 0 SM, GPU 0 memory, or a Jetson's by its name
    power_caps: dict[str, PowerCap] = {}  # by GPU
    temperature_c: dict[str, float] = {}  # by GPU or zone; a zone of the CPU begins with "CPU "
    fans: dict[str, float] = {}  # "GPU 0 %", "fan1 rpm": the unit is in the name
    held_back: tuple[str, ...] | None = None  # GPU and what slows it now; None: not reported
    slowdown_us: dict[str, int] = {}  # counters since the driver was loaded, by GPU and cause
    memory_bytes: int | None = None  # of the whole machine
    free_bytes: int | None = None  # used for nothing
    available_bytes: int | None = None  # free, or can be freed
    page_cache_bytes: int | None = None  # file contents that no process maps, which the kernel can drop
    swap_bytes: int | None = None  # in use
    unified: bool = False  # the GPU has no memory of its own
    gpus: dict[str, GpuUse] = {}
    copy_gb_per_s: float | None = None  # of the memory probe: bytes read and written; None: not probed
    missing: tuple[str, ...] = ()

    def find_hottest_c(self, cpu: bool = False) -> float | None:
        """Return the highest temperature of GPU and board, or with `cpu` of the CPU; None if not reported."""
        zones = (value for name, value in self.temperature_c.items() if name.startswith("CPU ") == cpu)
        return max(zones, default=None)


Difference = tuple[str, str, str]  # what differs, and both values in words


def list_state_differences(a: MachineState, b: MachineState) -> list[Difference]:
    """List how two states of a machine differ: (what, value of `a`, value of `b`), of what both report.

    Settings differ if they are not equal, clocks and power caps by over 2 %, temperatures by over 10 °C (of
    the CPU 20), the memory probe by over 20 %, memory of other processes on a GPU by over 0.5 GiB (or their
    number, where it is unknown), swap by over 1 GiB, and the page cache, where GPU and CPU share the memory
    and under a fifth of it is free in one state, by over a tenth of it. Clocks as they are now differ only if
    both are pinned.
    """
    return [*_list_settings(a, b), *_list_conditions(a, b)]


def list_setting_differences(a: MachineState, b: MachineState) -> list[Difference]:
    """List those of `list_state_differences` that someone has set: not heat, memory or processes."""
    return list(_list_settings(a, b))


def _list_settings(a: MachineState, b: MachineState) -> Iterator[Difference]:
    """Yield how modes, drivers, firmware, limits of clocks, pinned clocks and power caps differ."""
    texts = (
        ("power mode", a.power_mode, b.power_mode),
        ("CPU governor", a.cpu_governor, b.cpu_governor),
        ("GPU driver", a.driver, b.driver),
        *((f"firmware of {name}", x, y) for name, x, y in _pair_values(a.firmware, b.firmware)),
    )
    yield from ((what, x, y) for what, x, y in texts if x and y and x != y)
    for name, x, y in _pair_values(a.clocks, b.clocks):
        yield from _compare(f"{name} clock limit", x.limit_mhz, y.limit_mhz, "{:,.0f} MHz", share=_CLOCK)
        yield from _compare(f"{name} clock maximum", x.most_mhz, y.most_mhz, "{:,.0f} MHz", share=_CLOCK)
        if x.pinned is not None and y.pinned is not None and x.pinned != y.pinned:
            yield f"{name} clock", _PINNED[x.pinned], _PINNED[y.pinned]
        elif x.pinned and y.pinned:
            yield from _compare(f"{name} clock", x.now_mhz, y.now_mhz, "{:,.0f} MHz", share=_CLOCK)
    for name, own, other in _pair_values(a.power_caps, b.power_caps):
        yield from _compare(f"power cap of {name}", own.now_w, other.now_w, "{:,.0f} W", share=_CLOCK)


def _list_conditions(a: MachineState, b: MachineState) -> Iterator[Difference]:
    """Yield how heat, slowdowns, other processes, swap, page cache and memory bandwidth differ."""
    yield from _compare(
        "hottest sensor", a.find_hottest_c(), b.find_hottest_c(), "{:.0f} °C", least=_WARMER_C
    )
    cpu = (a.find_hottest_c(cpu=True), b.find_hottest_c(cpu=True))
    yield from _compare("CPU temperature", *cpu, "{:.0f} °C", least=_WARMER_CPU_C)
    if a.held_back is not None and b.held_back is not None and set(a.held_back) != set(b.held_back):
        own, other = (", ".join(sorted(held)) or "by nothing" for held in (a.held_back, b.held_back))
        yield "held back", own, other
    for name, x, y in _pair_values(a.gpus, b.gpus):
        what = f"other processes of {name}"
        if None in (x.others_bytes, y.others_bytes):
            yield from _compare(what, x.others, y.others, "{}")
        yield from _compare_memory(f"memory of {what}", x.others_bytes, y.others_bytes, GIB / 2)
    yield from _compare_memory("swap in use", a.swap_bytes, b.swap_bytes, GIB)
    scarce = _FREE_SHARE * (a.memory_bytes or 0)
    if a.unified and b.unified and min(a.free_bytes or 0, b.free_bytes or 0) < scarce and a.memory_bytes:
        what, most = "page cache in unified memory", _MEMORY_SHARE * a.memory_bytes
        yield from _compare_memory(what, a.page_cache_bytes, b.page_cache_bytes, most)
    yield from _compare(MEMORY_BANDWIDTH, a.copy_gb_per_s, b.copy_gb_per_s, "{:.1f} GB/s", share=_SLOWER)


def _compare(
    what: str, a: float | None, b: float | None, form: str, *, least: float = 0.0, share: float = 0.0
) -> Iterator[Difference]:
    """Yield a difference if both values are known and apart by over `least` and over `share` of the larger.

    `form` writes a value as text.
    """
    if a is not None and b is not None and abs(a - b) > max(least, share * max(abs(a), abs(b))):
        yield what, form.format(a), form.format(b)


def _compare_memory(what: str, a: int | None, b: int | None, least: float) -> Iterator[Difference]:
    """Yield a difference in GiB if both sizes are known and differ by over `least` bytes."""
    if a is not None and b is not None:
        yield from _compare(what, a / GIB, b / GIB, "{:.1f} GiB", least=least / GIB)


def _pair_values(a: Mapping[str, T], b: Mapping[str, T]) -> Iterator[tuple[str, T, T]]:
    return ((name, a[name], b[name]) for name in a if name in b)
