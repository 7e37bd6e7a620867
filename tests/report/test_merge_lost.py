"""Merge: a shard that is missing, was killed or lost a worker costs its own requests, and is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders import made_cases, made_runs
from builders.made_cases import closed, open_loop, rate
from builders.shard_runs import divided, named, part, shard
from loadgen import cli
from loadgen.base.structs import replace
from loadgen.features.shards import merge
from loadgen.records.journal import JOURNAL, Journal
from loadgen.records.record import Record
from loadgen.report import report, run_directory
from loadgen.report.run import Run
from loadgen.report.run_directory import Result
from loadgen.transport.failure import FailureKind

CASE = made_cases.run(open_loop(), rate(100))
RUN = Result(CASE.facts, CASE.records)
GRAVE = ["load-lost", "rest-of-the-load"]


def grave(run: Result) -> list[str]:
    return [finding.rule.code for finding in run.verdict.grave]


def lost(run: Result) -> list[int]:
    """The indices that were lost."""
    failures = zip(run.records.index.tolist(), run.records.failures, strict=True)
    return [index for index, failure in failures if failure and failure.kind is FailureKind.LOST]


def test_a_missing_shard_costs_its_requests_and_is_named() -> None:
    shards = named(divided(RUN, 4))
    merged = merge.merge_results([shards[3], shards[0], shards[1]])
    assert lost(merged) == list(range(2, 320, 4))
    assert merged.facts.lost == ("shard 2/4 is missing: its 80 requests are lost",)
    assert [row.lost for row in merged.facts.shards] == ["", "", *merged.facts.lost, ""]
    assert grave(merged)[:2] == GRAVE
    text = report.render_report(merged)
    assert "verdict: INVALID: shard 2/4 is missing: its 80 requests are lost" in text
    assert "not finished: 80 × lost, the first: shard 2/4 was lost" in text
    assert "merged from 3 of 4 shards, lost: 2/4; all of one clock" in text
    assert (merged.metrics.requests, merged.metrics.completed) == (320, 240)


def test_one_shard_alone_is_merged_with_the_others_lost() -> None:
    merged = merge.merge_results([("runs/1", part(RUN, 1, 3))])
    assert len(lost(merged)) == 320 - 107
    assert [row.requests for row in merged.facts.shards] == [107, 107, 106]


def test_a_missing_shard_that_the_plan_has_no_request_for_costs_nothing() -> None:
    run = made_runs.run(requests=3, concurrency=3)
    merged = merge.merge_results(named(divided(run, 5))[:3])
    assert (merged.facts.lost, len(merged.facts.shards)) == ((), 5)
    assert merged.metrics == run.metrics


def test_why_a_shard_was_lost_stands_with_it_where_it_is_known() -> None:
    merged = merge.merge_results(named(divided(RUN, 2))[:1], causes={1: "its node is dead"})
    assert merged.facts.lost == ("shard 1/2 is missing: its 160 requests are lost (its node is dead)",)
    assert merged.facts.shards[1].lost == merged.facts.lost[0]


def test_of_many_lost_shards_the_verdict_names_the_first() -> None:
    merged = merge.merge_results([("runs/9", part(RUN, 9, 10))])
    (evidence,) = (finding.evidence for finding in merged.verdict.grave if finding.rule.code == "load-lost")
    assert evidence.startswith("shard 0/10 is missing: its 32 requests are lost; shard 1/10 is missing: ")
    assert evidence.endswith("shard 3/10 is missing: its 32 requests are lost; and 5 more were lost")
    assert len(merged.facts.lost) == 9


def test_of_a_load_for_a_time_it_is_not_known_what_is_missing() -> None:
    case = made_cases.run(closed(), {"duration": 5.0, "num_prompts": None})
    shards = named(divided(Result(case.facts, case.records), 2))
    merged = merge.merge_results(shards[1:])
    assert (merged.facts.requests, lost(merged)) == (160, [])
    assert merged.facts.lost == ("shard 0/2 is missing: how many requests are lost is not known",)
    assert grave(merged)[:2] == GRAVE


def test_of_whole_sessions_what_no_shard_has_is_lost() -> None:
    shards = [part(RUN, number, 3, shard=shard(number, 3, sessions=True)) for number in range(3)]
    merged = merge.merge_results(named(shards)[1:])
    assert lost(merged) == list(range(0, 320, 3))
    assert merged.facts.lost == ("shard 0/3 is missing: its 107 requests are lost",)
    merged = merge.merge_results(named(shards)[2:])
    assert len(lost(merged)) == 214
    share = "is missing: its share of 214 requests is lost"
    assert merged.facts.lost == (f"shard 0/3 {share}", f"shard 1/3 {share}")


def test_a_lost_worker_of_a_shard_is_named_with_it() -> None:
    shards = [part(RUN, 0, 2), part(RUN, 1, 2, lost=("worker 1 was killed",))]
    merged = merge.merge_results(named(shards))
    assert merged.facts.lost == ("shard 1/2: worker 1 was killed",)
    assert grave(merged)[:2] == GRAVE


def killed(directory: Path, run: Result, rows: list[Record]) -> Path:
    """The directory of a shard that was killed after these requests."""
    directory.mkdir()
    journal = Journal(directory / JOURNAL)
    journal.put_facts(replace(run.facts, under_way=True).encode())
    for row in rows:
        journal.add(row)
    journal.finish()
    journal.close()
    return directory


def test_a_killed_shard_is_read_from_its_journal_and_the_rest_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = open_loop()
    of_killed = part(RUN, 1, 2, shard=shard(1, 2, after=None))
    killed(tmp_path / "1", of_killed, [row for row in rows[:100] if row.index % 2])
    Run(part(RUN, 0, 2)).save(tmp_path / "0")
    assert cli.main(["merge", "1", "0", "--output", "both"]) == 0
    merged = run_directory.load(Path("both"))
    assert lost(merged) == list(range(101, 320, 2))
    (why,) = merged.facts.lost
    assert why.startswith(
        "shard 1/2: the client was killed during the run; read from its journal, which ends "
    )
    assert why.endswith("; 110 requests are lost")
    assert grave(merged)[:2] == GRAVE
    assert "run directory: both" in capsys.readouterr().out


def test_the_command_writes_a_run_of_its_own_and_prints_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = made_runs.run()
    places = [str(Run(run).save(tmp_path / f"{number}")) for number, run in enumerate(divided(whole, 3))]
    assert cli.main(["merge", *places]) == 0
    (directory,) = (tmp_path / "runs").iterdir()
    assert directory.name.endswith("-made-merged")
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.endswith(f"run directory: runs/{directory.name}\n")
    assert sorted(path.name for path in directory.iterdir()) == ["arrivals.npz", "report.txt", "result.json"]
    again = run_directory.load(directory)
    assert report.render_short(again, f"runs/{directory.name}") in said.out
    assert cli.main(["merge", "--explain", "--strict", *places[1:]]) == 3
    assert "shard 0/3 is missing: its 8 requests are lost" in capsys.readouterr().out


def test_long_runs_are_joined_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from loadgen.records import record

    monkeypatch.setattr(record, "SPILLED", 100)
    merged = merge.merge_results(named(divided(RUN, 3)), tmp_path)
    assert merged.records.pack() == RUN.records.pack()
    assert not merged.records.arrival_ns.flags.writeable
    assert list(tmp_path.iterdir()) == []
