"""Relations within a row of a table: rates, lengths, latencies and the concurrency, without any duration."""

from __future__ import annotations

from pathlib import Path
from random import Random
from statistics import mean

import pytest

from loadgen import cli
from loadgen.base.rule import Severity
from loadgen.report.load_identity import Load
from loadgen.study.audit.findings import RunFindings, audit_runs
from loadgen.study.importers import result_sources
from loadgen.study.run_summary import Reported
from loadgen.verdict.verdict import Level

ALL = "Concurrency,OSL,req/s,Output tok/s,TPOT (ms),TTFT (ms)"
RATES = "OSL,req/s,Output tok/s,TTFT (ms)"
ROWS = {
    "8 at once, as it is": (ALL, "8,128,7.8,998,7.9,15", ()),
    "more tokens than requests have": (RATES, "128,7.8,2500,15", ("figures-disagree",)),
    "more at once than the limit": (
        "Concurrency,Output tok/s,TPOT (ms),TTFT (ms)", "8,2500,8,50", ("beyond-schedule",),
    ),
    "both": (
        ALL, "8,128,7.8,2500,8,20", ("figures-disagree", "beyond-schedule"),
    ),
    "an E2EL of more at once": (
        "Concurrency,req/s,Output tok/s,E2EL (ms)", "8,7.8,998,3000", ("beyond-schedule",),
    ),
    "shorter answers than asked": (RATES, "1024,7.8,998,15", ()),
    "1k that is 1024": (RATES, "1000,10,10240,15", ()),
    "a throughput of all tokens": (
        "Concurrency,ISL,OSL,req/s,Throughput (tok/s),TPOT (ms)", "8,1024,128,7.2,8300,8", (),
    ),
    "a batch at full speed": ("Batch size,Output tok/s,TPOT (ms),TTFT (ms)", "8,1000,8,20", ()),
    "an open loop": ("Request rate,OSL,Output tok/s,TPOT (ms),TTFT (ms)", "8,128,1024,20,50", ()),
    "seconds as ms": (
        ALL, "8,128,7.2,921,0.008,0.052",
        ("figures-disagree",),
    ),
    "TTFT in seconds, of a full loop": (
        ALL, "64,128,20,2560,16,1.05", ("figures-disagree",),
    ),
    "TTFT in seconds": (
        ALL, "8,128,7.2,921,8.1,0.052", ("figures-disagree",),
    ),
    "a loop that was not held": (
        ALL, "64,128,7.2,921,8.1,30", (),
    ),
}  # fmt: skip


def audit(path: Path) -> list[RunFindings]:
    return audit_runs(result_sources.read_sources([str(path)]).reported, None, None)


@pytest.mark.parametrize("kind", ["md", "csv"])
@pytest.mark.parametrize("form", ROWS)
def test_the_figures_of_a_row_are_held_against_each_other(form: str, kind: str, tmp_path: Path) -> None:
    titles, row, codes = ROWS[form]
    columns = len(titles.split(",")) + 1
    lines = [f"Model,{titles}", f"Qwen3-8B,{row}"]
    if kind == "md":
        lines = [f"| {line.replace(',', ' | ')} |" for line in lines]
        lines.insert(1, "|---" * columns + "|")
    path = tmp_path / f"page.{kind}"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    (audited,) = audit(path)
    graves = (finding.rule for finding in audited.findings if finding.rule.severity is Severity.INVALID)
    found = [each.code for each in graves]
    assert found == [*codes]
    assert (audited.level is Level.INVALID) is bool(codes)


