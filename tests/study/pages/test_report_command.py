"""`loadgen report`: what it prints and writes of which places, and what it says where it cannot."""

from __future__ import annotations

import csv
import io
import re
import sys
from pathlib import Path

import pytest

import loadgen.study.pages
from builders import made_runs
from builders.loops import loop_over
from loadgen import cli
from loadgen.report import report

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


@loop_over(("words", "said"), [
    (["--explain"], "nothing to report: name a run directory"),
    (["--explain", "runs"], "--explain is of one run: name its directory alone"),
    (["none"], "none is not a run directory: none/result.json: No such file or directory"),
    (["runs", "--htlm", "x"], "unknown flag --htlm, did you mean '--html'?"),
    (["runs", "--layout", "sglan"], "no such layout, did you mean 'sglang'?"),
    (["runs", "--csv", "none/a.csv"], "cannot write none/a.csv: No such file or directory"),
    (["runs", "--html", "none/a.html"], "cannot write none/a.html"),
    (["runs", "--png", "runs/run-0/result.json"], "choose another --png"),
    (["runs/run-0", "--svg", "out"], "cannot write out/ttft-distribution.svg: "),
    (["page.md", "--png", "png"], "nothing to plot"),
    (["runs", "--csv", "-", "--baseline", "m0"], ""),
    (["runs", "--markdown", "-", "--baseline", "mm"], "--baseline mm: no such row"),
    (["runs/run-0", "--plot"], ""),
])  # fmt: skip
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
