"""Provoked, states: runs on recorded machines that were not as they should be, each with a doubt."""

from __future__ import annotations

import tempfile
from pathlib import Path

from msgspec.structs import replace

from builders.made_cases import run
from builders.recorded_sensors import DATA, RecordedNvml, tree
from loadgen.facts.run_facts import MemoryUse, SampleSpread, SensorSummary
from loadgen.features.sensors.sensor_discovery import System
from loadgen.host.jetson import Board
from loadgen.host.machine_state import ClockState, MachineState, PowerCap
from loadgen.host.nvml import Gpus
from loadgen.host.sensor import merge_states
from loadgen.verdict.evidence import RunEvidence


def read_nvml(name: str) -> MachineState:
    return Gpus(RecordedNvml(name)).read_state((41,))


def read_files(name: str) -> MachineState:
    """The state that board and host report from recorded files."""
    with tempfile.TemporaryDirectory() as place:
        root = tree(Path(place), (DATA / f"{name}.txt").read_text("utf-8"))
        boards = [] if name == "dgx_spark" else [Board(root).read_state(())]
        return merge_states([*boards, System(root).read_state(())])


def sensed(
    mhz: float, samples: int = 20, held: dict[str, float] | None = None, owned: bool = True
) -> SensorSummary:
    """A GPU with the server's memory, and at most this clock."""
    return SensorSummary(
        duration_s=10.0,
        period_s=0.5,
        samples=samples,
        cpu_ms_per_sample=0.1,
        gpus=("GPU 0",),
        server_gpus=("GPU 0",) if owned else (),
        server=MemoryUse(peak_bytes=98 << 30, steady_bytes=98 << 30, how="NVML, by process"),
        sm_mhz={"GPU 0": SampleSpread(min=208, mean=mhz, max=mhz)},
        held_back=held or {},
    )


SERVER, SPARK, STARVED = read_nvml("h200"), read_nvml("gb10"), read_files("dgx_spark")
ORIN, THOR = read_files("agx_orin"), read_files("agx_thor")
FULL = merge_states((SPARK, STARVED))
CAPPED = replace(SERVER, power_caps={"GPU 0": PowerCap(now_w=350, default_w=700)})

OF_STATES: dict[str, tuple[RunEvidence, str]] = {
    "gpu-clock-low": (
        run(state_before=SPARK, sensed=sensed(611)),
        "GPU 0 ran at 611 of 3,003 MHz at most, and reports no reason"),
    "gpu-throttled": (
        run(state_before=SERVER, sensed=sensed(1980, held={"GPU 0: hardware thermal slowdown": 0.06})),
        "GPU 0: hardware thermal slowdown in 6 % of samples"),
    "power-cap": (run(state_before=CAPPED), "GPU 0 may draw 350 W of 700 W by default"),
    "board-clock": (run(state_before=ORIN, sensed=sensed(612)),
                    "17000000.gpu may run at 612 of 1,300 MHz in power mode MODE_30W (2)"),
    "clocks-not-pinned": (
        run(
            state_before=replace(
                ORIN,
                clocks={"17000000.gpu": ClockState(limit_mhz=1300.5, most_mhz=1300.5, pinned=False)},
            ),
            sensed=sensed(1300),
        ),
        "17000000.gpu is not pinned"),
    "page-cache": (run(state_before=FULL, sensed=sensed(2400)),
                   "86.5 of 119.7 GiB of shared memory are page cache, 3.0 GiB are free"),
    "gpu-memory-unknown": (run(state_before=SPARK), "GPU 0 (NVIDIA GB10) reports no memory in use"),
}  # fmt: skip

SOUND_STATES = {
    "a server's GPUs at their best": run(state_before=SERVER, sensed=sensed(1980), state_after=SERVER),
    "a DGX Spark at its clocks": run(state_before=SPARK, sensed=sensed(2400)),
    "a run too short for clocks to rise": run(state_before=SPARK, sensed=sensed(208, samples=2)),
    "a GPU at its power limit": run(state_before=SPARK, sensed=sensed(900, held={"GPU 0: power limit": 1.0})),
    "a GPU that was warm for a moment": run(
        state_before=SERVER, sensed=sensed(1980, held={"GPU 0: hardware thermal slowdown": 0.05})
    ),
    "an idle GPU that does not serve": run(state_before=SERVER, sensed=sensed(345, owned=False)),
    "GPU clocks pinned low": run(
        state_before=replace(SERVER, clocks={"GPU 0 SM": ClockState(most_mhz=1980, pinned=True)}),
        sensed=sensed(600),
    ),
    "a power cap within a tenth": run(
        state_before=replace(SERVER, power_caps={"GPU 0": PowerCap(now_w=650, default_w=700)})
    ),
    "a Jetson with jetson_clocks": run(state_before=THOR, sensed=sensed(1575)),
    "page cache next to a GPU with its own memory": run(state_before=STARVED),
    "page cache that leaves room": run(state_before=replace(FULL, free_bytes=40 << 30), sensed=sensed(2400)),
    "a machine that reports nothing": run(state_before=MachineState(), state_after=MachineState()),
}
