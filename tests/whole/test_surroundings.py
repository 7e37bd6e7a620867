"""Broken surroundings: terminals, signals, kills, suspensions and disks cost no finished request."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fakes.scripted_server import stream
from fakes.surroundings import (
    OUTPUT,
    TALKATIVE,
    Ended,
    Service,
    argv,
    assert_adds_up,
    ended,
    members,
    report,
    run_directory,
    shell,
    started,
    succeeded,
    whole,
)
from loadgen.report import run_directory as result
from loadgen.report.run_directory import RESULT
from loadgen.transport.failure import FailureKind

pytestmark = [
    pytest.mark.whole,
    pytest.mark.skipif(sys.platform != "linux", reason="/proc, /dev/full and mounts are Linux's"),
]
FIGURES, UNWRITTEN = 0, 4
BLOCK = "Serving Benchmark Result"


@pytest.fixture
def service() -> Iterator[Service]:
    with Service().serving() as served:
        yield served


def said_well(found: Ended) -> None:
    assert "Traceback" not in found.err
    assert "Error" not in found.err


@pytest.mark.parametrize(("line", "codes"), [
    # What could not be printed could not be written: a disk may be behind it.
    pytest.param('"$@" >/dev/full', {FIGURES, UNWRITTEN}, id="stdout is full"),
    pytest.param('"$@" | head -1; exit ${PIPESTATUS[0]}', {FIGURES}, id="stdout is read no further"),
    pytest.param('"$@" >&-', {FIGURES, UNWRITTEN}, id="stdout is closed"),
    pytest.param('"$@" 2>&-', {FIGURES}, id="stderr is closed"),
    pytest.param('"$@" >&- 2>&-', {FIGURES, UNWRITTEN}, id="both are closed"),
    pytest.param('"$@" <&- >&- 2>&-', {FIGURES, UNWRITTEN}, id="all are closed"),
    pytest.param('"$@" 2>/dev/full', {FIGURES, UNWRITTEN}, id="stderr is full"),
    pytest.param('"$@" >/dev/full 2>/dev/full', {FIGURES, UNWRITTEN}, id="both are full"),
    pytest.param(
        '"$@" 2>&1 | head -c 1; exit ${PIPESTATUS[0]}', {FIGURES}, id="both go to a closed pipe"
    ),
])  # fmt: skip
def test_a_broken_output_costs_words_and_no_figure(
    line: str, codes: set[int], service: Service, tmp_path: Path
) -> None:
    words = argv(service.base_url, 8, code=TALKATIVE)
    found = shell(line, tmp_path, words)
    assert found.code in codes, found
    said_well(found)
    assert assert_adds_up(whole(tmp_path), 8)["completed"] == 8


@pytest.mark.parametrize("environ", [
    {"PYTHONIOENCODING": "ascii"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"PYTHONIOENCODING": "latin-1:strict"},
], ids=["ascii", "the C locale", "latin-1"])  # fmt: skip
def test_a_terminal_without_our_characters_gets_others(
    environ: dict[str, str], service: Service, tmp_path: Path
) -> None:
    label = "café × 模型"
    found = ended(
        started(argv(service.base_url, 8, "--quiet", "--explain", "--label", label), tmp_path, **environ)
    )
    assert found.code == FIGURES, found
    said_well(found)
    assert BLOCK in found.out
    run = whole(tmp_path)
    assert run.facts.label is not None
    assert assert_adds_up(run, 8)["completed"] == 8


SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


@pytest.mark.parametrize("group", [False, True], ids=["the client alone", "its group"])
@pytest.mark.parametrize("number", SIGNALS, ids=[number.name for number in SIGNALS])
def test_a_signal_in_mid_run_keeps_what_has_finished(
    number: signal.Signals, group: bool, service: Service, tmp_path: Path
) -> None:
    planned = 10_000
    client = started(argv(service.base_url, planned, "--quiet"), tmp_path)
    service.until(12)
    before = service.read_before(time.monotonic())
    (os.killpg if group else os.kill)(client.pid, number)
    found = ended(client)
    assert found.code == SIGNALS[number], found
    said_well(found)
    assert found.out.startswith("PARTIAL")
    assert BLOCK in found.out
    run = whole(tmp_path)
    assert run.facts.interrupted
    figures = assert_adds_up(run, planned)
    assert figures["completed"] >= before > 0
    assert figures["kinds"] <= {FailureKind.CANCELLED}


@pytest.mark.parametrize("number", SIGNALS, ids=[number.name for number in SIGNALS])
def test_a_signal_after_the_last_answer_keeps_the_run(number: signal.Signals, tmp_path: Path) -> None:
    """Between the last response and the last file; the run is kept, whatever the exit code says."""
    with Service(lambda _: stream(OUTPUT)).serving() as service:
        client = started(argv(service.base_url, 30, "--quiet"), tmp_path)
        service.until(30)
        time.sleep(0.05)
        client.send_signal(number)
        found = ended(client)
    assert found.code in (FIGURES, SIGNALS[number]), found
    said_well(found)
    # Ended while it was interpreted, the run is in its journal, and the last line says how to see it.
    assert len(result.load(run_directory(tmp_path)).records) == 30
    assert (run_directory(tmp_path) / RESULT).exists() or "loadgen report" in found.err, found


@pytest.mark.parametrize("victims", ["parent", "capturing process", "both"])
def test_after_kill_9_the_report_has_what_finished_a_second_before(
    victims: str, service: Service, tmp_path: Path
) -> None:
    planned = 10_000
    client = started(argv(service.base_url, planned, "--quiet"), tmp_path)
    service.until_journalled(40)
    at_s = time.monotonic()
    parent, *children = members(client.pid)
    for pid in {"parent": [parent], "both": [parent, *children]}.get(victims, children):
        os.kill(pid, signal.SIGKILL)
    found = ended(client)
    due = service.journalled(at_s)
    said = report(tmp_path)
    assert said.code == FIGURES, said
    said_well(said)
    assert said.out.startswith("PARTIAL")
    assert f"of {planned}" in said.out
    assert succeeded(said.out) >= due
    if victims == "capturing process":
        assert found.code == 1
        assert found.out.startswith("PARTIAL")
        assert_adds_up(whole(tmp_path), planned)
    else:
        assert found.code == -signal.SIGKILL
        assert not (run_directory(tmp_path) / RESULT).exists()


def test_a_stopped_client_blames_itself(service: Service, tmp_path: Path) -> None:
    """Ctrl-Z, a paused container, a lid that is closed: longer than --stall-timeout, and no stall."""
    client = started(argv(service.base_url, 60, "--quiet", "--stall-timeout", "2"), tmp_path)
    service.until(12)
    stopped = members(client.pid)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(3.5)
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    found = ended(client)
    assert found.code == FIGURES, found
    run = whole(tmp_path)
    assert assert_adds_up(run, 60) == {"completed": 60, "failed": 0, "kinds": set()}
    assert "client-stopped" in {one.rule.code for one in run.verdict.findings}


# Disks.


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """A file system of so many bytes; skips where none may be mounted."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(place)]
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root may mount")
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("nothing may be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def fill(path: Path) -> None:
    """Write until nothing more goes."""
    with path.open("wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


def assert_told(found: Ended, completed: int) -> None:
    """The report is printed whole; the exit code and a line say what is missing."""
    assert found.code == UNWRITTEN, found
    said_well(found)
    assert BLOCK in found.out
    assert succeeded(found.out) == completed
    lines = [line for line in found.err.splitlines() if line.startswith("loadgen: ")]
    assert any(RESULT in line or "arrivals.npz" in line or "journal.bin" in line for line in lines), found.err


@pytest.mark.parametrize("size", ["64k", "256k"])
def test_a_disk_that_fills_in_mid_run_costs_files_and_no_figure(
    size: str, service: Service, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", size) as disk:
        client = started(argv(service.base_url, 60, "--quiet", "--run-dir", str(disk / "runs")), tmp_path)
        service.until(12)
        fill(disk / "filler")
        found = ended(client)
        assert_told(found, 60)
        directory = run_directory(disk)
        assert not (directory / RESULT).exists() or (directory / RESULT).stat().st_size > 0


def test_a_disk_that_has_room_again_is_tried_once_more(service: Service, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "2m") as disk:
        client = started(argv(service.base_url, 60, "--quiet", "--run-dir", str(disk / "runs")), tmp_path)
        service.until(12)
        fill(disk / "filler")
        service.until(40)
        (disk / "filler").unlink()
        found = ended(client)
        assert found.code == FIGURES, found
        assert assert_adds_up(whole(disk), 60)["completed"] == 60


def test_a_directory_that_takes_no_more_files_costs_files_and_no_figure(
    service: Service, tmp_path: Path
) -> None:
    """As a disk that is remounted read-only, which the kernel refuses while the journal is open."""
    client = started(argv(service.base_url, 60, "--quiet"), tmp_path)
    service.until(12)
    directory = run_directory(tmp_path)
    if subprocess.run(["chattr", "+i", str(directory)], capture_output=True, check=False).returncode:
        ended(client)
        pytest.skip("no directory can be made immutable here")
    try:
        found = ended(client)
        assert_told(found, 60)
    finally:
        subprocess.run(["chattr", "-i", str(directory)], check=True)
    said = report(tmp_path)  # the journal has it all
    assert said.code == FIGURES, said
    assert succeeded(said.out) == 60


def test_a_directory_that_is_removed_costs_files_and_no_figure(service: Service, tmp_path: Path) -> None:
    client = started(argv(service.base_url, 60, "--quiet"), tmp_path)
    service.until(12)
    shutil.rmtree(tmp_path / "runs")
    found = ended(client)
    assert found.code in (FIGURES, UNWRITTEN), found
    said_well(found)
    assert BLOCK in found.out
