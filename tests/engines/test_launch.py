"""Servers that the command starts itself: real ones, owned, watched, and gone afterwards."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from engines.clients import Finished, loadgen, measured, read_json, start_loadgen
from engines.leftovers import PATIENCE_S, left, until_nothing_is_left
from engines.running import VLLM_ON_CPU, VLLM_WITH_WORKER

pytestmark = pytest.mark.engine

_ON_CPU = "--dtype bfloat16 --max-model-len 1024 --enforce-eager"
_SMALL = ["--random-input-len", "64", "--random-output-len", "16"]
_SMALL += ["--num-prompts", "8", "--max-concurrency", "2"]


def _vllm(python: Path, model: Path) -> list[str]:
    """Launch flags for the tiny model on a CPU."""
    launch = ["--launch", "vllm", "--server-python", str(python), "--model", str(model)]
    return [*launch, "--server-args", _ON_CPU, "--quiet"]


def _transformers(python: Path, model: Path) -> list[str]:
    launch = ["--launch", "transformers", "--server-python", str(python), "--model", str(model)]
    return [*launch, "--server-args", "--device cpu --dtype bfloat16", "--quiet"]


def _marks(model: Path) -> tuple[str, str]:
    """What the command lines of a server's processes have in them."""
    return str(model), "VLLM::"


