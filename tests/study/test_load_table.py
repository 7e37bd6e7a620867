"""Load table: a row a load, with the columns in which rows differ; a run in the shape of everybody's."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builders import made_data, made_runs
from builders.loops import loop_over, loop_over_named, read_tables
from loadgen.base.passages import render_passage
from loadgen.base.structs import replace
from loadgen.facts.run_facts import Cell, MemoryUse, SensorSummary, Server
from loadgen.plan import profile
from loadgen.report import run_directory
from loadgen.report.load_identity import Load
from loadgen.server.checkpoint import Checkpoint
from loadgen.study import load_table
from loadgen.study.load_table import LoadRow
from loadgen.study.repeats import Mean
from loadgen.study.run_summary import summarise_run
from report.test_run_directory import WHEN, made

TABLES = read_tables("load_table")


def row(**changes: Any) -> LoadRow:
    """A row of a load with these facts, under the names that its columns have, and its other fields."""
    names = {"load": "name", "concurrency": "max_concurrency", "rate_per_s": "request_rate_per_s"}
    load: dict[str, Any] = {"input_len": 64.0, "output_len": 16.0, "requests": 32, "concurrency": 4}
    of_load = ({*Load.__struct_fields__} | {*names}) - {"name"}
    load |= {key: changes.pop(key) for key in [*changes] if key in of_load}
    made = Load(**{names.get(key, key): value for key, value in load.items()})
    return LoadRow(**{"name": "m", "load": made, "figures": {"output_throughput": Mean(100.0)}, **changes})


def titles(*rows: LoadRow) -> list[str]:
    return [column.short or column.title for column in load_table.make_load_table(rows).columns]


def drawn(rows: list[LoadRow]) -> str:
    """The rows as a terminal has them."""
    return render_passage(load_table.make_load_passage(rows))


def test_rates_alone_have_no_column_of_concurrency() -> None:
    rows = [row(concurrency=None, rate_per_s=rate) for rate in (1.0, math.inf)]
    assert titles(*rows) == ["model", "asked req/s", "tok/s"]
    assert [cells[1] for cells in load_table.make_load_table(rows).body] == ["1", "inf"]


@loop_over(("changes", "title"), TABLES["titles"])
def test_the_title_is_what_rows_have_in_common(changes: dict[str, Any], title: str) -> None:
    assert load_table.describe_common([row(**changes), row(**changes)]) == title
    other = load_table.describe_common(
        [row(**changes), row(name="n", input_len=1.0, requests=1, concurrency=8)]
    )
    assert "64 in" not in other


@pytest.mark.parametrize(("changes", "verdict"), [
    ({"verdict": "SUSPECT"}, "SUSPECT"),
    ({"verdict": "SUSPECT", "saturated": True}, "saturated"),
    ({"verdict": "INVALID", "saturated": True}, "INVALID, saturated"),
])  # fmt: skip
def test_a_saturated_row_says_so_in_the_verdict(changes: dict[str, Any], verdict: str) -> None:
    table = load_table.make_load_table([row(**changes)])
    assert (table.columns[-1].title, table.body[0][-1]) == ("verdict", verdict)


def test_a_repeat_that_ran_to_its_end_gives_a_saturated_row_no_latency() -> None:
    whole, ended = made_runs.run(seed=1), made_runs.saturated(seed=2)
    (made,) = load_table.merge_repeats([load_table.make_load_row(run) for run in (whole, ended)])
    assert (made.saturated, made.runs) == (True, 2)
    assert set(made.figures) == {"output_throughput", "failed"}


def test_an_interval_has_no_more_than_two_digits() -> None:
    rows = [row(figures={"output_throughput": Mean(1234.5, half)}, runs=3) for half in (0.123, 45.6)]
    assert [cells[-1] for cells in load_table.make_load_table(rows).body] == ["1234.5 ±0.1", "1234 ±46"]
    assert load_table.list_legend(rows) == ["± half of the mean's 95 % confidence interval"]


def test_what_ran_in_part_as_a_simulation_is_named() -> None:
    rows = [row(), row(name="s", simulated=True)]
    assert [each.shown_name for each in rows] == ["m", "s (SIMULATED)"]
    assert load_table.list_legend(rows) == [f"s: {load_table.SIMULATION}"]


def of_seed(seed: int, mean: float, **facts: Any) -> LoadRow:
    """A run of a file's rows as that seed drew them."""
    data = made_data.data(input=made_data.lengths(mean, 4, 900), output=made_data.lengths(16, 16, 16))
    keys = {"dataset_path": "rows.jsonl", "max_concurrency": 4}
    run = made_runs.run(seed=seed, profile=profile.build(keys), **{"data": data, **facts})
    return load_table.make_load_row(run)


def test_repeats_of_a_file_are_one_row_whatever_a_seed_drew() -> None:
    (merged,) = load_table.merge_repeats([of_seed(1, 101.2), of_seed(2, 107.9)])
    assert (merged.runs, merged.load.shape) == (2, "sharegpt 0123456789ab")
    other = made_data.data(file_digest="fedcba9876543210", output=made_data.lengths(16, 16, 16))
    assert len(load_table.merge_repeats([of_seed(1, 100.0), of_seed(1, 100.0, data=other)])) == 2


SLO = {"fails": "e2el p50 < 1ms", "meets": "e2el p50 < 60s", "not shown": "e2el p99 < 60s"}


