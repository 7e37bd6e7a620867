"""Kills: `kill -9` at random times of a run, and which finished requests its journal still holds.

Run by hand: `python -m benchmarks.kills [--kills 100]`. A null server logs when it wrote each request's last
token. After each kill, of the parent, the capturing process, or both in turn, the run directory is read, and
every request that finished more than a second before the kill must be in it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import psutil

from benchmarks.harness.process import CouldNotRun, checkout_env
from benchmarks.harness.truth import Row, null_server
from loadgen.report import run_directory

_KEPT_NS = 1_000_000_000  # a request that ended this long before the kill must be kept
_LEAST_S, _MOST_S = 0.3, 3.5  # after the first request, when the kill comes
_START_S = 20.0
_SETTLED_S = 0.25
_VICTIMS = ("parent", "capturing process", "both")


class Logged(Row):
    """A request in the null server's log."""

    request_id: str


class Kill(msgspec.Struct, frozen=True):
    """One run that was killed."""

    prefix: str  # of its request ids
    at_ns: int
    victim: str
    indices: frozenset[int]  # requests in the run directory
    recovered: bool  # read from the journal


def killed(base_url: str, runs: Path, number: int, draw: random.Random) -> Kill:
    """Start a run, kill it at a random time, and read what is left; raises CouldNotRun."""
    prefix, place, victim = f"kill{number}-", runs / str(number), _VICTIMS[number % len(_VICTIMS)]
    argv = [sys.executable, "-m", "loadgen", "bench", "--base-url", base_url, "--run-dir", str(place)]
    argv += ["--request-id-prefix", prefix, "--quiet"]
    argv += ["--random-input-len", "16", "--random-output-len", "32"]
    argv += ["--num-prompts", "100000", "--max-concurrency", "32", "--num-warmups", "0", "--no-observe"]
    client = subprocess.Popen(
        argv, env={**os.environ, **checkout_env()}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        capturing = _capturing(client.pid)
        time.sleep(draw.uniform(_LEAST_S, _MOST_S))
        at_ns = time.monotonic_ns()
        if victim != "capturing process":
            client.send_signal(signal.SIGKILL)
        if victim != "parent":
            with contextlib.suppress(psutil.NoSuchProcess):  # it ends by itself when the parent has
                capturing.send_signal(signal.SIGKILL)
        client.wait(_START_S)
    finally:
        client.kill()
        client.wait()
    (directory,) = place.iterdir()
    run = run_directory.load(directory)
    ok = run.records.index[run.records.ok]
    return Kill(
        prefix, at_ns, victim, frozenset(ok.tolist()), not (directory / run_directory.RESULT).exists()
    )


def _capturing(pid: int) -> psutil.Process:
    """The client's capturing process, once it has one; raises CouldNotRun."""
    deadline = time.monotonic() + _START_S
    client = psutil.Process(pid)
    while time.monotonic() < deadline:
        for child in client.children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if time.time() - child.create_time() > _SETTLED_S and child.cmdline() == client.cmdline():
                    return child  # git, which is run for the version, has ended by then
        time.sleep(0.01)
    raise CouldNotRun("the client did not start to send")


def lost(kill: Kill, rows: list[Logged]) -> tuple[int, int]:
    """How many requests ended a second before the kill, and how many of these are not kept."""
    ours = [row for row in rows if row.request_id.startswith(kill.prefix)]
    due = [row for row in ours if row.wrote_ns[-1] < kill.at_ns - _KEPT_NS]
    indices = {int(row.request_id.removeprefix(kill.prefix)) for row in due}
    return len(indices), len(indices - kill.indices)


def main() -> int:
    """Kill as often as requested; 0 if nothing was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    draw = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as place:
        log = Path(place) / "log"
        with null_server(log, ttft_ms=100, interval_ms=10) as server:
            kills = [killed(server.base_url, Path(place) / "runs", n, draw) for n in range(args.kills)]
        rows = [msgspec.json.decode(line, type=Logged) for line in log.read_bytes().splitlines()]
    print("| killed | runs | read from the journal | finished > 1 s before | of these lost | kept in all |")
    print("| --- | --- | --- | --- | --- | --- |")
    missing = 0
    for victim in _VICTIMS:
        of_victim = [kill for kill in kills if kill.victim == victim]
        losses = [lost(kill, rows) for kill in of_victim]
        due, gone = sum(due for due, _ in losses), sum(gone for _, gone in losses)
        missing += gone
        journals, kept = (
            sum(kill.recovered for kill in of_victim),
            sum(len(kill.indices) for kill in of_victim),
        )
        print(f"| {victim} | {len(of_victim)} | {journals} | {due} | {gone} | {kept} |")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