def serve_closed_loop(seed: int) -> Reported:
    """Run a server of steps that prompts lengthen, at a fixed concurrency; return the row of a table."""
    random = Random(seed)
    limit, sigma, stall_ms = (
        random.choice([1, 8, 32]),
        random.choice([0, 0.5, 1.0]),
        random.choice([0, 20, 100]),
    )
    lengths = [
        max(1, int(30 * random.lognormvariate(0, sigma))) for _ in range(random.choice([3, 10]) * limit)
    ]
    left, active = list(range(len(lengths))), dict[int, int]()
    began, first = dict[int, float](), dict[int, float]()
    now, per_token = 0.0, list[float]()
    while left or active:
        joined = left[: limit - len(active)]
        left = left[len(joined) :]
        began |= dict.fromkeys(joined, now)
        active |= dict.fromkeys(joined, 0)
        now += 10 + 0.1 * len(active) + stall_ms * len(joined)
        for at in list(active):
            active[at] += 1
            first.setdefault(at, now)
            if active[at] == lengths[at]:
                per_token.append((now - first[at]) / max(lengths[at] - 1, 1))
                del active[at]
    digits = random.choice([0, 1, 2])
    figures = {
        "output_throughput": round(1e3 * sum(lengths) / now, digits),
        "mean_tpot_ms": round(mean(per_token), digits),
        "mean_ttft_ms": round(mean(first[at] - began[at] for at in first), digits),
    }
    if random.random() < 0.5:
        figures["request_throughput"] = round(1e3 * len(lengths) / now, 2)
    asked = round(mean(lengths)) if random.random() < 0.5 else None
    load = Load(max_concurrency=limit, asked_output_len=asked, output_len=asked)
    return Reported("m-8b", figures, load, f"page.md:{seed}", told_by="table")


def test_rows_of_a_served_load_never_contradict_themselves() -> None:
    found = audit_runs([serve_closed_loop(seed) for seed in range(200)], None, None)
    assert [each.reported for each in found if each.level is Level.INVALID] == []


def test_a_model_larger_than_the_memory_is_impossible(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    rows = [
        ("Qwen3-235B-A22B", "H100"),
        ("Qwen3-235B-A22B", "8 x H100"),
        ("Qwen3-8B", "H100"),
        ("Qwen3-8B", "RTX 9090"),
    ]
    head = "| Model | GPU | Concurrency | Output tok/s | TPOT (ms) |\n|---|---|---|---|---|\n"
    page.write_text(head + "".join(f"| {model} | {gpu} | 8 | 100 | 79 |\n" for model, gpu in rows), "utf-8")
    found = ["beyond-roofline" in {finding.rule.code for finding in each.findings} for each in audit(page)]
    assert found == [True, False, False, False]
    assert cli.main(["audit", str(page)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Qwen3-235B-A22B has 470 GB of weights, H100 SXM 80GB has 80 GB of memory" in said
    assert "RTX 9090 is no machine of the table" in said


def test_a_share_of_many_times_the_roofline_keeps_its_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    row = "| Qwen3-8B | 1 | 100000 | 0.01 |\n"
    page.write_text(f"| Model | Concurrency | Output tok/s | TPOT (ms) |\n|---|---|---|---|\n{row}", "utf-8")
    assert cli.main(["audit", str(page), "--hardware", "jetson-thor"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("  1 at a time"))
    assert line.split()[4:] == ["1e+05", "-", "0.01", ">999×", "INVALID", "beyond-roofline"]


def test_random_lengths_of_a_namespace_are_not_those_of_sharegpt(tmp_path: Path) -> None:
    rows = {
        "Successful requests:": 100, "Benchmark duration (s):": "10.00", "Total input tokens:": 21000,
        "Total generated tokens:": 9000, "Mean TTFT (ms):": "80.00", "Mean TPOT (ms):": "12.00",
    }  # fmt: skip
    lines = "".join(f"{label:<41}{figure}\n" for label, figure in rows.items())
    block = f"{' Serving Benchmark Result '.center(50, '=')}\n{lines}{'=' * 50}\n"
    lengths = "random_input_len=1024, random_output_len=128, sharegpt_output_len=None, num_prompts=100"
    for data_set, asked in (("sharegpt", None), ("random", 128)):
        page = tmp_path / f"{data_set}.md"
        page.write_text(f"Namespace(dataset_name='{data_set}', {lengths})\n{block}", "utf-8")
        (audited,) = audit(page)
        assert audited.reported.load.asked_output_len == asked
        assert ("answers-short" in {finding.rule.code for finding in audited.findings}) is (asked is not None)
