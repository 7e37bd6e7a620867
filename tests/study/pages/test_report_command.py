"""`loadgen report`: what it prints and writes of which places, and what it says where it cannot."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import loadgen.study.pages
from builders import made_runs
from builders.loops import loop_over, read_tables
from builders.made_limits import limit_record, limit_run
from loadgen import cli
from loadgen.base.clock import read_wall_clock
from loadgen.base.errors import UsageError
from loadgen.base.tables import format_number
from loadgen.report import report
from loadgen.study import compare_command
from loadgen.study.compare.model import Decision
from loadgen.study.limit_record import LIMIT
from loadgen.study.pages import comparison_section, document, report_command
from loadgen.study.pages.document import compose_document
from loadgen.study.run_summary import FailedCell
from loadgen.study.series.series_store import SeriesStore
from loadgen.study.sweep_record import SWEEP, SweepPoint, SweepRecord

TABLES = read_tables("report_command")
PAGE = """============ Serving Benchmark Result ============
Successful requests:                     10
Benchmark duration (s):                  20.00
Total input tokens:                      20431
Total generated tokens:                  1280
Request throughput (req/s):              0.50
Output token throughput (tok/s):         64.00
==================================================
"""


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of four runs of two checkpoints, next to a page and a folder in a picture's place."""
    monkeypatch.chdir(tmp_path)
    for number in range(4):
        run = made_runs.run(seed=number, speed=1.0 + number % 2, model=f"org/m{number % 2}")
        directory = tmp_path / "runs" / f"run-{number}"
        directory.mkdir(parents=True)
        made_runs.keep(run, directory, report.render_report(run))
    (tmp_path / "page.md").write_text(PAGE, "utf-8")
    (tmp_path / "out" / "ttft-distribution.svg").mkdir(parents=True)
    return tmp_path / "runs"


def test_the_machine_that_is_named_is_that_of_one_run_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made_runs.keep(made_runs.run(model="Qwen/Qwen3-8B"), tmp_path)
    shown = {}
    for gb_per_s in ("100", "200"):
        assert cli.main(["report", str(tmp_path), "--bandwidth", gb_per_s]) == 0
        (shown[gb_per_s],) = re.findall(r"roofline: ([\d.]+) tok/s at best", capsys.readouterr().out)
    assert float(shown["200"]) == pytest.approx(2 * float(shown["100"]), rel=0.01)


