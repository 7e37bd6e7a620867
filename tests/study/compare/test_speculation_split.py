"""Speculation split: a speed-up by TPOT is that of steps times that of drafts, or says why not."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from builders import made_runs
from builders.comparison_samples import cells, run
from builders.loops import loop_over, read_tables
from builders.made_runs import MS
from fakes.virtual_servers import engine_server
from fakes.virtual_serving import VirtualServing
from loadgen import cli
from loadgen.base.errors import UsageError
from loadgen.records.record import Record, Records
from loadgen.report.run_directory import Result
from loadgen.server.engine_config import EngineConfig
from loadgen.server.server_counters import ServerWindow
from loadgen.study.compare.comparison import compare_runs
from loadgen.study.compare.comparison_report import (
    describe_split,
    encode_comparisons,
    make_passage,
    render_csv,
)
from loadgen.study.compare.model import ComparedLoad, ComparisonOptions, Factor, Split
from loadgen.study.compare.speculation_split import (
    ACCEPTANCE,
    STEP_MS,
    DecodeSteps,
    add_step_figures,
    read_steps,
)
from loadgen.study.compare_command import compare
from loadgen.study.run_summary import Reported, summarise_run

TABLES = read_tables("speculation_split")

NGRAM = EngineConfig(speculative="ngram, 3 tokens")
BASE_MS, ROW_MS, LENGTHS = [60.0, 60.6, 59.4], [40.0, 40.1, 39.9], [2.0, 2.02, 1.98]


def stepped(name: str, step_ms: Sequence[float], lengths: Sequence[float]) -> list[Reported]:
    """Runs of a campaign, of which step times and acceptance lengths are known."""
    return [
        replace(
            one, figures={**one.figures, "mean_tpot_ms": step / length, STEP_MS: step, ACCEPTANCE: length}
        )
        for one, step, length in zip(cells(name, [100.0, 101.0, 99.0]), step_ms, lengths, strict=True)
    ]


def compared(*rows: list[Reported], **asked: Any) -> ComparedLoad:
    (table,) = compare_runs([one for row in rows for one in row], ComparisonOptions(**asked))
    return table


BASE, ROW = cells("A-BF16", [100.0, 101.0, 99.0]), stepped("A-FP8", ROW_MS, LENGTHS)
BASE = [
    replace(one, figures={**one.figures, "mean_tpot_ms": ms}) for one, ms in zip(BASE, BASE_MS, strict=True)
]


def measured(tokens: Sequence[int], step_ms: int, **facts: Any) -> Reported:
    """A run of ours, two answers with so many tokens in each message, a message every `step_ms`."""
    each = []
    for index in range(2):
        sent_ns = (index + 1) * 1000 * MS
        arrival_ns = sent_ns + np.arange(1, len(tokens) + 1, dtype=np.int64) * step_ms * MS
        times: dict[str, Any] = {
            "arrival_ns": arrival_ns,
            "visible_ns": int(arrival_ns[0]),
            "tokens": np.array(tokens),
        }
        counts: dict[str, Any] = {
            "input_tokens": 8, "output_tokens": sum(tokens), "usage": True, "exact_tokens": True,
        }  # fmt: skip
        each.append(Record(index, 0, sent_ns, sent_ns, int(arrival_ns[-1]), **times, **counts))
    made = made_runs.run(requests=2, **{"window": None, **facts})
    return summarise_run(Path("run"), Result(made.facts, Records.from_records(each)))


@loop_over(("tokens", "drafts", "counted", "expected"), TABLES["messages"])
def test_steps_of_a_run_are_those_of_its_messages(
    tokens: list[int], drafts: bool, counted: dict[str, Any] | None, expected: list[float] | str
) -> None:
    """Without drafts two tokens in a message are two steps."""
    facts: dict[str, Any] = {"as_run": NGRAM} if drafts else {}
    facts |= {"window": ServerWindow(names="vllm", **counted)} if counted else {}
    found = read_steps(measured(tokens, 20, **facts))
    assert found == (expected if isinstance(expected, str) else DecodeSteps(expected[0], expected[1]))


@loop_over(("own", "step", "length", "expected"), TABLES["steps"])
def test_steps_are_measured_or_computed(
    own: dict[str, float], step: float, length: float, expected: bool
) -> None:
    by = "vllm" if expected else "loadgen"
    one = run("row", 100.0, told_by=by, figures={"mean_tpot_ms": 12.0, **own})
    assert read_steps(one) == DecodeSteps(step, length, expected)


@loop_over(("split", "expected"), [
    (None, ""),
    ("why", "not split into steps and drafts: why"),
    (
        Split(Factor(2.0), Factor(1.0), Factor(2.0), 1, False, computed=True),
        "2.00× as fast by TPOT: 1.00× by its steps, 2.00× by its drafts "
        "(steps computed: TPOT × acceptance length)",
    ),
])  # fmt: skip
def test_a_split_is_one_sentence(split: Split | str | None, expected: str) -> None:
    assert describe_split(split) == expected


def test_every_form_of_a_comparison_has_the_split() -> None:
    table = compared(BASE, ROW)
    told = describe_split(table.lines[1].split)
    assert told.startswith("3.00× (2.87–3.13) as fast by TPOT: 1.50× (1.47–1.53) by its steps")
    ((_, words),) = make_passage(table, 1).leads
    assert words.startswith("A-FP8: ")
    assert words.endswith(told)
    header, *lines = csv.reader(io.StringIO(render_csv([table])))
    cell = dict(zip(header, lines[-1], strict=True))
    assert [round(float(cell[f"split_{part}"]), 3) for part in ("speed", "steps", "drafts")] == [
        3.0,
        1.5,
        2.0,
    ]
    first, second = encode_comparisons([table])["comparisons"][0]["rows"]
    assert first["split"] is None
    assert second["split"]["drafts"]["mean"] == pytest.approx(2.0, abs=1e-4)
    assert (second["split"]["units"], second["split"]["why"]) == (3, "")


@loop_over(("runs", "committed", "why"), [
    (ROW, 0.5, "give tokens a step, 1 or more"),
    (BASE, 2.5, "no run has drafts"),
    ([run("row", 9.0, figures={ACCEPTANCE: 2.0})], 2.5, "the steps of row are hidden"),
])  # fmt: skip
def test_an_acceptance_length_that_cannot_be_used(runs: list[Reported], committed: float, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        add_step_figures(runs, committed)


LOAD = (
    "input_len = 16\noutput_len = 48\nnum_prompts = 200\nmax_concurrency = 4\nignore_eos = true\n"
    "continuous_usage = true\n"
)


def measure_engine(name: str, step_ms: float, acceptance: str) -> None:
    """Measure two runs on the embedded engine with this step time and these chances."""
    limits = {"max_model_len": 512, "max_num_batched_tokens": 1024, "kv_cache_tokens": 100_000}
    preset = {"name": name, "model": name, "source": "made", "timing": {"weights_ms": step_ms}, **limits}
    flags = ("--preset-json", json.dumps(preset), "--acceptance", acceptance)
    words = ["--profile", "./load.toml", "--repeat", "2", "--quiet"]
    with VirtualServing(engine_server(*flags)) as server:
        assert cli.main(["bench", "--base-url", server.base_url, *words]) == 0


def test_steps_are_told_from_drafts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("load.toml").write_text(LOAD, "utf-8")
    measure_engine("base", 10.0, "0.4,0.2")
    measure_engine("drafts", 10.0, "0.8,0.5")
    measure_engine("steps", 5.0, "0.4,0.2")
    (table,) = compare(["runs"], baseline="base").tables
    drafts, steps = (line.split for line in table.lines[1:])
    assert isinstance(drafts, Split)
    assert isinstance(steps, Split)
    # 1 + 0.8 + 0.8 · 0.5 tokens a step ÷ 1 + 0.4 + 0.4 · 0.2, but for steps that an answer's end cuts short.
    assert drafts.drafts.mean == pytest.approx(2.2 / 1.48, rel=0.04)
    assert drafts.steps.mean == pytest.approx(1.0)
    assert steps.drafts.mean == pytest.approx(1.0, rel=0.04)  # other draws
    assert steps.steps.mean == pytest.approx(2.0)