def _facts(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = read_json(directory / "result.json")["loadgen"]
    return found


@pytest.fixture(scope="module")
def model(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tiny model: no other file's processes have its path in their command lines."""
    return Path(shutil.copytree(model, tmp_path_factory.mktemp("model") / "launched"))


@pytest.fixture(scope="module")
def thrice(
    engines_python: Path, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Finished, Path]:
    """Two profiles and a ladder on one vLLM that the command started."""
    directory = tmp_path_factory.mktemp("thrice")
    small = "input_len = 64\noutput_len = 16\nnum_prompts = 8\nmax_concurrency = 2\nnum_warmups = 1\n"
    for name in ("one", "two"):
        (directory / f"{name}.toml").write_text(small)
    (directory / "short.toml").write_text(
        "ladder = [1, 64, 512, 2048]\noutput_len = 32\nnum_prompts = 2\nnum_warmups = 1\n"
        "max_concurrency = 1\nignore_eos = true\ntemperature = 0.0\n"
    )
    words = [*_vllm(engines_python, model), "--profile", "./one.toml,./two.toml,./short.toml"]
    return loadgen(words, directory, more=VLLM_ON_CPU), directory


def _runs(directory: Path) -> list[Path]:
    """The directories of the two profiles' runs, in order."""
    return sorted(path for name in ("one", "two") for path in (directory / "runs").glob(f"*-{name}"))


def test_one_command_runs_profiles_and_a_ladder_and_leaves_nothing(
    thrice: tuple[Finished, Path], model: Path
) -> None:
    finished, _ = thrice
    assert finished.code == 0, finished.err
    assert finished.out.count("Serving Benchmark Result") == 2
    assert left(*_marks(model)) == []


def test_the_report_says_how_it_was_started_what_it_runs_and_what_it_took(
    thrice: tuple[Finished, Path], model: Path
) -> None:
    _, directory = thrice
    first, second = _runs(directory)
    facts = _facts(first)
    launched = facts["launched"]
    assert launched["how"] == "vllm"
    assert str(model) in launched["command"]
    assert facts["checkpoint"]["quantization"] == "BF16"
    assert facts["as_run"]["quantization"] in ("", "BF16", "none", None)
    assert facts["as_run"]["kv_capacity_tokens"] > 0
    assert facts["sensed"]["rss"]["peak_bytes"] > 500 << 20
    assert facts["cache_reset"] == "emptied before the run"
    assert "memory:" in (first / "report.txt").read_text("utf-8")
    for run in (first, second):
        assert "vLLM" in (run / "server.log").read_text("utf-8", "replace")


def test_energy_that_cannot_be_read_is_said_to_be_missing(thrice: tuple[Finished, Path]) -> None:
    _, directory = thrice
    run = _runs(directory)[0]
    sensed = _facts(run)["sensed"]
    assert sensed["energy"] or sensed["missing"]
    assert "energy:" in (run / "report.txt").read_text("utf-8")


@pytest.mark.parametrize("seconds", [0.0, 1.0, 8.0, None])
def test_a_client_that_is_killed_at_any_point_leaves_no_server(
    seconds: float | None, engines_python: Path, model: Path, tmp_path: Path
) -> None:
    words = [*_vllm(engines_python, model), *_SMALL, "--num-prompts", "100000"]
    with start_loadgen(words, tmp_path, more=VLLM_WITH_WORKER) as process:
        _wait(process, tmp_path, seconds, model)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    until_nothing_is_left(*_marks(model))


def _wait(process: Any, directory: Path, seconds: float | None, model: Path) -> None:
    """Seconds after the server's process is there; None: until requests are under way."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        logs = list((directory / "runs").glob("*-server/server.log"))
        said = logs[0].read_text("utf-8", "replace") if logs else ""
        if seconds is not None and logs:
            time.sleep(seconds)
            return
        if said.count("POST /v1/completions") > 1:
            return
        time.sleep(0.1)
    pytest.fail("the server did not come up")


def test_ctrl_c_while_the_server_starts_ends_both(engines_python: Path, model: Path, tmp_path: Path) -> None:
    with start_loadgen([*_vllm(engines_python, model), *_SMALL], tmp_path, more=VLLM_ON_CPU) as process:
        _wait(process, tmp_path, 2.0, model)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, (out, err)
    assert "Traceback" not in err
    assert left(*_marks(model)) == []


def test_a_killed_server_ends_in_its_last_words_and_keeps_records(
    engines_python: Path, model: Path, tmp_path: Path
) -> None:
    words = [*_vllm(engines_python, model), *_SMALL, "--num-prompts", "100000", "--duration", "60"]
    with start_loadgen(words, tmp_path, more=VLLM_ON_CPU) as process:
        _wait(process, tmp_path, None, model)
        for server in psutil.Process(process.pid).children(recursive=True):
            if str(model) in " ".join(server.cmdline()) and "serve" in server.cmdline():
                os.kill(server.pid, signal.SIGKILL)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1, (out, err)
    assert "ended with -9 during the run" in err
    assert "server.log" in err
    assert "Serving Benchmark Result" in out
    assert left(*_marks(model)) == []


def test_the_ladder_climbs_notes_what_does_not_fit_and_writes_every_table(
    thrice: tuple[Finished, Path],
) -> None:
    (directory,) = (thrice[1] / "runs").glob("*-ladder")
    with (directory / "ladder.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [row["input_length"] for row in table] == ["1", "64", "512", "2048"]
    assert all(float(row["speed_tok_s"]) > 0 for row in table[:3])
    assert table[3]["note"] == "needs 2080 tokens, the context limit is 1024"
    assert {path.suffix for path in directory.glob("ladder.*")} >= {".csv", ".html", ".rst", ".md", ".json"}
    assert "(prompt+output)/time: Speed (tokens/s) of the Qwen3 pages" in thrice[0].out


def test_the_ladder_of_transformers_serve_has_the_requested_lengths(
    engines_python: Path, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "short.toml").write_text(
        "ladder = [64, 256]\noutput_len = 16\nnum_prompts = 2\nnum_warmups = 1\n"
        "max_concurrency = 1\nignore_eos = true\ntemperature = 0.0\n"
    )
    words = [*_transformers(engines_python, model), "--profile", "./short.toml"]
    measured(words, tmp_path, "ladder")
    (directory,) = (tmp_path / "runs").glob("*-ladder")
    rows = json.loads((directory / "ladder.json").read_text("utf-8"))["rows"]
    assert [row["input_length"] for row in rows] == [64, 256]
    assert all(row["speed_tok_s"] > 0 and row["gpu_memory"] > 0 for row in rows)
    assert left(*_marks(model)) == []
