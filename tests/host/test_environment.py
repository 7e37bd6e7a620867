"""The environment: what is told of the machine, and what is never told."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from builders.loops import loop_over, loop_over_named, read_tables
from builders.recorded_sensors import RecordedNvml
from loadgen.base.secrecy import hide_argument_secrets, hide_secrets
from loadgen.host import environment
from loadgen.host.environment import (
    ThrottlingState,
    explain_throttling,
    read_throttling_state,
    start_git,
)
from loadgen.host.machine_state import MachineState
from loadgen.host.nvml import Gpus

TABLES = read_tables("environment")

POLICY = "/sys/devices/system/cpu/cpu0/cpufreq"
THERMAL = "/sys/devices/system/cpu/cpu{}/thermal_throttle/{}_throttle_count"


@loop_over(("typed", "shown"), TABLES["commands"])
def test_no_secret_is_in_the_command_that_is_kept(typed: list[str], shown: list[str]) -> None:
    assert hide_argument_secrets(typed) == shown


@loop_over(
    ("text", "shown"),
    [
        ("{'api_key': ['a', 'b'], 'port': 1}", "{'api_key': ***, 'port': 1}"),
        ("Namespace(api_key='a b', port=1)", "Namespace(api_key=***, port=1)"),
        ("ServerArgs(api_key=None, hf_token='x', port=1)", "ServerArgs(api_key=None, hf_token=***, port=1)"),
        ('{"admin_api_key": "x", "port": 1}', '{"admin_api_key": ***, "port": 1}'),
    ],
)
def test_no_secret_is_in_a_servers_own_account(text: str, shown: str) -> None:
    assert hide_secrets(text) == shown


def test_the_system_and_its_memory_are_told() -> None:
    facts = environment.describe_machine()
    assert facts["os"]
    assert facts["memory"].endswith(" GiB")
    assert float(facts["memory"].split()[0]) > 0


def git(place: Path, *words: str) -> str:
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    own |= {f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    command = ("git", "-C", str(place), *words)
    return subprocess.run(command, env=own, check=True, capture_output=True, text=True).stdout.strip()


def read_commit(place: Path) -> str:
    with start_git(place) as read:
        return read()


@pytest.mark.whole
def test_a_checkout_names_its_commit_and_whether_it_is_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "--no-gpg-sign", "-m", "first")
    git(tmp_path, "tag", "v1")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    commit = git(tmp_path, "rev-parse", "--short", "HEAD")
    assert read_commit(tmp_path) == commit
    (tmp_path / "untracked").write_text("1")
    assert read_commit(tmp_path) == commit
    (tmp_path / "file").write_text("2")
    assert read_commit(tmp_path) == f"{commit}+dirty"


@pytest.mark.whole
def test_an_installed_package_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_commit(tmp_path) == ""
    (tmp_path / ".git").write_text("gitdir: nowhere")
    assert read_commit(tmp_path) == ""
    monkeypatch.setenv("PATH", "")
    assert read_commit(tmp_path) == ""


@dataclass(frozen=True)
class Recorded:
    """A machine's files as they were once."""

    files: Mapping[str, str] = field(default_factory=dict)
    nvml: RecordedNvml | None = None

    def read(self) -> ThrottlingState:
        with tempfile.TemporaryDirectory() as root:
            for path, text in self.files.items():
                file = Path(root) / path.lstrip("/")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            found = read_throttling_state(
                Path(root), lambda: MachineState() if self.nvml is None else Gpus(self.nvml).read_state(())
            )
            counters = {path.removeprefix(root): count for path, count in found.counters.items()}
            return ThrottlingState(counters, found.held)


def cpu(governor: str, driver: str, limit: str = "3400000") -> Recorded:
    files = {"scaling_governor": governor, "scaling_driver": driver, "scaling_max_freq": limit}
    files["cpuinfo_max_freq"] = "3400000"
    return Recorded({f"{POLICY}/{name}": text for name, text in files.items()})


def cooled(kind: str, state: str) -> Recorded:
    place = "/sys/class/thermal/cooling_device0"
    return Recorded({f"{place}/type": kind, f"{place}/cur_state": state})


def jetson(mode: str, gpu: int = 1300500000, known: str = "< POWER_MODEL ID=0 NAME=MAXN >") -> Recorded:
    """A board in a mode of number 1, whose GPU's clock is pinned, and that of its memory is not."""
    clocks = {"17000000.gpu": (gpu, 1300500000, 1300500000), "bwmgr": (2133000000, 204000000, 3199000000)}
    files = {
        f"/sys/class/devfreq/{name}/{what}_freq": str(hertz)
        for name, each in clocks.items()
        for what, hertz in zip(("cur", "min", "max"), each, strict=True)
    }
    modes = f"{known}\n< POWER_MODEL ID=1 NAME={mode} >"
    return Recorded({**files, "/etc/nvpmodel.conf": modes, "/var/lib/nvpmodel/status": "pmode:0001"})


