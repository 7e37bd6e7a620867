"""Numbers at every end of what can be written, and paths to what is no file: refused in a line, or taken."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from builders import made_runs
from builders.loops import loop_over
from fakes.scripted_server import api, stream
from fakes.virtual_run import BASE_URL, serving
from loadgen import cli
from loadgen.report.report import render_report
from loadgen.server import scraper
from loadgen.settings.table import TABLE

LOAD = ["--random-input-len", "4", "--random-output-len", "3", "--num-prompts", "4", "--quiet"]
ENDS = ("0", "-1", "-0", "nan", "inf", "-inf", "1e308", "-1e308", "1e-308", "1e400", "9" * 30, "9" * 5000, "")
NUMBERS = [row.option for row in TABLE if {int, float} & {*row.kinds}]
RATES = ["--schedule=rate {} for 1s", "--schedule=concurrency {} for 1s", "--bursts={} every 1s",
    "--bursts=4 every {}s", "--goodput=ttft:{}", "--metric-percentiles={}", "--max-failures={}",
    "--max-failures={}%"]  # fmt: skip
NOT_FOR_ALL = {"--num-prompts"}  # of the load itself


def end_of(words: list[str], capfd: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    """The exit code of a command, and the lines of its standard error."""
    try:
        code = cli.main(words)
    except SystemExit as ended:
        code = int(str(ended.code))
    return code, capfd.readouterr().err.splitlines()


def test_many_settings_are_numbers() -> None:
    assert {"--request-rate", "--max-concurrency", "--duration", "--temperature", "--stall-timeout"} <= {
        *NUMBERS
    }


@pytest.mark.long
@loop_over("value", ENDS)
def test_a_number_of_any_size_is_taken_or_refused_in_a_line(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(scraper, "_IDLE_S", 0.1)
    forms = [*(f"{option}={{}}" for option in NUMBERS if option not in NOT_FOR_ALL), *RATES]
    wrong = []
    with serving(api(lambda _: stream(3, 0.001))):
        for form in forms:
            words = ["bench", "--base-url", BASE_URL, *LOAD, form.format(value)]
            code, lines = end_of(words, capfd)
            refused = code in (1, 2) and lines[-1:] and lines[-1].startswith("loadgen: ")
            if not (code == 0 or refused) or any("Error" in line for line in lines):
                wrong.append((form, code, lines[-3:]))
    assert wrong == []


@loop_over(("rate", "code"), [("1e9", 0), ("inf", 0), ("1.1e9", 2), ("1e308", 2), ("-inf", 2), ("9e-10", 2)])
def test_a_rate_is_one_that_nanoseconds_can_hold(
    rate: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(scraper, "_IDLE_S", 0.1)
    words = [f"--request-rate={rate}", "--metric-percentiles", "1e-308,100"]
    told = (
        f"loadgen: --request-rate {float(rate):g}: give from 1e-9 to 1e9 requests per second, or inf for all"
    )
    with serving(api(lambda _: stream(3, 0.001))):
        ended, lines = end_of(["bench", "--base-url", BASE_URL, *LOAD, *words], capfd)
    assert (ended, [line.startswith(told) for line in lines]) == (code, [True] * (code == 2))


HERE = ["bench", "--preset", "instant", *LOAD]
AWAY = ["quality", "--base-url", "http://127.0.0.1:9"]
BOTH = [*AWAY, "--reference-url", "http://127.0.0.1:9"]
# Commands that read the path which follows.
READING: list[list[str]] = [
    [*HERE, "--dataset-path"], [*HERE, "--profile"], [*HERE, "--trace"], [*HERE, "--api-key-file"],
    [*HERE, "--dataset-name", "sharegpt", "--dataset-path"], [*HERE, "--live-totals"],
    *([*HERE, "--trace-format", name, "--trace"] for name in ("mooncake", "burstgpt", "otel", "servegen")),
    ["bench", "--base-url", "https://127.0.0.1:9", "--ca-cert"], ["report"], ["compare"], ["history"],
    ["audit"], ["verify"], ["explain"], ["export", "--csv"], ["merge"], ["campaign"], ["gate"],
    ["bundle", "-o", "o.bundle"], ["data", "convert"], ["data", "learn"], [*AWAY, "--reference"],
    ["engine", "--preset", "instant", "--inject"], [*BOTH, "--text"],
]  # fmt: skip


@pytest.mark.whole
@loop_over("kind", ["a pipe", "an endless device", "a link to itself", "a link to a pipe", "a directory"])
def test_a_path_to_what_is_no_file_is_refused_in_a_line(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    for name, to in (("loop", "loop"), ("link", "pipe")):
        Path(name).symlink_to(to)
    Path("empty").mkdir()
    path = {"a pipe": "pipe", "an endless device": "/dev/zero", "a link to itself": "loop",
        "a link to a pipe": "link", "a directory": "empty"}[kind]  # fmt: skip
    wrong = []
    for words in READING:
        code, lines = end_of([*words, f"./{path}" if path[0] != "/" else path], capfd)
        if code != 2 or not lines or not lines[-1].startswith("loadgen"):
            wrong.append((words, code, lines[-3:]))
    assert wrong == []


@loop_over(
    ("started", "finished"),
    [("2026-11-29T12:00:00Z", "2026-11-29T11:00:00Z"), ("2106-01-01T00:00:00Z", "1970-01-01T00:00:05Z")],
)
def test_a_wall_clock_that_is_set_in_a_run_changes_no_figure(started: str, finished: str) -> None:
    times: dict[str, Any] = {
        "started": datetime.fromisoformat(started),
        "finished": datetime.fromisoformat(finished),
    }
    usual, stepped = made_runs.run(), made_runs.run(**times)
    assert stepped.metrics == usual.metrics
    assert stepped.verdict.reasons == usual.verdict.reasons
    assert render_report(stepped, True) == render_report(usual, True)
