"""Searches reported: a search and a sweep from their directories in every form of the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builders import made_runs
from builders.made_limits import limit_record, limit_run
from loadgen.base.clock import read_wall_clock
from loadgen.base.errors import UsageError
from loadgen.study import compare_command
from loadgen.study.limit_record import LIMIT
from loadgen.study.pages import report_command
from loadgen.study.series.series_store import SeriesStore
from loadgen.study.sweep_record import SWEEP, SweepPoint, SweepRecord


def searched(directory: Path, name: str = "m") -> Path:
    """A search of two runs on the disk."""
    runs = []
    for number, (load, value_ms) in enumerate(((1, 120), (2, 600))):
        kept = directory / "runs" / f"{number}"
        kept.mkdir(parents=True)
        made_runs.keep(made_runs.run(concurrency=load, seed=number, model=name), kept)
        runs.append(limit_run(number, load, value_ms, value_ms + 10, directory=f"runs/{number}"))
    (directory / LIMIT).write_text(limit_record(axis="concurrency", runs=tuple(runs)).model_dump_json())
    return directory


@pytest.fixture
def search(tmp_path: Path) -> Path:
    return searched(tmp_path / "search")


def test_two_searches_are_compared_in_every_text(
    search: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = searched(tmp_path / "other", "n")
    assert report_command.main([str(search), str(other)]) == 0
    assert "n serves 1.00×" in capsys.readouterr().out
    assert report_command.main([str(search), str(other), "--markdown", "-"]) == 0
    assert "n serves 1.00×" in capsys.readouterr().out
    assert report_command.main([str(search), str(other), "--html", str(tmp_path / "both.html")]) == 0
    page = (tmp_path / "both.html").read_text("utf-8")
    compared = page[page.index('<section id="limits-1">') :].partition("</section>")[0]
    assert "<h2>Highest concurrency at ttft p99" in compared
    assert "n serves 1.00×" in compared
    assert "by tok/s" not in page  # runs of searches are no comparison
    assert 'id="load-1"' not in page


def test_pictures_and_plots_have_the_search(
    search: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report_command.main([str(search), "--svg", str(tmp_path / "svg")]) == 0
    assert {"limit-1-objective-1.svg", "limit-1-goodput.svg", "loads.svg"} <= {
        path.name for path in (tmp_path / "svg").iterdir()
    }
    assert report_command.main([str(search), "--plot"]) == 0
    assert "ttft p99 over load: ms over concurrency" in capsys.readouterr().out


def test_a_sweeps_failed_points_are_listed_with_reasons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    points = [
        SweepPoint(number=number, settings={"max_concurrency": load})
        for number, load in enumerate((1, 2, 64))
    ]
    store = SeriesStore(tmp_path, "sweep", "points")
    for point in points[:2]:
        (kept := store.begin(point.id) / "run").mkdir()
        load = point.settings["max_concurrency"]
        made_runs.keep(made_runs.run(concurrency=load, seed=point.number), kept)
        store.finish(point.id, kept)
    store.fail(points[2].id, "out of memory", read_wall_clock())
    record = SweepRecord(name="s", command=(), fixed="", seed=0, axis="concurrency", points=tuple(points))
    (tmp_path / SWEEP).write_text(record.model_dump_json())
    line = "concurrency=64: failed: out of memory"
    for form in ([], ["--markdown", "-"]):
        assert report_command.main([str(tmp_path), *form]) == 0
        assert line in capsys.readouterr().out.replace("\\_", "_")
        assert compare_command.main([str(tmp_path), *form[:1]]) == 0
        assert line in capsys.readouterr().out.replace("\\_", "_")
    assert compare_command.main([str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["points"] == [line]
    assert report_command.main([str(tmp_path), "--html", str(tmp_path / "page.html")]) == 0
    assert line in (tmp_path / "page.html").read_text("utf-8")


def test_a_record_alone_is_reported_and_has_nothing_to_draw(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / LIMIT).write_text(limit_record(runs=(), limit=None).model_dump_json())
    assert report_command.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("bf16, limit: at least 9.51 requests/s")
    with pytest.raises(UsageError, match="nothing to plot"):
        report_command.main([str(tmp_path), "--png", str(tmp_path / "png")])
