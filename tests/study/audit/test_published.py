"""The published pages audit to what is known of them, and to nothing else."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator

from msgspec.structs import replace

from builders.published_runs import PUBLISHED, thor
from loadgen.base.passages import render_passages
from loadgen.features.roofline import machines
from loadgen.report.load_identity import Load
from loadgen.study.audit.audit_command import list_audit_passages
from loadgen.study.audit.findings import RunFindings, audit_runs
from loadgen.study.run_summary import Reported
from loadgen.study.speed import speed_rows
from loadgen.study.speed.speed_rows import OUTPUT, convert_speed


def grave(audited: RunFindings) -> tuple[str, ...]:
    return tuple(one.rule.code for one in audited.findings if one.rule.severity)


def evidence(audited: RunFindings, name: str) -> str:
    return next(one.evidence for one in audited.findings if one.rule.code == name)


def test_the_page_fits_a_terminal() -> None:
    found = audit_runs(thor(), machines.find_machine("jetson-thor"), None)
    for explain in (False, True):
        said = render_passages(list_audit_passages(found, explain))
        assert max(map(len, said.splitlines())) <= 80
        assert "16 runs: 2 INVALID, 12 SUSPECT, 2 VALID" in said


def published() -> Iterator[Reported]:
    keys = {"H20-96GB": "h20-96gb", "A100-80GB": "a100-80gb"}
    for line, row in enumerate(speed_rows.list_published(), 2):
        if row.speed_tok_s is not None:
            name = row.model if row.quantization == "BF16" else f"{row.model}-{row.quantization}"
            machine = f"{row.gpu_num or 1} × {keys[row.gpu]}"
            lengths = row.input_length, row.output_length
            load = Load(f"input {row.input_length}", None, *lengths, None, 1)
            speed = convert_speed(float(row.speed_tok_s), row.formula, OUTPUT, *lengths)
            source = f"{row.gpu}.csv, line {line}"
            run = Reported(name, {"output_throughput": speed}, load, source, told_by="speed table")
            yield replace(run, engine=row.backend, machine=machine)


def test_no_published_speed_is_impossible_and_only_transformers_is_slow() -> None:
    findings = audit_runs(list(published()), None, None)
    accused = [(one, name) for one in findings for name in grave(one)]
    assert len(findings) == 471
    assert all(one.ceiling is not None for one in findings)
    assert Counter((one.reported.engine, one.reported.load.name, name) for one, name in accused) == {
        ("Transformers", "input 1", "slow-kernel"): 9
    }
    assert max(one.roofline or 0.0 for one in findings) < 0.75


def test_the_desk_card_has_one_row_above_the_roofline() -> None:
    with (PUBLISHED / "rtx_pro_6000_speed.csv").open(encoding="utf-8", newline="") as file:
        speeds = {row["model"]: float(row["tok_s"]) for row in csv.DictReader(file)}
    load = Load(max_concurrency=1)
    given = [Reported(name, {"speed_tok_s": speed}, load, "x") for name, speed in speeds.items()]
    findings = audit_runs(given, machines.find_machine("rtx-pro-6000"), None)
    (glm,) = (one for one in findings if grave(one))
    assert (glm.reported.name, grave(glm)) == ("GLM-4-9B-Chat-1M", ("above-roofline",))
    assert evidence(glm, "above-roofline").startswith("9.328 ms per token (tokens per second): reading 17.7")
    assert all((one.roofline or 0.0) > 0.3 for one in findings)
