"""Processes: run a command and measure the CPU time of its whole process tree."""

from __future__ import annotations

import compileall
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_LONGEST_LINE = 200
_RSS_UNIT = 1024  # bytes, of ru_maxrss on Linux


class CouldNotRun(Exception):
    """A command that the benchmarks need did not run; the message is which one, and why."""


@dataclass(frozen=True)
class Command:
    """What to start; `env` is added to this process's environment."""

    argv: Sequence[str]
    env: Mapping[str, str]


@dataclass(frozen=True)
class Cost:
    """The cost of a finished command; `spawned_ns` is CLOCK_MONOTONIC right before it was started."""

    spawned_ns: int
    wall_s: float
    cpu_s: float  # user and system, of the process and every descendant it waited for
    stdout: str
    peak_rss_bytes: int  # of the largest of them


def compile_checkout() -> None:
    """Compile to bytecode, as an installed package is, even where the environment disables it."""
    for package in (ROOT / "loadgen", ROOT / "servers"):
        compileall.compile_dir(package, quiet=1)


def checkout_env() -> dict[str, str]:
    """The environment in which an interpreter imports this checkout, installed or not."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "servers"), os.environ.get("PYTHONPATH", "")])
    return {"PYTHONPATH": path.rstrip(os.pathsep)}


def run(command: Command, limit_s: float = 300.0) -> Cost:
    """Run a command to its end; raises CouldNotRun when it fails or takes longer than `limit_s`.

    wait4(2) reports the child together with the descendants that it waited for, so a client that
    forks is charged for both of its processes.
    """
    spawned_ns = time.monotonic_ns()
    try:
        child = subprocess.Popen(
            list(command.argv),
            env={**os.environ, **command.env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise CouldNotRun(f"{Path(command.argv[0]).name} did not start: {error.strerror}") from None
    alarm = threading.Timer(limit_s, os.killpg, (child.pid, signal.SIGKILL))
    alarm.daemon = True
    alarm.start()
    try:
        assert child.stdout is not None
        with child.stdout as pipe:
            stdout = pipe.read().decode("utf-8", "replace")
        _, status, usage = os.wait4(child.pid, 0)
    finally:
        alarm.cancel()
    child.returncode = os.waitstatus_to_exitcode(status)
    wall_s = (time.monotonic_ns() - spawned_ns) / 1e9
    if child.returncode:
        last_line = (stdout.strip().splitlines() or [""])[-1][:_LONGEST_LINE]
        raise CouldNotRun(f"{Path(command.argv[0]).name} exited with {child.returncode}: {last_line}")
    return Cost(spawned_ns, wall_s, usage.ru_utime + usage.ru_stime, stdout, usage.ru_maxrss * _RSS_UNIT)


def other_processes_cpu_s() -> float:
    """CPU seconds of all processes but this one and its children; only differences are meaningful.

    The machine's busy and stolen time is in /proc/stat in ticks of 10 ms; 0 where that does not exist.
    """
    try:
        words = Path("/proc/stat").read_text("ascii").split("\n", 1)[0].split()[1:9]
    except OSError:
        return 0.0
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, words)
    busy_s = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return busy_s - sum(usage.ru_utime + usage.ru_stime for usage in own)