def test_several_are_compared_and_texts_need_no_extra(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for library in ("matplotlib", "jinja2", "plotext"):
        _without(monkeypatch, library)
    for words in (["--markdown", "-"], ["--csv", "-"], []):
        capsys.readouterr()
        assert cli.main(["report", "runs", *words]) == 0
    several = capsys.readouterr().out
    assert cli.main(["compare", "runs"]) == 0
    assert (several, "") == capsys.readouterr()
    assert cli.main(["report", "runs", "--layout", "sglang"]) == 0
    assert capsys.readouterr().out.count("Serving Benchmark Result") == 4


@pytest.mark.long
@pytest.mark.parametrize(("words", "written"), [
    (["--html", "a.html", "runs"], "a.html"),
    (["runs", "--html", "a.htm"], "a.htm"),
    (["--html", "runs"], "report.html"),
    (["runs/run-0", "--html", "a.html", "runs/run-1"], "a.html"),
    (["runs", "--html"], "report.html"),
])  # fmt: skip
def test_a_page_is_written_wherever_the_flag_stands(
    runs: Path, capsys: pytest.CaptureFixture[str], words: list[str], written: str
) -> None:
    for done in ("wrote", "replaced"):
        assert cli.main(["report", *words]) == 0
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith(f"{done} {written} (")
        assert Path(written).read_text("utf-8").startswith("<!doctype html>")


@pytest.mark.long
def test_forms_are_written_together(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--markdown", "a.md", "--csv", "-", "--png", "png", "--svg", "svg", "--baseline", "m1"]
    assert cli.main(["report", "runs", *words]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 4
    assert "× relative to m1" in Path("a.md").read_text("utf-8")
    names = {path.stem for path in Path("png").glob("*.png")}
    assert {"bars-output_throughput", "run-1-timeline", "run-4-ttft-distribution"} <= names
    assert names == {path.stem for path in Path("svg").glob("*.svg")}


@pytest.mark.parametrize(("words", "name"), [
    (["--html", "."], "report.html"), (["--html", "a.html"], "a.html"), (["--markdown", "a.md"], "a.md"),
    (["--csv", "a.csv"], "a.csv"), (["--svg", "."], "timeline.svg"), (["--png", "."], "timeline.png"),
])  # fmt: skip
def test_a_strangers_run_directory_links_no_output_elsewhere(
    runs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    name: str,
) -> None:
    victim = runs / "victim"
    victim.write_text("own")
    monkeypatch.chdir(runs / "run-0")
    Path(name).symlink_to(victim)
    places = [] if words == ["--html", "."] else ["."]
    assert cli.main(["report", *places, *words]) == 2
    assert (victim.read_text(), Path(name).is_symlink()) == ("own", True)
    assert f"cannot write {name}: it is a symbolic link" in capsys.readouterr().err


def test_what_cannot_be_read_is_told_and_the_rest_reported(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs / "run-3" / "result.json").write_text('{"loadgen": ', "utf-8")
    assert cli.main(["report", "runs", "page.md", "--html", "a.html"]) == 0
    assert "run-3" in capsys.readouterr().err
    page = Path("a.html").read_text("utf-8")
    assert "What is missing" in page
    assert page.count('data-run="') == 4
    assert 'data-key="output_throughput" data-value="64.0"' in page
    assert cli.main(["report", "page.md", "--html", "b.html"]) == 0
    assert "<h1>page</h1>" in Path("b.html").read_text("utf-8")


@loop_over(("words", "said"), TABLES["refused"])
def test_what_cannot_be_done_is_one_line(
    runs: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert cli.main(["report", *words]) == (2 if said else 0)
    out, told = capsys.readouterr()
    assert said in told
    assert len(told.splitlines()) == bool(said)
    assert out.isascii() or "--plot" not in words  # nobody watches


@pytest.mark.parametrize(
    ("form", "library"),
    [("--html", "jinja2"), ("--png", "matplotlib"), ("--svg", "matplotlib"), ("--plot", "plotext")],
)
def test_without_the_extra_one_line_tells_what_to_install(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, form: str, library: str
) -> None:
    _without(monkeypatch, library)
    value = {"--html": ["a.html"], "--plot": []}.get(form, ["out"])
    assert cli.main(["report", "runs", form, *value]) == 2
    assert capsys.readouterr().err == (
        f"loadgen: this form needs {library}: in the clone, .venv/bin/pip install '.[report]'\n"
    )


def _without(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    """Imports as where a library is not installed."""
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, "loadgen.study.pages.pictures", raising=False)
    monkeypatch.delattr(loadgen.study.pages, "pictures", raising=False)


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


EVIL = "<script>alert(1)</script> | **b** `c` [x](http://y) \n # d"


def campaign() -> str:
    base, other = (made_runs.reported(made_runs.run(speed=1.0 + at, seed=at)) for at in (0, 1))
    remarks = {"marks": ("shorter answers",), "failures": ("2 cells: died",)}
    row = made_runs.line("other", (other,), Decision.UNDECIDED, **remarks)
    found = made_runs.comparison(made_runs.line("base", (base,)), row)
    failed = FailedCell(cell=made_runs.cell("other", 1), reason="out of memory\n  | CUDA:\n  |   no memory")
    return document.render_markdown(compose_document([base, other], [found], [failed], ["x.json: cut"]))


def test_every_row_of_a_markdown_table_has_as_many_cells_as_its_head() -> None:
    for table in re.findall(r"(?:^\|.*\|\n)+", campaign(), re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1


def test_a_name_is_no_markup_in_markdown() -> None:
    run = made_runs.reported(made_runs.run(model=EVIL), EVIL)
    found = made_runs.comparison(made_runs.line(EVIL, (run,)), made_runs.line("b", (run,), Decision.FASTER))
    page = document.render_markdown(compose_document([run, run], [found]))
    outside = re.sub(r"^```text\n.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    assert "<script" not in outside
    assert "[x](" not in re.sub(r"^<summary>.*$", "", outside, flags=re.MULTILINE)  # nothing is markup there
    assert "\n # d" not in outside


def test_a_fence_in_a_text_does_not_end_its_fence() -> None:
    run = made_runs.reported(made_runs.run(notes=("````",)))
    page = document.render_markdown(compose_document([run]))
    assert "`````text\n" in page


@pytest.mark.parametrize(
    ("value", "text"), [(1.4421, "1.442×"), (0.5, "0.500×"), (12.345, "12.3×"), (0.01234, "0.0123×")]
)
def test_a_ratio_is_written_with_three_digits_or_more(value: float, text: str) -> None:
    assert comparison_section.format_row_ratio(value) == text


@loop_over(
    ("value", "text"),
    [(None, "–"), (math.nan, "–"), ("inf", "inf"), (True, "True"), (1234567, "1,234,567"), (2.005, "2.00")],
)
def test_what_is_no_number_is_written_as_what_it_is(value: object, text: str) -> None:
    assert format_number("k", value) == text


@pytest.fixture
def terminal() -> Any:
    name = "loadgen.study.pages.pictures"
    return pytest.importorskip(name, reason="needs plotext", exc_type=ImportError)


def test_a_name_cannot_command_a_terminal(terminal: Any) -> None:
    runs = [made_runs.reported(made_runs.run(seed=seed), f"m{seed}\x1b[2J\x07é") for seed in (0, 1)]
    drawn = terminal.render_plots(runs, 80, plain=True)
    assert "\x1b" not in drawn
    assert "\x07" not in drawn
    assert drawn.isascii()
