"""The machine: what is reported of it and never is, who uses its CPUs, and how two of its states differ."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from builders import made_cases as made
from builders.loops import loop_over, loop_over_named, read_tables
from builders.recorded_sensors import RecordedNvml, tree
from builders.required import require
from loadgen.base.secrecy import hide_argument_secrets, hide_secrets
from loadgen.facts.run_facts import Facts, mask_texts
from loadgen.host import cpu_use, environment
from loadgen.host.cpu_use import CpuTimes, CpuWatch, ProcessTime
from loadgen.host.environment import (
    ThrottlingState,
    explain_throttling,
    read_throttling_state,
    start_git,
)
from loadgen.host.machine_state import (
    MachineState,
    list_setting_differences,
    list_state_differences,
)
from loadgen.host.nvml import Gpus

TABLES = read_tables("environment")


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


def read_state(told: dict[str, Any], root: Path) -> ThrottlingState:
    """The state of a machine with these files and GPUs."""
    nvml = RecordedNvml("h200")
    nvml.said["devices"] = told.get("devices")
    found = read_throttling_state(
        tree(root, told.get("files", "")),
        lambda: Gpus(nvml).read_state(()) if "devices" in told else MachineState(),
    )
    counters = {path.removeprefix(str(root)): count for path, count in found.counters.items()}
    return ThrottlingState(counters, found.held)


@loop_over_named(("before", "after", "said"), TABLES["throttling"])
def test_a_machine_that_is_held_back_says_by_what(
    before: dict[str, Any], after: dict[str, Any], said: list[str], tmp_path: Path
) -> None:
    """At the end, or by a count that rose in the run."""
    states = [read_state(told, tmp_path / str(n)) for n, told in enumerate((before, after))]
    assert [*explain_throttling(*states)] == said


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
    assert all(facts[name] for name in ("os", "platform", "machine", "cpu", "cpus", "python"))
    assert facts["memory"].endswith(" GiB")
    assert float(facts["memory"].split()[0]) > 0


GIB = 1 << 30
STATES = read_tables("machine_state")
COOL = msgspec.convert(STATES["cool"], MachineState)


@loop_over_named(("changes", "differences"), STATES["differences"])
def test_states_differ_in(changes: dict[str, Any], differences: list[list[str]]) -> None:
    other = msgspec.convert({**STATES["cool"], **changes}, MachineState)
    assert [*map(list, list_state_differences(COOL, other))] == differences
    assert list_state_differences(other, COOL) == [(what, b, a) for what, a, b in differences]


def test_the_page_cache_counts_where_the_gpu_shares_the_memory() -> None:
    shared = replace(COOL, unified=True, free_bytes=100 * GIB)
    full = replace(shared, page_cache_bytes=90 * GIB, free_bytes=12 * GIB)
    assert list_state_differences(shared, full) == [("page cache in unified memory", "2.0 GiB", "90.0 GiB")]
    assert list_state_differences(shared, replace(full, free_bytes=60 * GIB)) == []


def test_heat_and_memory_are_no_settings() -> None:
    hot = replace(COOL, temperature_c={"GPU 0": 90}, swap_bytes=9 * GIB, copy_gb_per_s=1.0)
    assert list_setting_differences(COOL, hot) == []
    assert list_setting_differences(COOL, replace(hot, driver="590.1")) == [
        ("GPU driver", "580.142", "590.1")
    ]


def test_pinned_clocks_differ_by_their_value() -> None:
    pinned = replace(COOL.clocks["GPU 0 SM"], pinned=True)
    a, b = (replace(COOL, clocks={"GPU 0 SM": replace(pinned, now_mhz=mhz)}) for mhz in (2400, 1200))
    assert list_state_differences(a, b) == [("GPU 0 SM clock", "2,400 MHz", "1,200 MHz")]


def test_a_state_is_stored_with_the_run() -> None:
    facts = replace(made.run().facts, state_before=COOL)
    stored = Facts.read_stored(json.loads(facts.encode()))
    assert (stored.state_before, stored.state_after) == (COOL, None)
    assert mask_texts(facts, lambda value: value).state_before == COOL


BEFORE = CpuTimes(
    at_ns=0,
    ticks=1000,
    busy_s={0: 10.0, 1: 20.0, 2: 5.0},
    server={10: ProcessTime(100.0, 50), 11: ProcessTime(7.0, 60)},
    ours={},
    own_s=3.0,
    waiting_us=1_000_000,
    allowed=frozenset({0, 1}),
)
AFTER = CpuTimes(
    at_ns=10 * 10**9,
    ticks=2000,
    busy_s={0: 19.0, 1: 30.0, 2: 15.0},
    server={10: ProcessTime(108.0, 50), 12: ProcessTime(1.0, 1500)},
    ours={20: ProcessTime(2.0, 1001)},
    own_s=3.5,
    waiting_us=6_000_000,
    allowed=frozenset({0, 1}),
)


def test_others_are_what_neither_server_nor_client_took() -> None:
    use = require(cpu_use.subtract_times(BEFORE, AFTER, server_known=False))
    assert (use.duration_s, use.cpus, use.server, use.client, use.waiting) == (10, 2, 0.9, 0.25, 0.5)
    assert use.others == pytest.approx(0.75)
    assert use.busy == pytest.approx(1.9)
    assert cpu_use.format_use(use) == (
        "busy CPUs of 2: server 0.90, client 0.25, other processes 0.75; "
        "a process waited for one 50 % of the time"
    )
    use = require(cpu_use.subtract_times(BEFORE, replace(AFTER, waiting_us=None), server_known=True))
    assert use.waiting is None
    assert cpu_use.format_use(use).endswith("other processes 0.75")


def test_a_process_that_has_the_number_of_an_earlier_one_is_another() -> None:
    after = replace(AFTER, server={10: ProcessTime(4.0, 1900)})
    use = require(cpu_use.subtract_times(BEFORE, after, server_known=False))
    assert use.server == 0.4
    unseen = replace(AFTER, server={13: ProcessTime(900.0, 2)})  # it was there before, and not found then
    use = require(cpu_use.subtract_times(BEFORE, unseen, server_known=False))
    assert use.server == 0.0


@loop_over(("server_known", "others"), [(False, None), (True, pytest.approx(1.65))])
def test_where_the_servers_processes_are_unknown_so_are_the_others(server_known: bool, others: float) -> None:
    nowhere = [replace(times, server={}) for times in (BEFORE, AFTER)]
    use = require(cpu_use.subtract_times(nowhere[0], nowhere[1], server_known))
    assert (use.server, use.others) == (None, others)
    assert ("other processes" in cpu_use.format_use(use)) is server_known


def proc(directory: Path, stat: str | None, pressure: str | None) -> Path:
    for name, text in (("stat", stat), ("pressure/cpu", pressure)):
        if text is not None:
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(text, "utf-8")
    (directory / "41").mkdir()
    numbers = ["S", *["0"] * 10, "250", "50", "40", "60", *["0"] * 4, "777", "0"]
    (directory / "41" / "stat").write_text(f"41 (a b) c) {' '.join(numbers)}\n", "utf-8")
    return directory


STAT = "cpu  9 9 9 9 0 0 0 0 0 0\ncpu0 100 20 30 999 5 7 8 0 0 0\ncpu1 0 0 1 0 0 0 0 0 0 0\nintr 5\n"
SOME = "some avg10=1.00 avg60=0.00 avg300=0.00 total=12345\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"


@loop_over(
    ("stat", "pressure", "busy_s", "waiting_us"),
    [
        (STAT, SOME, {0: 1.5, 1: 0.01}, 12345),
        (STAT, None, {0: 1.5, 1: 0.01}, None),  # a container, or a kernel without it
        (STAT, "some total=x\n", {0: 1.5, 1: 0.01}, None),
        (None, None, {}, None),
    ],
)
def test_what_the_kernel_counts_is_read_as_far_as_it_is_there(
    stat: str | None, pressure: str | None, busy_s: dict[int, float], waiting_us: int | None, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(cpu_use, "_ticks_per_s", lambda: 100)
    times = cpu_use.read_times((41, 42), proc(tmp_path, stat, pressure))
    assert (times.busy_s, times.waiting_us) == (busy_s, waiting_us)
    assert times.server == {41: ProcessTime(4.0, 777)}
    if stat is None:
        assert (
            cpu_use.subtract_times(times, replace(times, at_ns=times.at_ns + 10**9), server_known=True)
            is None
        )


def test_a_watch_whose_readings_fail_has_no_use() -> None:
    def pids() -> tuple[int, ...]:
        raise OSError("gone")

    watch = CpuWatch(pids)
    with watch.sampling():
        pass
    assert watch.use is None
