"""Each doubt is provoked by a run, in virtual time where it can be, and absent where nothing is wrong."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from builders import provocations as made
from builders.loops import read_tables
from builders.provocations import exposed, failing, metered
from builders.provoked_runs import FIVE, MODEL, PROVOCATIONS, engine
from fakes.virtual_run import BASE_URL, run_on
from loadgen import cli
from loadgen.report import run_directory
from loadgen.report.run_directory import REPORT, RESULT
from loadgen.server import scraper
from loadgen.study.verify.proof import prove_run
from loadgen.verdict import verdict
from loadgen.verdict.verdict import DOUBTS

TABLES = read_tables("provoked")

COMMON = "--seed 1 --transport wire"
# Of processes and CPUs, which virtual time has not: tests/whole/test_provoked.py, run/command/test_bench.py.
PROCESSES_ALONE = {
    "interrupted", "cut-short", "load-lost", "rest-of-the-load", "targets-unequal", "other-processes",
}  # fmt: skip
Ran = tuple[int, dict[str, Any], str]  # its exit code, what the result holds under our name, the report


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of its own, and /metrics scraped sooner and more often."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, value in (("_FIRST_S", 0.1), ("_EVERY_S", 0.2), ("_BETWEEN_S", 0.2), ("_IDLE_S", 2.0)):
        monkeypatch.setattr(scraper, name, value)


def bench(words: str) -> Ran:
    """Run the command; its exit code, what the result holds under our name, and the report.

    Who reads the files later comes to the same verdict, and to every other value.
    """
    code = cli.main(["bench", "--quiet", "--base-url", BASE_URL, *shlex.split(f"{COMMON} {words}")])
    directory = max(Path("runs").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    stored = json.loads((directory / RESULT).read_text("utf-8"))
    assert verdict.encode_verdict(run_directory.load(directory).verdict) == stored["loadgen"]["verdict"]
    proven = prove_run(directory, "")
    assert [*proven.differences, *proven.unchecked] == []
    return code, stored["loadgen"], (directory / REPORT).read_text("utf-8")


def doubts(ours: dict[str, Any]) -> dict[str, str]:
    """What was found, each with its evidence."""
    return {found["name"]: found["evidence"] for found in ours["verdict"]["doubts"]}


@pytest.mark.parametrize("name", PROVOCATIONS)
def test_a_run_that_goes_wrong_says_so_and_nothing_else(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, server = PROVOCATIONS[name], PROVOCATIONS[name].server()
    run_on(server, monkeypatch)
    case.prepare(server)
    case.play(monkeypatch, server)
    code, ours, report = bench(case.words)
    found = doubts(ours)
    assert set(found) == case.doubts, found
    assert re.search(rf"\nverdict: (SIMULATED, )?{ours['verdict']['level']}\b", report)
    assert code == case.code


def test_every_doubt_is_provoked_in_virtual_time_or_by_processes() -> None:
    virtual = set[str]().union(*(case.doubts for case in PROVOCATIONS.values()))
    assert virtual | PROCESSES_ALONE == {doubt.code for doubt in DOUBTS}
    assert not virtual & PROCESSES_ALONE


CLOSED = "--random-input-len 64 --random-output-len 5 --num-prompts 320 --max-concurrency 16"
OPEN = "--random-input-len 64 --random-output-len 5 --num-prompts 40 --request-rate 15"


@pytest.mark.parametrize(
    ("words", "bounds"),
    [(CLOSED, ""), (f"{OPEN} --metric-percentiles 95", "40 samples, a bound needs 90")],
    ids=["closed", "open"],
)
def test_a_clean_run_has_no_doubt_though_every_doubt_was_checked(
    words: str, bounds: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.remember(capacity_per_s=1e6)
    words = f"{words} --num-warmups wave --strict {MODEL} --bandwidth 900"
    run_on(engine()(), monkeypatch)
    code, ours, report = bench(words)
    assert doubts(ours) == {}
    assert bounds in report
    assert (ours["verdict"]["not_looked_at"], ours["verdict"]["not_checked"]) == ([], ["repeats"])
    assert (code, ours["verdict"]["level"]) == (0, "VALID")
    assert re.search(r"\nverdict: SIMULATED, VALID \(not checked: repeats\)", report)


def test_high_load_and_low_load_on_an_idle_server_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    run_on(engine("--preset", "h20/qwen3-8b-bf16")(), monkeypatch)
    found = {}
    for seed, name in enumerate(("high-load", "low-load")):  # other prompts: the first are in the cache
        words = f"--profile {name} --random-input-len 128 --random-output-len 8 --seed {seed}"
        _, ours, _ = bench(words)
        found[name] = (ours["verdict"]["level"], set(doubts(ours)))
    assert found == {"high-load": ("VALID", set()), "low-load": ("VALID", set())}


@pytest.mark.parametrize(
    ("metrics", "trouble"),
    [
        (b"<!doctype html><html></html>", "/metrics is HTML, not Prometheus text"),
        (exposed(8, 40)[:-7], "/metrics is cut off in 'vllm:num_requests_waiting{model_name='"),
        (b"vllm:generation_tokens_total{ 1\n", "/metrics is malformed in 'vllm:generation_tokens_total{ 1'"),
        (b"up 1\n", "vllm_router, smg, sgl_router or llm_d"),
    ],
    ids=["HTML", "cut off", "malformed", "of another program"],
)
def test_broken_metrics_cost_only_the_server_reported_figures(
    metrics: bytes, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_on(metered(lambda answers, scrapes: metrics)(), monkeypatch)
    code, ours, report = bench(FIVE)
    assert ours["window"]["trouble"].endswith(trouble)
    assert (code, ours["verdict"]["level"], ours["reconciliation"]) == (0, "VALID", [])
    assert "Successful requests:                     80" in report
    assert "server-reported figures: none: " in report


@pytest.mark.parametrize(("every", "words", "code"), TABLES["exit_codes"])
def test_strict_and_fail_on_give_each_condition_its_exit_code(
    every: int, words: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_on(failing(every)(), monkeypatch)
    assert bench(f"{FIVE} {words}")[0] == code


def test_explain_gives_evidence_condition_and_remedy_later_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_on(failing(2)(), monkeypatch)
    _, ours, report = bench(f"{FIVE} --explain")
    (directory,) = Path("runs").iterdir()
    capsys.readouterr()
    assert cli.main(["report", str(directory), "--explain"]) == 0
    assert capsys.readouterr().out == report
    words = " ".join(report.split())
    assert ours["verdict"]["doubts"]
    for found in ours["verdict"]["doubts"]:
        assert f"{found['severity']}: {found['name']}: {found['evidence']} condition: " in words
        assert f" condition: {found['condition']} remedy: {found['remedy']}" in words