def judged(slo: str, **facts: Any) -> LoadRow:
    measured = made_runs.run(requests=60)
    profile = measured.facts.profile.model_copy(update={"slo": slo})
    return load_table.make_load_row(
        run_directory.Result(replace(measured.facts, profile=profile, **facts), measured.records)
    )


@pytest.mark.parametrize("standing", SLO)
def test_a_run_with_objectives_says_in_its_row_whether_it_meets_them(standing: str) -> None:
    row = judged(SLO[standing])
    table = load_table.make_load_table([row, run_row()])
    at = [column.title for column in table.columns].index("slo")
    assert [cells[at] for cells in table.body] == [standing, "-"]
    assert row.standing == standing


def run_row() -> LoadRow:
    return load_table.make_load_row(made_runs.run(requests=60))


@loop_over(("tokens", "dips"), TABLES["dips"])
def test_a_throughput_that_falls_and_rises_again_has_a_word(
    tokens: tuple[float, ...], dips: list[str]
) -> None:
    rows = [
        row(concurrency=2**at, figures={"output_throughput": Mean(float(value))})
        for at, value in enumerate(tokens)
    ]
    lines = load_table.find_dips(rows[::-1])
    assert [line.partition(" (")[0] for line in lines] == [f"throughput falls at {load}" for load in dips]
    shown = " ".join(drawn(rows).split())
    assert ("rises again" in shown) is bool(dips)


def test_runs_at_one_load_are_one_point_of_its_curve() -> None:
    """A search measures a load again; that one of its runs was slower is no fall with the load."""
    rows = [
        row(concurrency=at, figures={"output_throughput": Mean(value)})
        for at, value in ((1, 151.0), (1, 90.0), (2, 300.0), (2, 160.0), (4, 461.0))
    ]
    assert load_table.find_dips(rows) == []
    (line,) = load_table.find_dips([*rows, row(concurrency=3, figures={"output_throughput": Mean(100.0)})])
    assert line.startswith("throughput falls at 3 at a time (230 → 100 tok/s) and rises again (461)")


HERE = Path("runs/r")


def server(**changes: Any) -> Server:
    told = {
        "url": "http://127.0.0.1:8000/v1/completions", "engine": "vLLM", "version": "0.32", "model": "qwen3",
    }  # fmt: skip
    return Server(**{**told, **changes})


def test_a_run_that_was_not_streamed_has_its_end_to_end_latency() -> None:
    known = summarise_run(HERE, made(keys={"stream": False, "goodput": ()}))
    assert known.figure("mean_e2el_ms") == 100.0
    assert known.figure("mean_ttft_ms") is None


def test_a_run_tells_load_verdict_and_where_it_is_from() -> None:
    run = made()
    known = summarise_run(HERE, run)
    assert (known.load.name, known.load.requests, known.load.input_len, known.load.output_len) == (
        "p", 3, 10, 5,
    )  # fmt: skip
    assert (known.load.asked_input_len, known.load.asked_output_len, known.load.seed) == (10, 5, 7)
    assert (known.load.max_concurrency, known.load.request_rate_per_s) == (2, math.inf)
    assert (known.source, known.told_by, known.engine) == ("runs/r", "loadgen", "vLLM 1")
    assert (known.plan_digest, known.started, known.run) == ("abc", WHEN, run)
    assert known.level == run.verdict.level.value
    assert known.doubts == tuple(one.rule.code for one in run.verdict.grave)


def checkpoint(quantization: str = "", path: str = "/m/x") -> Checkpoint:
    return Checkpoint(path=path, config_digest="d", quantization=quantization, weight_bytes=7)


@loop_over_named(("changes", "name"), TABLES["names"])
def test_a_checkpoint_is_called_by_what_tells_it_from_others(changes: dict[str, Any], name: str) -> None:
    makers: dict[str, Callable[..., Any]] = {"server": server, "checkpoint": checkpoint, "cell": Cell}
    facts = {key: makers[key](**value) if key in makers else value for key, value in changes.items()}
    assert summarise_run(HERE, made(**facts)).name == name


@pytest.mark.parametrize(
    ("url", "machine"), [("http://localhost:1/v1", "NVIDIA Thor"), ("http://elsewhere:1/v1", "")]
)
def test_the_machine_is_told_where_the_server_is_on_it(url: str, machine: str) -> None:
    environment = {"cpu": "C", "gpu": "NVIDIA Thor", "jetson_power_mode": "MAXN (0)"}
    known = summarise_run(HERE, made(server=server(url=url), environment=environment))
    assert (known.machine, known.power_mode) == (machine, "MAXN (0)" if machine else "")


LEVEL = MemoryUse(peak_bytes=9, steady_bytes=8, how="h")
SENSED: dict[str, Any] = {"duration_s": 1, "period_s": 1, "samples": 1, "cpu_ms_per_sample": 0}


@loop_over(("sensed", "engine", "memory", "remark"), TABLES["memory"])
def test_memory_is_the_server_s_peak_and_says_whose(
    sensed: str | None, engine: str, memory: int | None, remark: str
) -> None:
    levels: dict[str, Any] = {sensed: LEVEL} if sensed else {}
    summary = SensorSummary(**SENSED, **levels)
    known = summarise_run(HERE, made(sensed=summary, server=server(engine=engine)))
    assert (known.memory_bytes, known.remarks) == (memory, (remark,) * bool(remark))


def test_a_simulation_and_a_partial_run_say_so() -> None:
    told = summarise_run(HERE, made(server=server(simulated="instant"), cut_short="Ctrl-C")).remarks
    assert told == ("SIMULATED with the timing of instant: no model ran", "PARTIAL: Ctrl-C")
