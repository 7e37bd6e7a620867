"""`loadgen explain` of directories: of one run, of many, and of files that are not of one run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import made_runs
from loadgen import cli
from loadgen.report.run_directory import ARRIVALS, RESULT
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


def test_a_directory_with_one_run_is_that_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = keep(tmp_path / "below" / "run")
    assert [cli.main(["explain", str(place)]) for place in (run, tmp_path)] == [0, 0]
    first, second = capsys.readouterr().out.split("\nTTFT: ")[1:]
    assert first.split("\nITL")[0] == second.split("\nITL")[0]


def test_a_directory_without_a_run_that_can_be_read_is_refused(tmp_path: Path) -> None:
    assert cli.main(["explain", str(tmp_path)]) == 2
    for name in ("a", "b"):
        (keep(tmp_path / name) / ARRIVALS).write_bytes(b"PK")
    assert cli.main(["explain", str(tmp_path)]) == 2


def set_arrivals(place: Path, change: Callable[[dict[str, Any]], object]) -> None:
    columns = dict(np.load(place / ARRIVALS))
    change(columns)
    np.savez(place / ARRIVALS, **columns)


NOT_OF_ONE = "result.json and arrivals.npz are not of one run"
EDITS: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "the result of another run": (
        lambda run, other: shutil.copy(other / RESULT, run), NOT_OF_ONE
    ),
    "the arrivals of another run": (
        lambda run, other: shutil.copy(other / ARRIVALS, run), NOT_OF_ONE
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
    "half of the arrivals": (
        lambda run, other: (run / ARRIVALS).write_bytes((run / ARRIVALS).read_bytes()[:2000]),
        "result.json or arrivals.npz is damaged",
    ),
    "half of the result": (
        lambda run, other: (run / RESULT).write_text((run / RESULT).read_text()[:500]),
        "result.json or arrivals.npz is damaged",
    ),
    "no number": (lambda run, other: (run / RESULT).write_text("NaN"), "is damaged"),
    "a time that no clock has": (
        lambda run, other: set_arrivals(run, lambda all: all["sent_ns"].fill(2**62)), "column sent_ns holds"
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
