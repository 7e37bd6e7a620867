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


def read(text: str) -> list[dict[str, object]]:
    runs = guidellm_reports.read_report(text, Path("x.txt"))
    assert all(run.told_by == guidellm_reports.GUIDELLM.name for run in runs)
    return [
        {"name": run.name, "load": run.load.name, "limit": run.load.max_concurrency,
         "rate": run.load.request_rate_per_s, **run.figures}
        for run in runs
    ]  # fmt: skip


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
