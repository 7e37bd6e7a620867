"""Real Ray: a plan sent from three nodes is that of one process; what is killed is named."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

import loadgen
from builders.required import require
from loadgen.report.run import Run
from loadgen.run.command.progress import LiveTotals
from loadgen_servers.process.embedded import Embedded

pytest.importorskip("ray")
pytestmark = [pytest.mark.whole, pytest.mark.timeout(400)]  # the first waits for the cluster too
TESTS = Path(__file__).parents[1]
SHARDS, LIMIT_S = 3, 150.0
MARK = "LOADGEN_RAY_TEST"
LOAD = ["--input-len", "12", "--output-len", "6", "--num-warmups", "2", "--seed", "7"]
CODE = """
import sys, loadgen
run = loadgen.bench(sys.argv[1], cluster=sys.argv[2], shards=3, run_dir=sys.argv[3], num_prompts=60,
    input_len=12, output_len=6, num_warmups=2, max_concurrency=9, seed=7)
print(len(run.result.records))
"""


@dataclass
class Nodes:
    """The cluster, its process, where its shards keep what they have, and the server they send to."""

    process: subprocess.Popen[str]
    address: str
    apart: bool  # the last node has a clock of its own
    place: Path
    base_url: str

    def kill_one(self) -> None:
        print("kill", file=require(self.process.stdin), flush=True)

    def sent(self) -> list[int]:
        """What each shard that is under way has sent."""
        return [LiveTotals(path).read().sent for path in self.place.glob("loadgen-shard-*/totals")]

    def left(self) -> list[str]:
        """The processes of shards that run."""
        commands = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                environment = (process / "environ").read_bytes()
                words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if "shard_process" in words and f"{MARK}={self.place}".encode() in environment:
                commands.append(words)
        return commands


def start_nodes(environment: dict[str, str], errors: IO[str], tries: int = 3) -> tuple[Any, Any]:
    """The cluster's process and its first line, if there is one: Ray gives each node but 30 s to start."""
    process = subprocess.Popen(
        [sys.executable, "-m", "fakes.ray_nodes"], cwd=TESTS, env=environment, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
    )  # fmt: skip
    ready = next((json.loads(line) for line in require(process.stdout) if line.startswith("{")), None)
    if ready is not None or tries == 1:
        return process, ready
    end_nodes(process)
    return start_nodes(environment, errors, tries - 1)


def end_nodes(process: subprocess.Popen[str]) -> None:
    """End the cluster by the end of its input; Ray's own end takes long on a slow machine."""
    require(process.stdin).close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(15)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(15)
    require(process.stdout).close()


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    place = Path(tempfile.mkdtemp(prefix="lg"))  # Ray's sockets have short names
    environment = {
        "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_TMPDIR": str(place), "TMPDIR": str(place), MARK: str(place),
    }  # fmt: skip
    with ExitStack() as stack:
        # One cluster at a time: of two that start at once on a small machine, neither comes up.
        fcntl.flock(stack.enter_context(open(__file__)), fcntl.LOCK_EX)
        # Each process of Ray imports jsonschema, whose grammar takes 5 s; a node's agent has 15 s to start.
        (place / "without").mkdir()
        (place / "without" / "rfc3987_syntax.py").write_text("raise ImportError\n")
        stack.enter_context(pytest.MonkeyPatch.context()).setenv(
            "PYTHONPATH", str(place / "without"), os.pathsep
        )
        engine = stack.enter_context(Embedded(["--preset", "instant"]))
        errors = stack.enter_context((place / "errors").open("w+"))
        process, ready = start_nodes({**os.environ, **environment}, errors)
        stack.callback(end_nodes, process)
        assert ready is not None, (place / "errors").read_text()
        yield Nodes(process, ready["address"], ready["apart"], place, engine.start().base_url)
    shutil.rmtree(place, ignore_errors=True)


