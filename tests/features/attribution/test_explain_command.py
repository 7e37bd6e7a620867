"""`loadgen explain`: its page, the section of the report, and the directories that it explains."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import made_attributions as made
from builders import made_runs
from builders.loops import loop_over
from loadgen import cli
from loadgen.base.tables import render_text_table
from loadgen.base.text import wrap_text
from loadgen.facts.run_facts import Client, Server, SpanFacts
from loadgen.features.attribution.attribution import Attribution
from loadgen.features.attribution.attribution_section import (
    describe_attribution,
    make_attribution_table,
    summarize_attribution,
)
from loadgen.features.attribution.explain_command import explain_run
from loadgen.report.result_block import find_layout
from loadgen.report.run_directory import ARRIVALS, RESULT, Result
from loadgen.report.section import ReportOptions
from loadgen.server.server_counters import ServerLatency, ServerWindow
from loadgen.transport.failure import FailureKind


def keep(place: Path, **changes: Any) -> Path:
    place.mkdir(parents=True)
    return made_runs.keep(made_runs.run(**changes), place)


def test_the_runs_of_a_directory_are_listed_one_after_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(tmp_path / "b")
    keep(tmp_path / "a" / "deep", requests=12, failed=12, kind=FailureKind.CONNECT)
    keep(tmp_path / ".hidden")
    damaged = keep(tmp_path / "c")
    (damaged / ARRIVALS).write_bytes(b"")
    assert cli.main(["explain", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    heads = [line for line in shown.out.splitlines() if line.endswith(":")]
    assert heads == [f"{tmp_path}/a/deep:", f"{tmp_path}/b:"]
    assert "  every request failed: nothing was measured" in shown.out
    assert "  TTFT: median" in shown.out
    assert shown.out.endswith("loadgen explain RUN_DIR explains one of them in a page\n")
    assert shown.err.startswith(f"loadgen: {damaged}: result.json or arrivals.npz is damaged")


def test_a_directory_with_one_run_is_that_run_and_without_any_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["explain", str(tmp_path)]) == 2
    run = keep(tmp_path / "below" / "run")
    assert [cli.main(["explain", str(place)]) for place in (run, tmp_path)] == [0, 0]
    first, second = capsys.readouterr().out.split("\nTTFT: ")[1:]
    assert first.split("\nITL")[0] == second.split("\nITL")[0]
    for place in (run, keep(tmp_path / "other")):
        (place / ARRIVALS).write_bytes(b"PK")
    assert cli.main(["explain", str(tmp_path)]) == 2


def set_arrivals(place: Path, change: Callable[[dict[str, Any]], object]) -> None:
    columns = dict(np.load(place / ARRIVALS))
    change(columns)
    np.savez(place / ARRIVALS, **columns)


EDITS: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "the result of another run": (
        lambda run, other: shutil.copy(other / RESULT, run),
        "result.json and arrivals.npz are not of one run",
    ),
    "arrivals in another order": (
        lambda run, other: set_arrivals(run, lambda all: all.update(arrival_ns=all["arrival_ns"][::-1])),
        "mean_ttft_ms is ",
    ),
    "answers of other requests": (
        lambda run, other: set_arrivals(run, lambda all: all.update(sent_ns=all["sent_ns"][::-1])),
        "p99_ttft_ms is ",
    ),
    "a column less": (
        lambda run, other: set_arrivals(run, lambda all: all.update(delay_us=all["tokens"].astype("int32"))),
        "of the columns delay_us and delay_cause one is missing",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("edit", "words"), EDITS.values(), ids=EDITS)
def test_a_run_that_was_edited_is_refused_in_a_line(
    edit: Callable[[Path, Path], object], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, other = keep(tmp_path / "run"), keep(tmp_path / "other", seed=2)
    edit(run, other)
    assert cli.main(["explain", str(run)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert words in shown.err
    assert shown.err.count("\n") == 1


def test_a_result_of_other_definitions_is_not_compared(tmp_path: Path) -> None:
    run = keep(tmp_path / "run")
    result = json.loads((run / RESULT).read_text())
    result["mean_ttft_ms"] += 1
    (run / RESULT).write_text(json.dumps(result))
    assert cli.main(["explain", str(run)]) == 2
    result["loadgen"]["definitions_version"] = 3
    (run / RESULT).write_text(json.dumps(result))
    assert cli.main(["explain", str(run)]) == 0


OPTIONS = ReportOptions(False, find_layout(None))
SECTION, PAGE, NOTHING, UNKNOWN = (
    (Path(__file__).parent / "expected" / f"{name}.txt").read_text("utf-8").rstrip("\n")
    for name in ("section", "page", "nothing", "unknown")
)


def long_section(run: Result) -> str:
    lines = [line for text in describe_attribution(run, OPTIONS) for line in wrap_text(text)]
    table = make_attribution_table(run)
    return "\n".join([*(render_text_table(table).splitlines() if table.body else ()), *lines])


def page(run: Result) -> str:
    return "\n".join(explain_run(run))


def test_section_and_page_have_the_parts_that_there_are() -> None:
    assert long_section(made.run(made.BUSY)) == SECTION
    assert long_section(made.run(made.SMOOTH)) == NOTHING
    assert page(made.run(made.BUSY)).split("\n", 4)[4] == PAGE


@loop_over(
    ("found", "lines"),
    [
        (made.BUSY, ["first tokens beyond P99 TTFT: 512.1 ms, 86 % queue, 12 % prefill, 2 % unknown",
         "gaps beyond P99 ITL: 63.06 ms, 61 % others' prefill, 32 % decode step, 6 % unknown"]),
        (made.NETWORK, ["gaps beyond P99 ITL: 225 ms, 89 % retransmission, 9 % decode step, 2 % path delay"]),
        (made.SMOOTH, []),
        (made.NOTHING_KNOWN, []),
    ],
)  # fmt: skip
def test_the_short_report_has_a_line_for_each_tail_with_a_cause(found: Attribution, lines: list[str]) -> None:
    run = made.run(found)
    assert [*summarize_attribution(run, OPTIONS)] == lines
    assert max(map(len, f"{long_section(run)}\n{page(run)}".split("\n"))) <= 80
    assert len(page(run).split("\n")) <= 60


FEW = made.attribution([made.QUEUED] * 30, [made.STALLED] * 30, ("rtt", "spans"))
RING = Client(transport="ring", cpu_s=1.0, wall_s=2.0)
OURS = Server(url="http://h/v1/completions", engine="loadgen engine", model="m")
NONE_CAME = SpanFacts(key="0" * 32, wall_offset_ns=0, received=True)


@loop_over(
    ("run", "named", "not_named"),
    [
        pytest.param(made.run(made.NOTHING_KNOWN, window=None), [UNKNOWN], [], id="what would show it"),
        pytest.param(made.run(made.NOTHING_KNOWN, client=RING, spans=NONE_CAME), [],
         ["--transport", "--receive-spans", "/metrics"], id="nothing that the run had already"),
        pytest.param(made.run(made.NOTHING_KNOWN, server=OURS),
         ["`loadgen engine --enable-per-request-metrics`"], ["--receive-spans"], id="our own engine"),
        pytest.param(made.run(FEW),
         ["queue, prefill: the server's spans",
          "decode step, others' prefill: what all streams do at one instant"],
         ["the server's own times of each request"], id="evidence, though few requests had it"),
    ],
)  # fmt: skip
def test_evidence_and_advice_are_of_the_run(run: Result, named: list[str], not_named: list[str]) -> None:
    text = f"{page(run)}\n{' '.join(page(run).split())}"
    assert [words for words in named if words not in text] == []
    assert [words for words in not_named if words in text] == []


def with_means(count: int, **means_ms: float) -> str:
    """The page of 100 first tokens of which nothing is known; the server has these means of so many."""
    timed = {
        name: ServerLatency(count=count, mean_ms=value, brackets_ms={}) for name, value in means_ms.items()
    }
    records = made_runs.run(
        requests=100, tokens=30, window=ServerWindow.model_validate({"names": "vllm", **timed})
    )
    return page(records)


def test_parts_of_the_mean_are_the_server_s_means() -> None:
    text = with_means(100, queue=3.0, prefill=20.0, ttft=24.5)
    table = {row[:17].strip(): row.split() for row in text.splitlines()}
    assert "mean of all*" in text
    assert "* parts of this mean are the server's own means" in " ".join(text.split())
    assert table["queue"][1:4] == ["–", "3.00", "(4"]
    assert table["prefill"][1:4] == ["–", "20.00", "(25"]
    assert table["HTTP, tokenizing"][2:5] == ["–", "1.50", "(2"]


def test_a_run_without_times_of_tokens_says_why_there_is_no_more() -> None:
    failed = made_runs.run(requests=12, failed=12, kind=FailureKind.CONNECT)
    assert page(failed).endswith("\nevery request failed: nothing was measured")
    assert long_section(failed) == ""
    assert [*summarize_attribution(failed, OPTIONS)] == []


@pytest.mark.parametrize(("requests", "tokens"), [(1, 1), (1, 2), (1, 40), (3, 1)])
def test_a_run_of_a_few_requests_is_explained(requests: int, tokens: int) -> None:
    text = page(made_runs.run(requests=requests, tokens=tokens, concurrency=1))
    assert "TTFT: median" in text
    assert ("no gap beyond P99" in text) == (tokens <= 2)