@loop_over_named(
    ("after", "said"),
    {
        "nothing to read": (Recorded(), ()),
        "performance": (cpu("performance", "acpi-cpufreq"), ()),
        "a driver that chooses by itself": (cpu("powersave", "intel_pstate"), ()),
        "a clock by need": (cpu("schedutil", "tegra194"), ()),
        "the lowest clock": (
            cpu("powersave", "acpi-cpufreq"),
            ("CPU governor powersave (acpi-cpufreq) keeps the lowest clock",),
        ),
        "a limit on the clock": (
            cpu("performance", "intel_pstate", "1700000"),
            ("CPU limited to 1.70 of 3.40 GHz",),
        ),
        "a fan": (cooled("pwm-fan", "3"), ()),
        "cool": (cooled("cpufreq-cpu0", "0"), ()),
        "hot": (cooled("Processor", "2"), ("the kernel slows Processor down to cool it",)),
        "Jetson at its best": (jetson("MAXN_SUPER"), ()),
        "Jetson below its best": (jetson("30W"), ("Jetson power mode 30W, below MAXN",)),
        "a Jetson without MAXN": (jetson("20W", known="< POWER_MODEL ID=0 NAME=20W >"), ()),
        "a pinned clock not held": (
            jetson("MAXN", 900000000),
            ("17000000.gpu clock pinned at 1300 MHz runs at 900",),
        ),
    },
)
def test_a_machine_held_back_at_the_end_says_by_what(after: Recorded, said: tuple[str, ...]) -> None:
    assert explain_throttling(ThrottlingState(), after.read()) == said


def counts(**of: str) -> Recorded:
    names = {"core": THERMAL.format(0, "core"), "other": THERMAL.format(1, "core")}
    names["power"] = "/sys/class/hwmon/hwmon3/oc2_event_cnt"
    return Recorded({names[name]: count for name, count in of.items()})


@loop_over_named(
    ("before", "after", "said"),
    {
        "throttled long ago": (counts(core="7"), counts(core="7"), ()),
        "in the run": (
            counts(core="7", other="0"),
            counts(core="9", other="5"),
            ("the CPU throttled for heat 5 times",),
        ),
        "unknown before": (counts(), counts(core="9"), ()),
        "over-current": (
            counts(power="0"),
            counts(power="1"),
            ("the power supply throttled for over-current 1 times",),
        ),
    },
)
def test_a_count_that_rose_in_the_run_throttled(
    before: Recorded, after: Recorded, said: tuple[str, ...]
) -> None:
    assert explain_throttling(before.read(), after.read()) == said


def gpus(*devices: tuple[int, int | str], query: str = "Event") -> Recorded:
    """GPUs that answer a query of clock reasons with these, and a counter of thermal slowdown in ns."""
    nvml = RecordedNvml("h200")
    nvml.said["devices"] = [
        {f"CurrentClocks{query}Reasons": mask, "ViolationStatus": count} for mask, count in devices
    ]
    return Recorded(nvml=nvml)


@loop_over_named(
    ("before", "after", "said"),
    {
        "power limit and idle": (gpus((0x04, 10)), gpus((0x01, 10)), ()),
        "a count of the second one": (
            gpus((0x01, 10_000), (0x01, 0)),
            gpus((0x01, 10_000), (0x01, 900_000)),
            ("GPU 1: thermal slowdown for 900 µs",),
        ),
        "at this moment": (
            gpus((0x01, 0)),
            gpus((0x60, 0)),
            ("GPU 0: software thermal slowdown", "GPU 0: hardware thermal slowdown"),
        ),
        "not counted": (gpus((0x01, "Not Supported")), gpus((0x01, "Not Supported")), ()),
    },
)
def test_a_gpu_says_why_it_was_slow(before: Recorded, after: Recorded, said: tuple[str, ...]) -> None:
    assert explain_throttling(before.read(), after.read()) == said


@loop_over("query", ["Event", "Throttle"])
def test_a_driver_without_counters_tells_its_reasons(query: str) -> None:
    after = gpus((0x80, "Not Supported"), query=query).read()
    assert explain_throttling(ThrottlingState(), after) == ("GPU 0: power brake",)


@pytest.mark.whole
def test_the_machine_at_hand_answers_without_a_fault() -> None:
    began = time.perf_counter()
    assert (
        explain_throttling(read_throttling_state(), read_throttling_state()) == read_throttling_state().held
    )
    assert time.perf_counter() - began < 60.0


def test_the_environment_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process")

    monkeypatch.setattr("subprocess.Popen", refuse)
    monkeypatch.setattr("os.posix_spawn", refuse)
    facts = environment.describe_machine()
    assert all(facts[name] for name in ("platform", "machine", "cpu", "cpus", "python"))
