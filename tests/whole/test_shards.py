"""Shards: what several commands send of a plan is what one sends, and each report is true of its part."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path

import numpy as np
import pytest

import loadgen
from fakes.counting_api import CountingApi, refuses
from fakes.scripted_server import ScriptedServer
from loadgen import cli
from loadgen.report import run_directory
from loadgen.report.run_directory import Result
from loadgen.report.run_writer import encode_run

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
@pytest.mark.parametrize("of", [1, 3])
def test_shards_send_together_what_one_command_sends(
    load: str, of: int, capsys: pytest.CaptureFixture[str]
) -> None:
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
    assert [encode_run(run)["num_prompts"] for run in runs] == [len(range(i, 10, of)) for i in range(of)]
    assert {run.facts.requests for run in runs} == {10}
    shards = [run.facts.shard for run in runs]
    assert [shard and (shard.number, shard.of, shard.version) for shard in shards] == [
        (number, of, loadgen.__version__) for number in range(of)
    ]
    said = " ".join(capsys.readouterr().out.split())
    assert "not sent" not in said
    assert of == 1 or f"shard 1/{of} of plan {runs[1].facts.plan_digest}: its part of the load alone" in said
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
