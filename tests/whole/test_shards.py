"""Shards: what several commands send of a plan is what one sends, and each report is true of its part."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loadgen
from fakes.counting_api import CountingApi, refuses
from fakes.scripted_server import ScriptedServer
from loadgen import cli
from loadgen.fleet import shards_command
from loadgen.report import run_directory
from loadgen.report.run_directory import Result
from loadgen.report.run_writer import encode_run
from loadgen.transport.capture_process import CaptureRun, start_capture
from loadgen.transport.sending.job import At, Job

pytestmark = [pytest.mark.usefixtures("elsewhere"), pytest.mark.whole]
ROOT = Path(__file__).parents[2]
PROMPTS = "--random-input-len 8 --random-output-len 3 --num-prompts 10 --seed 5 --transport wire"
CLOSED, OPEN = f"{PROMPTS} --max-concurrency 4", f"{PROMPTS} --request-rate 500"


def bench(server: ScriptedServer, flags: str) -> int:
    return cli.main(["bench", "--quiet", "--base-url", server.base_url, *shlex.split(flags)])


def results() -> list[Result]:
    runs = map(run_directory.load, Path("runs").iterdir())
    return sorted(runs, key=lambda run: 0 if run.facts.shard is None else run.facts.shard.number)


def bodies(server: ScriptedServer) -> list[bytes]:
    return sorted(asked.body for asked in server.asked if asked.head.startswith("POST /v1/completions"))


@pytest.mark.parametrize("load", [CLOSED, OPEN], ids=["closed", "open"])
@pytest.mark.parametrize("of", [1, 2, 4])
def test_shards_send_together_what_one_command_sends(load: str, of: int) -> None:
    with ScriptedServer(CountingApi(tokenize=True, owner="vllm")) as server:
        assert bench(server, f"{load} --run-dir whole") == 0
        sent = bodies(server)
    with ScriptedServer(CountingApi(tokenize=True, owner="vllm")) as server:
        for number in reversed(range(of)):
            assert bench(server, f"{load} --shard {number}/{of}") == 0
        assert bodies(server) == sent
    (alone,) = (run_directory.load(path) for path in Path("whole").iterdir())
    runs = results()
    assert {run.facts.plan_digest for run in runs} == {alone.facts.plan_digest}
    assert [run.records.index.tolist() for run in runs] == [list(range(i, 10, of)) for i in range(of)]
    shards = [run.facts.shard for run in runs]
    assert [shard and (shard.number, shard.of, shard.version) for shard in shards] == [
        (number, of, loadgen.__version__) for number in range(of)
    ]
    merged = loadgen.merge(sorted(Path("runs").iterdir()))
    assert merged.result.records.index.tolist() == alone.records.index.tolist()
    assert merged.result.records.planned_output.tolist() == alone.records.planned_output.tolist()
    assert merged.result.metrics.total_output_tokens == alone.metrics.total_output_tokens


def test_workers_divide_a_shards_part() -> None:
    with ScriptedServer(CountingApi(owner="vllm")) as server:
        assert bench(server, f"{CLOSED} --run-dir whole") == 0
        sent = bodies(server)
    with ScriptedServer(CountingApi(owner="vllm")) as server:
        for number in range(2):
            flags = f"{CLOSED} --shard {number}/2 --workers 2 --start-at {time.time() + 8:.2f}"
            assert bench(server, flags) == 0
        assert bodies(server) == sent
    runs = results()
    assert [run.facts.client.workers for run in runs] == [2, 2]
    assert all(set((run.records.slot % 2).tolist()) == {number} for number, run in enumerate(runs))
    assert [run.records.index.tolist() for run in runs] == [list(range(number, 10, 2)) for number in (0, 1)]


@pytest.mark.parametrize("workers", [1, 2])
def test_no_session_is_divided(tmp_path: Path, workers: int) -> None:
    turns = [{"t": 0.01 * turn, "in": 9, "out": 3} for turn in range(3)]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(f"{json.dumps({'id': f's{row}', 'requests': turns})}\n" for row in range(4)))
    with ScriptedServer(CountingApi(owner="vllm")) as server:
        for number in range(2):
            flags = f"--trace {trace} --trace-replay recorded --seed 5 --workers {workers}"
            assert bench(server, f"{flags} --shard {number}/2") == 0
        assert len(bodies(server)) == 12
    runs = results()
    shards = [run.facts.shard for run in runs]
    assert [shard and (shard.sessions, shard.requests) for shard in shards] == [(True, 6)] * 2
    both = np.concatenate([run.records.index for run in runs])
    assert sorted(both.tolist()) == list(range(12))
    merged = loadgen.merge(sorted(Path("runs").iterdir()))
    assert merged.result.records.index.tolist() == list(range(12))


def test_a_shards_report_is_of_its_own_part(capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedServer(CountingApi(owner="vllm")) as server:
        for number in range(3):
            assert bench(server, f"{CLOSED} --shard {number}/3") == 0
    shown = capsys.readouterr().out
    runs = results()
    assert [encode_run(run)["num_prompts"] for run in runs] == [4, 3, 3]
    assert [encode_run(run)["max_concurrency"] for run in runs] == [2, 1, 1]
    assert {run.facts.requests for run in runs} == {10}
    assert "not sent" not in shown
    assert f"shard 1/3 of plan {runs[1].facts.plan_digest}: its part of the load alone" in shown
    assert all(run.facts.shard and run.facts.shard.after is not None for run in runs)


def test_a_shard_without_requests_is_a_run_of_none(capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedServer(CountingApi(owner="vllm")) as server:
        assert bench(server, f"{OPEN} --num-prompts 2 --shard 2/3") == 0
        assert bodies(server) == []
    assert "shard 2/3 has none of the plan's 2 requests" in capsys.readouterr().err
    (run,) = results()
    assert (len(run.records), run.facts.own_requests, run.facts.requests) == (0, 0, 2)


@pytest.mark.parametrize(("warmups", "each"), [(1, [1, 1, 1]), (5, [2, 2, 1])])
def test_every_shard_learns_what_the_server_refuses(warmups: int, each: list[int]) -> None:
    api = CountingApi(owner="vllm", refusal=refuses("ignore_eos", "Unknown parameter: 'ignore_eos'."))
    with ScriptedServer(api) as server:
        for number in range(3):
            assert bench(server, f"{CLOSED} --num-warmups {warmups} --shard {number}/3") == 0
    runs = results()
    assert [run.facts.warmups for run in runs] == each
    assert len({run.facts.plan_digest for run in runs}) == 1
    assert all(len(run.facts.adapted) == 1 for run in runs)


def test_the_first_shard_alone_does_what_concerns_the_server() -> None:
    paths: list[set[str]] = []
    for number in range(2):
        with ScriptedServer(CountingApi(owner="vllm")) as server:
            code = bench(server, f"{CLOSED} --reset-cache --fingerprint --shard {number}/2")
            assert code == 0
            paths.append({asked.head.split()[1] for asked in server.asked})
    assert {"/metrics", "/reset_prefix_cache"} <= paths[0]
    assert not {"/metrics", "/reset_prefix_cache", "/server_info"} & paths[1]
    first, second = results()
    assert first.facts.fingerprint is not None
    assert second.facts.fingerprint is None


def test_another_plan_than_the_expected_one_is_not_sent(capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedServer(CountingApi(owner="vllm")) as server:
        assert bench(server, f"{CLOSED} --shard 0/2") == 0
        (run,) = results()
        digest, sent = run.facts.plan_digest, len(bodies(server))
        capsys.readouterr()
        assert bench(server, f"{CLOSED} --seed 6 --shard 1/2 --expect-plan {digest}") == 1
        assert len(bodies(server)) == sent
        assert f"not {digest} of --expect-plan: give every shard the same" in capsys.readouterr().err
        assert bench(server, f"{CLOSED} --shard 1/2 --expect-plan {digest}") == 0


@pytest.mark.parametrize(("flags", "message"), [
    ("--shard 1/2", "--shard needs --seed, the same in every shard"),
    ("--seed 1 --shard 2/2", "shards are counted from 0: the last of 2 is 1/2"),
    ("--seed 1 --shard auto", "no launcher has numbered this process"),
    ("--seed 1 --shard 0/5 --max-concurrency 4", "5 shards of --max-concurrency 4: some would have no slot"),
    ("--seed 1 --shard 0/2 --start-at +9", "--start-at +SECONDS counts from when each command began"),
    ("--start-at 1", "give a later instant, the same to all shards"),
    ("--start-at 99999999999", "hours ahead: give one within a day"),
    ("--start-at noon", "'noon' is not an instant: give seconds since 1970"),
    ("--start-at +9 --repeat 2", "--start-at is of one run: leave out --repeat, and name one profile"),
    ("--expect-plan abc", "'abc' is not a plan's digest"),
    (f"--expect-plan {'0' * 32} --repeat 2", "--expect-plan is of one run"),
])  # fmt: skip
def test_what_cannot_be_a_shard_is_refused_at_once(
    flags: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "JOB_COMPLETION_INDEX"):
        monkeypatch.delenv(name, raising=False)
    with ScriptedServer(CountingApi(owner="vllm")) as server:
        assert bench(server, f"--num-prompts 9 --random-input-len 4 {flags}") == 2
        assert bodies(server) == []
    assert message in capsys.readouterr().err
    assert not Path("runs").exists()


def test_a_shard_needs_a_running_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--quiet", "--seed", "1", "--shard", "0/2"]) == 2
    assert "--shard is a part of the load on a running server: pass its --base-url" in capsys.readouterr().err


def test_a_shard_that_is_not_ready_in_time_measures_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(job: Job, transport: str) -> CaptureRun:
        """The capturing process, begun once its start has passed."""
        if isinstance(job.start, At):
            while time.monotonic_ns() <= job.start.instant_ns:
                time.sleep(0.01)
        return start_capture(job, transport)

    monkeypatch.setattr("loadgen.run.measurement.start_capture", late)
    with ScriptedServer(CountingApi(owner="vllm")) as server:
        # However long the machine takes, the instant is ahead once, and has passed when the process is ready.
        assert bench(server, f"{CLOSED} --start-at +2") in (1, 2)
        assert bodies(server) == []
    assert "give a later instant, the same to all shards" in capsys.readouterr().err
    assert not list(Path("runs").glob("*")) if Path("runs").exists() else True


def test_the_indices_of_the_manifest_are_one_processs_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Each index of the Job runs as a process here: its command line, out of the manifest, and its number."""
    yaml: Any = importlib.import_module("yaml")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'servers'}"}
    with ScriptedServer(CountingApi(owner="vllm", gap_s=0.01)) as server:
        flags = ["--base-url", server.base_url, *CLOSED.split()]
        job = "--k8s --shards 3 --image i --claim c --start-in 12"
        assert shards_command.main([*job.split(), "--", *flags]) == 0
        manifest = yaml.safe_load(capsys.readouterr().out)
        (container,) = manifest["spec"]["template"]["spec"]["containers"]
        words = [word.replace("/runs/", "collected/") for word in container["command"]]
        under_way = [
            subprocess.Popen(
                [sys.executable, "-m", *words],
                env={**environment, "JOB_COMPLETION_INDEX": str(index)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for index in range(manifest["spec"]["completions"])
        ]
        ended = [(process.communicate(timeout=90)[1], process.returncode) for process in under_way]
        assert ended == [("", 0)] * 3
        sent = bodies(server)
    with ScriptedServer(CountingApi(owner="vllm")) as server:
        assert bench(server, CLOSED) == 0
        assert bodies(server) == sent
    (alone,) = results()
    places = [str(path) for path in Path("collected").glob("*/*-shard-*")]
    capsys.readouterr()
    assert cli.main(["merge", "--output", "merged", *places]) == 0
    assert "Successful requests:                     10" in capsys.readouterr().out
    merged = run_directory.load(Path("merged"))
    assert merged.facts.plan_digest == alone.facts.plan_digest
    assert merged.records.index.tolist() == list(range(10))
    shards = [json.loads((Path(place) / "result.json").read_text())["loadgen"]["shard"] for place in places]
    assert {shard["number"] for shard in shards} == {0, 1, 2}
    assert len({shard["start_at_ns"] for shard in shards}) == 1
    # Each found the instant on the one clock by itself.
    assert np.ptp(merged.records.intended_ns[:3]) < 1_000_000


# Two clocks.


AHEAD_S = 1000  # CLOCK_MONOTONIC in the second one's time namespace
ELSEWHERE = ["unshare", "--time", "--monotonic", str(AHEAD_S), "--fork"]
FLAGS = (
    "--random-input-len 8 --random-output-len 3 --num-prompts 40 --request-rate 40 --seed 5 --run-dir runs"
)
LEAD_S = 15


def has_time_namespaces() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*ELSEWHERE, "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not has_time_namespaces(), reason="no time namespace can be made here")
def test_a_shard_of_another_clock_is_merged_to_the_nanosecond(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with ScriptedServer(CountingApi(tokenize=True, owner="vllm")) as server:
        start = f"--base-url {server.base_url} --start-at {time.time() + LEAD_S:.0f}"
        loadgen = [sys.executable, "-m", "loadgen", "bench", "--quiet", *shlex.split(f"{FLAGS} {start}")]
        shards = [
            subprocess.Popen([*place, *loadgen, "--shard", f"{number}/2"], stdout=subprocess.DEVNULL)
            for number, place in enumerate(([], ELSEWHERE))
        ]
        assert [shard.wait(60) for shard in shards] == [0, 0]
    runs = sorted(str(path) for path in Path("runs").iterdir())
    assert cli.main(["merge", *runs, "--output", "both"]) == 0
    both = run_directory.load(Path("both"))
    first, second = both.facts.shards
    assert (first.offset_ns, first.reference, second.reference) == (0, "", "wall clock")
    assert abs(second.offset_ns + AHEAD_S * 10**9) < 10**6
    assert both.records.ok.all()
    assert both.records.index.tolist() == list(range(40))
    due_ns = both.records.intended_ns
    assert (np.diff(due_ns) > -(10**6)).all()  # one schedule, of both clocks
    assert both.metrics.duration_s < LEAD_S


# The page of shards: every block of commands runs in a shell, and leaves what the page says.


BLOCKS = re.findall(r"^```\n(.*?)^```", (ROOT / "docs" / "shards.md").read_text("utf-8"), re.M | re.S)
COMMANDS = [block for block in BLOCKS if ".venv/bin/loadgen" in block and "--cluster" not in block]


@pytest.fixture
def _clone(tmp_path: Path) -> None:
    """A directory with the command where the page has it."""
    command = tmp_path / ".venv" / "bin" / "loadgen"
    command.parent.mkdir(parents=True)
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m loadgen "$@"\n')
    command.chmod(0o755)


@pytest.mark.usefixtures("_clone")
@pytest.mark.parametrize("block", COMMANDS, ids=[f"block{number}" for number in range(len(COMMANDS))])
def test_every_block_of_the_page_runs_in_a_shell(tmp_path: Path, block: str) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'servers'}"}
    with ScriptedServer(CountingApi(owner="vllm")) as server:
        script = (
            block.replace("+ 30", "+ 15")
            .replace("http://localhost:8000", server.base_url)
            .replace("--shard ", "--quiet --shard ")
        )
        done = subprocess.run(
            ["bash", "-e"], input=script, cwd=tmp_path, env=environment, capture_output=True, text=True,
            timeout=150, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    for merged in (path for path in tmp_path.iterdir() if run_directory.is_run(path)):
        run = run_directory.load(merged)
        assert run.records.index.tolist() == list(range(40))
        assert run.records.ok.all()
        assert len(run.facts.shards) == 2


def test_the_page_has_commands() -> None:
    assert len(COMMANDS) >= 4
