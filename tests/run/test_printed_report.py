"""What `loadgen bench` prints of a run: what matters, and in its directory all of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fakes.scripted_server import ScriptedServer, api, stream
from fakes.virtual_serving import VirtualServing
from loadgen import cli
from loadgen.report.run_directory import ARRIVALS, REPORT, RESULT
from loadgen.server.sample_file import SAMPLES

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
LOAD = ["--random-input-len", "8", "--random-output-len", "3", "--num-prompts", "4", "--max-concurrency", "2"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def bench(server: ScriptedServer | VirtualServing, *words: str) -> int:
    return cli.main(["bench", "--quiet", "--base-url", server.base_url, *LOAD, *words])


def run_directory() -> Path:
    (directory,) = Path("runs").iterdir()
    return directory


@pytest.mark.whole
def test_a_run_prints_its_report_and_writes_its_directory(capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedServer(api(lambda _: stream(3, 0.002))) as server:
        assert bench(server, "--seed", "7", "--num-warmups", "2") == 0
        assert len([asked for asked in server.asked if asked.head.startswith("POST")]) == 6
    out = capsys.readouterr().out
    directory = run_directory()
    assert sorted(path.name for path in directory.iterdir()) == sorted([RESULT, ARRIVALS, REPORT, SAMPLES])
    assert "============ Serving Benchmark Result ============" in out
    assert "Successful requests:                     4" in out
    assert out.endswith(f"run directory: {directory}\n")
    assert f"\nmore: loadgen report {directory} (" in out
    assert cli.main(["report", str(directory)]) == 0
    whole_report = capsys.readouterr().out
    assert whole_report == (directory / REPORT).read_text()
    assert "seed 7 (given)" in whole_report
    block = whole_report[whole_report.index("=") : whole_report.index("verdict:")]
    assert block in out


def test_with_explain_the_whole_report_is_printed_with_every_doubt(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with VirtualServing(api(lambda _: stream())) as server:
        assert bench(server, "--explain") == 0
    directory = run_directory()
    out = capsys.readouterr().out
    assert out == (directory / REPORT).read_text() + f"run directory: {directory}\n"
    assert "checked and not found: " in out


def test_a_seed_that_was_not_given_is_drawn_said_and_kept(capsys: pytest.CaptureFixture[str]) -> None:
    bodies = []
    for _ in range(2):
        with VirtualServing(api(lambda _: stream())) as server:
            assert bench(server) == 0
            bodies.append({asked.body for asked in server.asked if asked.body})
    assert bodies[0].isdisjoint(bodies[1])
    seeds = [json.loads((path / RESULT).read_text())["loadgen"]["seed"] for path in Path("runs").iterdir()]
    assert len(set(seeds)) == 2
    whole_reports = "".join((path / REPORT).read_text() for path in Path("runs").iterdir())
    assert all(f"seed {seed} (drawn)" in whole_reports for seed in seeds)
