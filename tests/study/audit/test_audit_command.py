"""`loadgen audit` as it is used: what is printed, its JSON, exit codes, and bad input told in a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from builders.loops import loop_over, read_tables
from builders.published_runs import PUBLISHED, run
from loadgen import cli
from loadgen.base.errors import UsageError
from loadgen.base.passages import render_passages
from loadgen.features.roofline import machines
from loadgen.report.load_identity import Load
from loadgen.study.audit.audit_command import list_audit_passages
from loadgen.study.audit.findings import CHECKS, RunFindings, audit_runs
from loadgen.study.importers import result_sources
from loadgen.study.importers.result_sources import read_sources
from loadgen.study.run_summary import Reported
from study.audit.test_findings import grave

TABLES = read_tables("audit")
PAGE = PUBLISHED / "jetson_thor_serving.md"
DOCS = Path(__file__).parents[3] / "docs" / "audit.md"
THOR = ["--hardware", "jetson-thor"]
SPEEDS = PUBLISHED / "rtx_pro_6000_speed.csv"
HUGE = """| Model | GPU | Concurrency | Output tok/s | TPOT (ms) |
|---|---|---|---|---|
| Qwen3-235B-A22B | H100 | 8 | 100 | 79 |
| Qwen3-235B-A22B | 8 x H100 | 8 | 100 | 79 |
| Qwen3-8B | H100 | 8 | 100 | 79 |
| Qwen3-8B | RTX 9090 | 8 | 100 | 79 |
"""
SPEEDY = """| Model | Concurrency | Output tok/s | TPOT (ms) |
|---|---|---|---|
| Qwen3-8B | 1 | 100000 | 0.01 |
"""


def not_a_number(word: str) -> Any:
    raise AssertionError(f"{word} is no JSON")


def shown(findings: list[RunFindings]) -> str:
    return render_passages(list_audit_passages(findings))


def one(figures: dict[str, Any], **fields: Any) -> Reported:
    load = fields.pop("load", Load("x", 1, 1.0))
    return Reported(fields.pop("name", "Qwen3-8B-FP8"), figures, load, "f", told_by="page", **fields)


ALL = {"duration": 10.0, "completed": 100, "request_throughput": 10.0}


@loop_over(
    ("level", "figures", "verdict"),
    [
        ("SUSPECT", ALL, "SUSPECT"),
        ("INVALID", ALL, "INVALID"),
        ("INVALID", {**ALL, "completed": 1, "request_throughput": 0.1}, "INVALID"),
        ("SUSPECT", {"completed": 0}, "INVALID"),
        ("VALID", ALL, "VALID (not checked: roofline)"),
    ],
)
def test_a_report_s_own_verdict_is_kept_where_it_is_graver(
    level: str, figures: dict[str, Any], verdict: str
) -> None:
    (audited,) = audit_runs([one(figures, level=level)], None, None)
    assert audited.verdict == verdict
    assert ("its report's verdict" in shown([audited])) == audited.by_its_report


@loop_over(
    ("words", "code", "said"),
    [
        ([PAGE, "--strict"], 0, "no roofline for 16 runs: no machine is named: pass --hardware KEY"),
        ([PAGE, *THOR, "--strict"], 3, "16 runs: 2 INVALID, 12 SUSPECT, 2 VALID"),
        ([PAGE, *THOR, "--explain"], 0, "weights of 2 runs: Qwen3-8B-GGUF: computed from the config"),
        ([SPEEDS, "--strict"], 0, "8 runs: 8 UNCHECKED;"),
        ([SPEEDS], 0, "loadgen audit PLACE --hardware h20-96gb --model-config"),
        ([HUGE], 0, "Qwen3-235B-A22B has 470 GB of weights, H100 SXM 80GB has 80 GB of memory"),
        ([HUGE], 0, "4 runs: 1 INVALID,"),
        ([HUGE], 0, "RTX 9090 is no machine of the table"),
        ([SPEEDY, *THOR], 0, " 1e+05 - 0.01 >999× INVALID beyond-roofline"),
    ],
)
def test_what_is_printed_fits_a_terminal(
    words: list[Any],
    code: int,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    place, *flags = words
    page = place if isinstance(place, str) else place.read_text("utf-8")
    Path(f"page{'.csv' if place is SPEEDS else '.md'}").write_text(page, "utf-8")
    assert cli.main(["audit", ".", *flags]) == code
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    printed = " ".join(printed.split())
    assert printed.count(said) == 1
    for check in CHECKS:
        found = f" {check.code} " in printed and "--explain" in flags
        told = (f"condition {check.condition}" in printed, f"remedy {check.remedy}" in printed)
        assert told == (found, found)


def test_the_json_has_every_run_and_no_number_that_json_has_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["audit", *THOR, "--json", str(PAGE)]) == 0
    told = json.loads(capsys.readouterr().out, parse_constant=not_a_number)
    assert told["levels"] == {"VALID": 2, "SUSPECT": 12, "INVALID": 2, "UNCHECKED": 0}
    assert told["machine"]["key"] == "jetson-thor"
    assert told["looked_for"] == [check.code for check in CHECKS]
    low = told["runs"][3]
    assert (low["name"], low["level"], low["figures"]["mean_tpot_ms"]) == ("Qwen3-8B-FP8", "INVALID", 8.88)
    assert [doubt["name"] for doubt in low["doubts"][:2]] == ["beyond-roofline", "warm-cache"]
    assert set(low["doubts"][0]) == {"name", "severity", "evidence", "condition", "remedy"}


@loop_over("verb", ["audit", "compare", "report"])
@loop_over(("words", "said"), TABLES["refused"])
def test_a_named_thing_that_does_not_exist_ends_the_command(
    verb: str, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([verb, str(PAGE), *words]) == UsageError.exit_code
    streams = capsys.readouterr()
    assert (streams.out, said in streams.err, streams.err.count("\n")) == ("", True, 1)


def test_a_wrong_flag_is_found_before_anything_is_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_sources, "read_sources", None)
    for verb in ("audit", "compare"):
        assert cli.main([verb, str(PAGE), "--hardware", "foo"]) == UsageError.exit_code
    assert capsys.readouterr().err.count("--hardware foo: unknown") == 2


def test_a_name_moves_no_cursor_and_breaks_no_column() -> None:
    rude = replace(run("a\x1b[2Jb" + "n" * 100, mean_ttft_ms=123456.78), source="x\ny:3")
    said = shown(audit_runs([rude], None, None))
    assert "\x1b" not in said
    assert "a�[2Jb" in said
    assert max(map(len, said.splitlines())) <= 80
    assert "1.2e+05" in said


def test_the_page_of_the_audit_walks_through_the_thor_page_as_it_is() -> None:
    page = " ".join(DOCS.read_text("utf-8").split())
    findings = audit_runs(read_sources([str(PAGE)]).reported, machines.find_machine("jetson-thor"), None)
    rows = [line.strip("| ").split(" | ") for line in DOCS.read_text("utf-8").splitlines() if "| " in line]
    loads, shown = next(row[1:] for row in rows if row[0] == "checkpoint"), dict[tuple[str, str], str]()
    for names, *cells in (row for row in rows if len(row) == 3):
        base, *more = names.split(", ")  # Qwen3-8B, -AWQ: the name, and what others of it end with
        for name in (base, *(base + end for end in more)):
            shown |= {(name, load): cell for load, cell in zip(loads, cells, strict=True)}
    for one in findings:
        doubts = ": " + ", ".join(f"`{name}`" for name in grave(one)) if grave(one) else ""
        assert shown[one.reported.name, one.reported.load.name] == f"{one.level}{doubts}"
    for found in findings[3].findings[:3]:
        assert f"{found.rule.code}: {found.evidence}" in page