def begun(nodes: Nodes, runs: Path, *words: str) -> subprocess.Popen[str]:
    """The command, with its shards on the cluster, found as `ray job submit` has it."""
    command = [sys.executable, "-m", "loadgen", "bench", "--cluster", "auto", "--shards", str(SHARDS)]
    return subprocess.Popen(
        [*command, "--base-url", nodes.base_url, "--run-dir", str(runs), *LOAD, *words],
        env={**os.environ, "RAY_ADDRESS": nodes.address, "RAY_TMPDIR": str(nodes.place)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(command: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit code and what was printed; within a limit, else it is killed."""
    try:
        out, _ = command.communicate(timeout=LIMIT_S)
    finally:
        command.kill()
    return command.returncode, out


def the_run(runs: Path) -> Run:
    (directory,) = runs.iterdir()
    return loadgen.load(directory)


def until(condition: Callable[[], bool], command: subprocess.Popen[str]) -> None:
    """Wait for it while the command runs, within a limit."""
    for _ in range(int(LIMIT_S / 0.05)):
        if condition() or command.poll() is not None:
            return
        time.sleep(0.05)


def test_three_nodes_send_the_plan_of_one_process(nodes: Nodes, tmp_path: Path) -> None:
    words = ["--num-prompts", "60", "--max-concurrency", "9"]
    code, out = ended(begun(nodes, tmp_path / "three", *words))
    assert code == 0, out
    alone = [sys.executable, "-m", "loadgen", "bench", "--base-url", nodes.base_url, *LOAD, *words, "--quiet"]
    subprocess.run([*alone, "--run-dir", str(tmp_path / "one")], check=True, capture_output=True)
    three, one = the_run(tmp_path / "three").result, the_run(tmp_path / "one").result
    assert three.facts.plan_digest == one.facts.plan_digest
    assert three.facts.warmups == one.facts.warmups == 2
    for name in ("index", "planned_input", "planned_output", "input_tokens", "output_tokens"):
        assert np.array_equal(getattr(three.records, name), getattr(one.records, name)), name
    assert three.records.ok.all()
    assert set(three.records.slot.tolist()) == set(range(9))
    for name in ("completed", "total_input_tokens", "total_output_tokens"):
        assert getattr(three.metrics, name) == getattr(one.metrics, name), name
    assert three.facts.requests == one.facts.requests == 60
    assert [(shard.name, shard.requests) for shard in three.facts.shards] == [
        (f"{i}/3", 20) for i in range(3)
    ]
    assert not require(three.facts.window).error
    assert not nodes.left()


def test_the_api_sends_from_a_cluster_and_moves_clocks(nodes: Nodes, tmp_path: Path) -> None:
    words = [sys.executable, "-c", CODE, nodes.base_url, nodes.address, str(tmp_path)]
    environment = {**os.environ, "RAY_TMPDIR": str(nodes.place)}
    done = subprocess.run(
        words, env=environment, check=False, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "60\n", "")
    run = the_run(tmp_path).result
    sent = np.sort(run.records.sent_ns)
    assert sent[-1] - sent[0] < 60e9  # of one clock, this machine's
    assert abs(time.monotonic_ns() - sent[-1]) < LIMIT_S * 1e9
    moved = [shard for shard in run.facts.shards if shard.offset_ns]  # to the clock of the first
    assert len(moved) in ((1, SHARDS - 1) if nodes.apart else (0,))
    for shard in moved:
        assert abs(abs(shard.offset_ns) - 5000e9) < shard.error_ns < 10e6
        assert shard.reference == "the driver's clock"


def test_a_common_ctrl_c_leaves_what_all_shards_have(nodes: Nodes, tmp_path: Path) -> None:
    command = begun(nodes, tmp_path, "--num-prompts", "5000", "--request-rate", "50", "--shards", "4")
    until(lambda: sum(nodes.sent()) > 30, command)
    command.send_signal(signal.SIGINT)
    code, out = ended(command)
    assert code == 130, out
    run = the_run(tmp_path)
    assert run.partial
    assert 30 < len(run.result.records) < 4000
    assert len(run.result.facts.shards) == 4  # a second one on a node
    assert not nodes.left()


def test_a_node_killed_in_mid_run_is_lost_by_index(nodes: Nodes, tmp_path: Path) -> None:
    """The last test: afterwards there are two nodes."""
    command = begun(nodes, tmp_path, "--num-prompts", "600", "--request-rate", "60")
    until(lambda: sum(nodes.sent()) > 30, command)
    nodes.kill_one()
    code, out = ended(command)
    assert code == 1, out  # the run is not all that was asked for
    assert "verdict: SIMULATED, INVALID" in out
    run = the_run(tmp_path).result
    assert len(run.records) == 600
    lost = run.records.index[~run.records.ok]
    assert len(lost) == 200
    assert len(set((lost % SHARDS).tolist())) == 1
    assert {failure.kind for failure in run.records.failed} == {"lost"}
    (why,) = run.facts.lost
    assert "its 200 requests are lost (" in why
    assert {"load-lost", "rest-of-the-load"} <= {finding.rule.code for finding in run.verdict.findings}
    assert not nodes.left()
