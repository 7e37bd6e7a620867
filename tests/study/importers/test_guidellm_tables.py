"""What guidellm prints at its end is read: a run for each row, of all tables of a report together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from builders.loops import loop_over
from loadgen.study.importers import result_sources
from loadgen.study.importers.clients import guidellm_reports

PRINTED = Path(__file__).parents[2] / "data/printed"
# As 0.2 prints it, whose latency of requests is in seconds under a title of ms.
TWO = (PRINTED / "guidellm_0.2.txt").read_text("utf-8")
# As 0.4 and later do.
THREE = (PRINTED / "guidellm_0.4.txt").read_text("utf-8")
# As 0.8 does, with the means and their intervals.
MEANS = (PRINTED / "guidellm_0.8.txt").read_text("utf-8")


def read(text: str) -> list[dict[str, object]]:
    runs = guidellm_reports.read_report(text, Path("x.txt"))
    assert all(run.told_by == guidellm_reports.GUIDELLM.name for run in runs)
    return [
        {"name": run.name, "load": run.load.name, "limit": run.load.max_concurrency,
         "rate": run.load.request_rate_per_s, **run.figures}
        for run in runs
    ]  # fmt: skip


BOTH = [
    (TWO, {
        "name": "granite-3.3-8b-instruct", "load": "synchronous", "limit": 1, "rate": float("inf"),
        "duration": 40.9, "completed": 10.0, "failed": 0.0, "total_input_tokens": 5122.0,
        "total_output_tokens": 2560.0, "request_throughput": 0.24, "concurrency": 1.0,
        "output_throughput": 62.6, "total_token_throughput": 312.8,
        "mean_e2el_ms": 4090.0, "median_e2el_ms": 4090.0, "p99_e2el_ms": 4100.0,
        "mean_ttft_ms": 58.7, "median_ttft_ms": 57.8, "p99_ttft_ms": 61.8,
        "mean_tpot_ms": 15.8, "median_tpot_ms": 15.8, "p99_tpot_ms": 15.8,
    }, {"load": "constant@0.69", "rate": 0.69, "completed": 27.0, "mean_e2el_ms": 4540.0,
        "p99_ttft_ms": 80.0, "output_throughput": 165.1}),
    (THREE, {
        "name": "Meta-Llama-3.1-8B-Instruct-FP8-dynamic", "load": "concurrent, row 1", "limit": None,
        "rate": float("inf"), "duration": 30.0, "total_input_tokens": 18018.0,
        "total_output_tokens": 8448.0, "request_throughput": 1.1, "concurrency": 32.0,
        "output_throughput": 414.5, "total_token_throughput": 1306.9,
        "median_e2el_ms": 20400.0, "p95_e2el_ms": 21800.0, "median_ttft_ms": 1465.9,
        "p95_ttft_ms": 2797.0, "median_tpot_ms": 74.3, "p95_tpot_ms": 76.1,
    }, {"load": "concurrent, row 2", "concurrency": 64.0, "median_ttft_ms": 2212.2,
        "output_throughput": 545.7, "p95_tpot_ms": 103.0}),
]  # fmt: skip


def test_the_means_of_0_8_are_read_without_their_intervals() -> None:
    (run,) = read(MEANS)
    assert run == {
        "name": "x", "load": "concurrent@4", "limit": 4, "rate": float("inf"), "duration": 0.5,
        "completed": 20.0, "failed": 0.0, "total_input_tokens": 1246.0, "total_output_tokens": 640.0,
        "mean_e2el_ms": 100.0, "median_e2el_ms": 100.0, "p95_e2el_ms": 100.0, "mean_ttft_ms": 7.1,
        "median_ttft_ms": 5.1, "p95_ttft_ms": 15.2, "concurrency": 3.6, "request_throughput": 42.2,
        "output_throughput": 1350.6, "total_token_throughput": 3980.1,
    }  # fmt: skip


@loop_over("text", [TWO, THREE])
def test_a_run_names_the_line_of_its_row_as_source(text: str) -> None:
    """That of the last table."""
    runs = guidellm_reports.read_report(text, Path("x.txt"))
    lines = text.splitlines()
    rows = [lines[int(run.source.rpartition(":")[2]) - 1] for run in runs]
    assert [row.strip("| ").partition("|")[0].strip() for row in rows] == [
        run.load.name.partition(",")[0] for run in runs
    ]


@loop_over(("text", "first", "second"), BOTH)
@loop_over("behind", ["", "  ", "\x1b[1m"])
def test_every_row_is_a_run(
    text: str, behind: str, first: dict[str, object], second: dict[str, object]
) -> None:
    one, two = read("\n".join(behind + line for line in text.splitlines()))
    assert one == first
    assert two == {**two, **second}


UNEVEN = [
    (TWO, "output_tokens=256", "output_tokens=300"),
    (TWO, ",output_tokens=256", ""),
    (THREE, "| 546.0 | 546.0 | 256.0 | 256.0 |", "| 546.0 | 546.0 | 255.0 | 256.0 |"),
    (THREE, "| 8448.0  |", "| 8440.0  |"),
]


@pytest.mark.parametrize(("text", "said", "other"), UNEVEN)
def test_a_time_per_token_is_read_only_of_answers_of_one_length(text: str, said: str, other: str) -> None:
    run = guidellm_reports.read_report(text.replace(said, other), Path("x.txt"))[0]
    assert not [key for key in run.figures if "tpot" in key]
    assert guidellm_reports.UNEVEN in run.remarks


@pytest.mark.parametrize(("text", "said"), [(TWO, "| 62.6|"), (THREE, "| 414.5         |")])
def test_what_is_broken_at_the_edge_of_a_terminal_is_not_guessed(text: str, said: str) -> None:
    assert said.replace(" ", "") in text.replace(" ", "")
    broken = "\n".join(
        line[at : at + 80] for line in text.splitlines() for at in range(0, len(line) or 1, 80)
    )
    assert not guidellm_reports.read_report(broken, Path("x.txt"))


def test_a_load_under_which_nothing_was_answered_has_no_latency() -> None:
    numbers = next(line for line in TWO.splitlines() if " 0.24|" in line).partition("|")[2]
    empty = "|".join(["0.00"] * 16)
    run = read(TWO.replace(numbers, empty).replace("40.9|    10|", "40.9|     0|", 1))[0]
    assert run["completed"] == 0
    assert not [key for key in run if key.endswith("_ms")]


def test_two_reports_are_not_repeats_of_one_another(tmp_path: Path) -> None:
    (tmp_path / "x.md").write_text(THREE + "\nwith another router\n" + THREE, "utf-8")
    runs = result_sources.read_sources([str(tmp_path / "x.md")]).reported
    assert [(run.load.name, run.unread["report"]) for run in runs] == [
        ("concurrent, row 1", "1"), ("concurrent, row 2", "1"),
        ("concurrent, row 1", "2"), ("concurrent, row 2", "2"),
    ]  # fmt: skip
    assert len({run.source for run in runs}) == 4


@loop_over("text", [TWO, THREE])
@loop_over("number", ["nan", "inf", "-inf", "1e400", "-1", "9" * 400])
def test_a_number_that_no_measurement_gives_ends_no_reader(text: str, number: str) -> None:
    for runs in (
        read(re.sub(r"(?<=\|) *[\d.]+(?=\||\n| +\|)", number, text)),
        read(re.sub("@0.69", f"@{number}", text)),
    ):
        assert {run["limit"] for run in runs} <= {1, None}
