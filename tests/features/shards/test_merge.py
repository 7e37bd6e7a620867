"""Merge: shards of any number and order are, byte for byte, the one run that they are together."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import made_cases, made_runs, provoked_data, shard_runs
from builders.loops import loop_over
from builders.made_cases import changed, client, closed, failed, open_loop, rate
from builders.shard_runs import by_workers, divided, named, selected, shard
from loadgen.base.structs import replace
from loadgen.facts.run_facts import Facts, Join, list_annotations
from loadgen.facts.sensor_facts import SensorSummary
from loadgen.features.quality.answer_check import make_empty_fingerprint
from loadgen.features.shards import merge
from loadgen.plan import profile
from loadgen.records.record import Records
from loadgen.report import report, request_rows, run_directory
from loadgen.report.run import Run
from loadgen.report.run_directory import Result
from loadgen.report.saved_run import encode_run
from loadgen.server import sample_file
from loadgen.transport.failure import USER_CANCELLED, FailureKind

# What names the merge itself in a report that explains.
ROWS = re.compile("merged from |  shard ").match
SENSED = SensorSummary(
    duration_s=3.2, period_s=0.1, samples=32, cpu_ms_per_sample=0.1, missing=("no sensor",)
)

NO_FINGERPRINT = make_empty_fingerprint("not asked")


def case(*arguments: Any, **facts: Any) -> Result:
    """A run of tests/builders/made_cases as a result."""
    made = made_cases.run(*arguments, **facts)
    return Result(made.facts, made.records)


def made(**keys: Any) -> Result:
    """A run of tests/builders/made_runs whose profile has these keys too."""
    run = made_runs.run(failed=1, concurrency=8)
    table = {"name": "made", "input_len": 64, "output_len": 16, "num_prompts": 24, "max_concurrency": 8}
    return Result(replace(run.facts, profile=profile.build({**table, **keys})), run.records)


STORED = Path(__file__).parents[2] / "data" / "run_directories" / "smoke"
OF_DATA = {name: Result(made.facts, made.records) for name, (made, _, _) in provoked_data.OF_DATA.items()}
RUNS = {
    **OF_DATA,
    "a stored run": run_directory.load(STORED),
    "a closed loop": case(),
    "a closed loop for a time": case(closed(), {"duration": 5.0, "num_prompts": None}),
    "a rate": case(open_loop(), rate(100)),
    "a rate that is not reached": case(open_loop(stretch=1.2), rate(100, 16)),
    "requests that fail": case(failed(5)),
    "requests that are cut off": case(
        failed(5, FailureKind.CANCELLED), cut_short="stopped by Ctrl-C", interrupted=True, signal=2
    ),
    "requests that are cancelled as planned": case(
        changed(closed(), 5, failure=USER_CANCELLED), {"cancel_rate": "20%", "cancel_after": "100ms"}
    ),
    "stages of concurrency": case(
        closed(),
        {"schedule": "concurrency 8 for 1s, 16 for 1m", "max_concurrency": None, "num_prompts": None},
    ),
    "more was planned": case(closed(), stop_rule="--max-duration 60 s", requests=400),
    "whole answers": made(stream=False),
    "many figures": made(
        percentile_metrics="ttft,tpot,itl,e2el,prefill_speed,tps_user,token_time,ttfvt",
        metric_percentiles="50,90,99.9",
        goodput=("ttft:50", "e2el:900"),
        warmup="2",
        cooldown="0.05s",
    ),
    "without usage": case(changed(closed(), usage=False, exact_tokens=False), window=None),
    "a busy client": case(made_cases.shared(0.4), client=client(cpu_s=70.0, late_bodies=40, segments=9)),
    "sensors, fingerprint, samples": Result(
        replace(made_runs.run(concurrency=8).facts, sensed=SENSED, fingerprint=NO_FINGERPRINT),
        made_runs.run(concurrency=8).records,
        sample_file.keep_samples((), made_runs.run().facts.window, 10**12),
    ),
    "notes": case(
        notes=("one", "two"), unknown=("three",), warmups=9, warmup_failures=1, reasoned=3, throttled=("hot",)
    ),
}  # fmt: skip


def texts(run: Result) -> dict[str, str]:
    """All that is made of a run but what names the merge."""
    stored = encode_run(run, detailed=True)
    ours = stored["loadgen"]
    client = ours.pop("client")
    return {
        "report": report.render_report(run),
        "explained": "\n".join(
            line for line in report.render_report(run, explain=True).split("\n") if not ROWS(line)
        ),
        "short": report.render_short(run, "runs/1"),
        "client": json.dumps({**client, "cpu_s": round(client["cpu_s"], 9)}),
        "shards": str(bool(ours.pop("shards"))) and "",
        "stored": json.dumps(stored, allow_nan=False),
    }


@pytest.mark.parametrize("of", [1, 2, 7])
def test_merged_shards_are_the_run_of_one_process(of: int) -> None:
    # Each shard has a slot at least.
    divisible = [name for name, run in RUNS.items() if of <= (run.facts.profile.held_concurrency or of)]

    @loop_over("name", divisible)
    def check(name: str) -> None:
        shards = named(divided(RUNS[name], of))
        merged = merge.merge_results([*shards[1::2], *shards[::2]])
        assert texts(merged) == texts(by_workers(RUNS[name], of))
        assert [row.requests for row in merged.facts.shards] == [len(run.records) for _, run in shards]

    check()


def test_shards_without_a_request_are_merged() -> None:
    run = made_runs.run(requests=3, concurrency=3)
    shards = divided(run, 7)
    idle = client(transport="httpx", why="none was needed", cpu_s=shards[3].facts.client.cpu_s)
    shards[3] = shard_runs.part(run, 3, 7, client=replace(idle, wall_s=0.1))
    assert texts(merge.merge_results(named(shards))) == texts(by_workers(run, 7))


@pytest.mark.parametrize("name", ["a rate", "requests that fail"])
def test_directories_of_shards_are_merged_as_they_were(name: str, tmp_path: Path) -> None:
    places = [Run(run).save(tmp_path / f"{number}") for number, run in enumerate(divided(RUNS[name], 3))]
    merged = merge.merge([places[2], str(places[0]), places[1]]).save(tmp_path / "merged")
    assert texts(run_directory.load(merged)) == texts(by_workers(RUNS[name], 3))


@cache
def a_rate_by_workers(count: int) -> dict[str, str]:
    """The texts of one of the runs, sent by so many workers."""
    return texts(by_workers(RUNS["a rate"], count))


@given(st.integers(1, 9), st.integers(0, 2**32))
def test_sessions_may_divide_a_plan_in_any_way(of: int, seed: int) -> None:
    run = RUNS["a rate"]
    owners = np.random.default_rng(seed).integers(0, of, len(run.records))
    shards = [
        Result(
            replace(shard_runs.part(run, number, of).facts, shard=shard(number, of, sessions=True)),
            selected(run.records, np.flatnonzero(owners == number)),
        )
        for number in range(of)
    ]
    assert texts(merge.merge_results(named(shards))) == a_rate_by_workers(of)


def test_every_join_has_a_rule() -> None:
    assert {*merge.RULES, Join.DECIDED} == set(Join)
    decided = {name for name, join in list_annotations(Facts, Join).items() if join is Join.DECIDED}
    assert decided == {"requests", "recovered", "shard", "shards", "lost"}


def test_records_of_many_blocks_are_moved_as_those_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from loadgen.features.shards.merge import Shifted
    from loadgen.records import record

    records = made_runs.run(failed=2).records
    whole = [*Shifted(records, 5).parts()]
    monkeypatch.setattr(record, "BLOCK", 40)
    many = [*Shifted(records, 5).parts()]
    assert (len(whole), len(many)) == (1, 12)
    assert Records.join(many).pack() == whole[0].pack()
    assert (whole[0].arrival_ns - records.arrival_ns).tolist() == [5] * len(records.arrival_ns)
    assert (whole[0].connect_ns == records.connect_ns).all()


@pytest.mark.parametrize(
    ("prefixes", "ids"),
    [
        (("a-", "a-"), ["a-0", "a-1", "a-2"]),
        (("a-", "b-"), ["a-0", "b-1", "a-2"]),
        (("a-", None), ["a-0", None, "a-2"]),
        ((None, None), None),
    ],
)
def test_requests_keep_the_ids_that_they_were_sent_with(
    prefixes: tuple[str | None, ...], ids: list[str | None] | None
) -> None:
    shards = [
        shard_runs.part(RUNS["a rate"], number, 2, request_id_prefix=prefix)
        for number, prefix in enumerate(prefixes)
    ]
    merged = merge.merge_results(named(shards))
    stored = encode_run(merged, detailed=True)["loadgen"]["per_request"]["request_ids"]
    assert (stored and stored[:3]) == ids
    exported = [row["request_id"] for rows in request_rows.list_rows(merged) for row in rows]
    assert exported[:3] == (ids or [None] * 3)
