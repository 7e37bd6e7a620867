"""A real llama.cpp server: started or attached to, its slots, its own timings, and speed at depth."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from engines import running
from engines.clients import Finished, loadgen, measured, read_run, start_loadgen
from engines.leftovers import left, until_nothing_is_left
from engines.running import Engine

pytestmark = pytest.mark.engine

_SMALL = [
    "--random-input-len", "256", "--random-output-len", "64", "--num-prompts", "24", "--max-concurrency", "4",
    "--seed", "7",
]  # fmt: skip
_AGREE = 0.02  # of the server's own time from the first to the last token
AtDepth = tuple[Finished, list[dict[str, Any]]]  # a command, and its rows
# Doubts of times, which a client without a core of its own cannot but raise.
_OF_TIMES = {
    "reads-late", "concurrency-not-held", "first-wave", "tpot-trend", "throughput-trend", "slow-kernel",
}  # fmt: skip


@pytest.fixture(scope="module")
def launch(llama_server: tuple[Path, Path]) -> list[str]:
    """Flags that start it."""
    server, model = llama_server
    words = ["--launch", "llamacpp", "--server-python", str(server), "--model", str(model)]
    return [*words, "--server-args", "--threads 1", "--quiet"]


@pytest.fixture(scope="module")
def attached(llama_server: tuple[Path, Path]) -> Iterator[Engine]:
    """One with four slots of 2048 tokens."""
    more = ["--metrics", "--ctx-size", "8192", "--parallel", "4"]
    with running.llamacpp(*llama_server, more) as engine:
        yield engine


def _mark(launch: list[str]) -> str:
    """What only the command line of a server has that the command started: it has no alias."""
    return f"--model {launch[5]} --host"


def _grave(result: dict[str, Any]) -> set[str]:
    doubts = result["loadgen"]["verdict"]["doubts"]
    return {doubt["name"] for doubt in doubts if doubt["severity"] != "note"} - _OF_TIMES


def _row(result: dict[str, Any], figure: str) -> dict[str, Any]:
    rows = result["loadgen"]["reconciliation"]
    found: dict[str, Any] = next(row for row in rows if row["figure"] == figure)
    return found


def test_it_is_started_measured_and_gone(launch: list[str], tmp_path: Path) -> None:
    measured([*launch, *_SMALL], tmp_path)
    result, records = read_run(tmp_path)
    facts = result["loadgen"]
    assert (result["completed"], facts["server"]["slots"], facts["server"]["max_model_len"]) == (24, 4, 768)
    assert facts["as_run"]["quantization"] == "GGUF F16"
    assert facts["window"]["generation_tokens"] == 24 * 64
    assert (records.resends == 0).all()  # a connection that it closes is not used again
    assert _grave(result) == set()
    assert left(_mark(launch)) == []


def test_its_timings_agree_with_what_came(attached: Engine, tmp_path: Path) -> None:
    alone = ["--max-concurrency", "1", "--num-prompts", "12", "--quiet"]
    measured(["--base-url", attached.base_url, *_SMALL, *alone], tmp_path)
    result, records = read_run(tmp_path)
    assert (records.server_prompt_tokens + records.server_cached_tokens == records.input_tokens).all()
    assert (records.server_output_tokens == records.output_tokens).all()
    # A first text that is no whole character is held back, and the client's time is shorter: not of these.
    whole = records.exact_tokens == 1
    assert whole.any()
    first_ns, last_ns = records.arrival_ns[records.start[:-1]], records.arrival_ns[records.start[1:] - 1]
    ours_ms = (last_ns - first_ns)[whole].mean() / 1e6
    theirs_ms = records.server_decode_ns[whole].mean() / 1e6
    assert ours_ms == pytest.approx(theirs_ms, rel=_AGREE, abs=0.5)
    decode = _row(result, "first to last, by response")
    assert decode["client"] < decode["server"] * (1 + _AGREE) + 1
    prompt = _row(result, "TTFT, prompt by response")
    assert prompt["client"] > prompt["server"]
    assert "timings-differ" not in _grave(result)


def test_more_streams_than_slots_wait_and_the_report_says_so(attached: Engine, tmp_path: Path) -> None:
    flags = ["--base-url", attached.base_url, *_SMALL, "--max-concurrency", "8"]
    finished = measured([*flags, "--num-prompts", "40"], tmp_path)
    assert "the server has 4 slots for 8 requests at once" in finished.err
    result, _ = read_run(tmp_path)
    assert "few-slots" in _grave(result)
    prompt = _row(result, "TTFT, prompt by response")
    assert prompt["difference"] > prompt["server"]  # the queue


def test_a_server_without_metrics_loses_them_alone(llama_server: tuple[Path, Path], tmp_path: Path) -> None:
    with running.llamacpp(*llama_server) as engine:
        finished = measured(["--base-url", engine.base_url, *_SMALL, "--explain", "--quiet"], tmp_path)
    assert "server-reported figures: none: /metrics answers 501" in finished.out
    assert "llamacpp needs --metrics" in finished.out
    assert "first to last, by response" in finished.out


def test_a_prompt_beyond_a_slot_is_refused_before_anything_is_sent(attached: Engine, tmp_path: Path) -> None:
    flags = ["--base-url", attached.base_url, "--random-input-len", "3000", "--num-prompts", "2"]
    finished = loadgen([*flags, "--quiet"], tmp_path)
    assert finished.code == 1
    assert "2048" in finished.err


@pytest.fixture(scope="module")
def at_depth(
    launch: list[str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Finished, list[dict[str, Any]]]:
    directory = tmp_path_factory.mktemp("depth")
    words = [*launch, "--depth", "0,1024", "-p", "512", "-n", "32", "--num-prompts", "3"]
    finished = loadgen(words, directory, "ladder")
    (tables,) = (directory / "runs").glob("*-depth")
    rows: list[dict[str, Any]] = json.loads((tables / "depth.json").read_text("utf-8"))["rows"]
    return finished, rows


def test_speed_at_depth_is_of_what_was_cached(at_depth: AtDepth) -> None:
    finished, rows = at_depth
    assert finished.code == 0, finished.err
    assert [row["test"] for row in rows] == ["pp512", "tg32", "pp512 @ d1024", "tg32 @ d1024"]
    assert [row["cached_tokens"] for row in rows] == [0, 0, 1024, 1024]
    assert all(row["tok_s"] > 0 and row["server_tok_s"] > 0 for row in rows)


def test_a_server_that_is_killed_is_named_and_nothing_is_left(launch: list[str], tmp_path: Path) -> None:
    words = [*launch, *_SMALL, "--num-prompts", "100000"]
    with start_loadgen(words, tmp_path) as process:
        server = _server_of(process.pid)
        time.sleep(2)
        server.send_signal(signal.SIGKILL)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "killed" in err
    until_nothing_is_left(_mark(launch))


def _server_of(client: int) -> psutil.Process:
    """The llama-server that a command started."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for process in psutil.Process(client).children(recursive=True):
            if process.name() == "llama-server":
                return process
        time.sleep(0.1)
    raise AssertionError("no llama-server was started")


def test_what_stops_it_from_starting_is_in_the_error(launch: list[str], tmp_path: Path) -> None:
    finished = loadgen([*launch[:-3], "--server-args", "--frobnicate", "--quiet", *_SMALL], tmp_path)
    assert finished.code == 1
    assert "llama-server rejects an argument (invalid argument: --frobnicate)" in finished.err
