"""What guidellm prints at its end is read: a run for each row, of all tables of a report together."""

from __future__ import annotations

import re
from pathlib import Path

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
