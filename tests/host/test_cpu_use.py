"""CPU use: what others took of the CPUs, from what the kernel counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from builders.loops import loop_over
from builders.required import require
from loadgen.host import cpu_use
from loadgen.host.cpu_use import CpuTimes, CpuWatch, ProcessTime

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


def test_without_pressure_stall_information_the_line_ends_before_it() -> None:
    use = require(cpu_use.subtract_times(BEFORE, replace(AFTER, waiting_us=None), server_known=True))
    assert use.waiting is None
    assert cpu_use.format_use(use).endswith("other processes 0.75")


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
