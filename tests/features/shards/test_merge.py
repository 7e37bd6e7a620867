"""Merge: shards of any number and order are, byte for byte, the one run that they are together."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import made_cases, made_runs, provoked_data, shard_runs
from builders.loops import loop_over, loop_over_named
from builders.made_cases import changed, client, closed, failed, open_loop, rate
from builders.provoked_shards import OF_SHARDS
from builders.shard_runs import by_workers, divided, named, part, selected, shard
from loadgen import __version__, cli
from loadgen.base.errors import UsageError
from loadgen.base.structs import replace
from loadgen.facts.run_facts import Facts, Join, SensorSummary, list_annotations
from loadgen.features.fingerprint.answer_check import make_empty_fingerprint
from loadgen.features.shards import merge
from loadgen.plan import profile
from loadgen.records import record
from loadgen.records.journal import JOURNAL, Journal
from loadgen.records.record import Record, Records
from loadgen.report import report, run_directory
from loadgen.report.run import Run
from loadgen.report.run_directory import Result
from loadgen.report.run_writer import encode_run
from loadgen.server import sample_file
from loadgen.transport.failure import USER_CANCELLED, FailureKind
from loadgen.verdict import verdict
from verdict.test_doubts import PROVOKED

# What names the merge itself in a report that explains.
ROWS = re.compile("merged from |  shard ").match
SENSED = SensorSummary(
    duration_s=3.2, period_s=0.1, samples=32, cpu_ms_per_sample=0.1, missing=("no sensor",)
)

NO_FINGERPRINT = make_empty_fingerprint("not asked")
RUN = made_runs.run()
TWO = divided(RUN, 2)
GRAVE = ["load-lost", "rest-of-the-load"]


def case(*arguments: Any, **facts: Any) -> Result:
    made = made_cases.run(*arguments, **facts)
    return Result(made.facts, made.records)


OPEN = case(open_loop(), rate(100))


def made(**keys: Any) -> Result:
    """A run of tests/builders/made_runs whose profile has these keys too."""
    run = made_runs.run(failed=1, concurrency=8)
    table = {"name": "made", "input_len": 64, "output_len": 16, "num_prompts": 24, "max_concurrency": 8}
    return Result(replace(run.facts, profile=profile.build({**table, **keys})), run.records)


STORED = Path(__file__).parents[2] / "data" / "run_directories" / "smoke"
OF_DATA = {name: Result(made.facts, made.records) for name, (made, _) in provoked_data.OF_DATA.items()}
RUNS = {
    **OF_DATA,
    "a stored run": run_directory.load(STORED),
    "a closed loop": case(),
    "a closed loop for a time": case(closed(), {"duration": 5.0, "num_prompts": None}),
    "a rate": OPEN,
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
    records = made_runs.run(failed=2).records
    whole = [*merge.shift_records(records, 5)]
    monkeypatch.setattr(record, "BLOCK", 40)
    many = [*merge.shift_records(records, 5)]
    assert (len(whole), len(many)) == (1, 12)
    assert Records.join(many).pack() == whole[0].pack()
    assert (whole[0].arrival_ns - records.arrival_ns).tolist() == [5] * len(records.arrival_ns)
    assert (whole[0].connect_ns == records.connect_ns).all()


def other(**changes: Any) -> list[Result]:
    """The first shard, and the second with these facts."""
    return [TWO[0], part(RUN, 1, 2, **changes)]


def holding(indices: list[int], number: int = 1, of: int = 2, **changes: Any) -> Result:
    """Shard `number` with these requests."""
    mine = selected(RUN.records, np.array(indices))
    return Result(part(RUN, number, of, **changes).facts, mine)


SERVER = RUN.facts.server
# What the second of two shards has of its own, what that is called, and the values of both.
DIFFERENT: list[tuple[list[Result], str]] = [
    (other(shard=shard(1, 2, version="0.0.9")), f"loadgen version: {__version__} and 0.0.9"),
    (other(format=1), "format: 2 and 1"),
    ([TWO[0], part(RUN, 1, 3)], "number of shards: 2 and 3"),
    (
        other(profile=RUN.facts.profile.model_copy(update={"max_concurrency": 8, "output_len": 3})),
        "profile: output_len 16 and 3, max_concurrency 4 and 8",
    ),
    (other(seed=8), "seed: 7 and 8"),
    (other(repeat=1), "repeat: 0 and 1"),
    (other(server=replace(SERVER, version="2")), "engine: vLLM 1 and vLLM 2"),
    (other(server=replace(SERVER, model="org/n")), "model: org/m and org/n"),
    (other(targets=("http://a", "http://b")), "base URLs:  and http://a, http://b"),
    (other(plan_digest="abd"), "plan digest: abc and abd"),
    (other(requests=30), "planned requests: 24 and 30"),
]
REFUSED: dict[str, tuple[list[Result], str]] = {
    "none": ([], "nothing to merge: name the run directories that the shards left"),
    "no shard": ([TWO[0], RUN], "runs/1 is not a shard: merge joins runs of `loadgen bench --shard I/N`"),
    "a merged run": (
        [merge.merge_results(named(TWO)), TWO[1]],
        "runs/0 is merged already: name the run directories of the shards themselves",
    ),
    "a number beyond": (
        [part(RUN, 1, 2, shard=shard(2, 2))],
        "runs/0: result.json is damaged: there is no shard 2/2, they count from 0",
    ),
    **{
        words: (results, f"runs/0 and runs/1 differ in {words}: merge the shards of one command")
        for results, words in DIFFERENT
    },
    "the same shard twice": ([TWO[1], TWO[1]], "runs/0 and runs/1 are both shard 1/2: name each shard once"),
    "requests twice": (
        [holding([0, 2, 4, 6]), holding([1, 2, 3, 4], 0)],
        "runs/1 and runs/0 both hold requests 2, 4: one is damaged",
    ),
    "requests of others": (
        [holding([0, 1, 2, 4, 5])],
        "runs/0 is shard 1/2 and holds requests of others: 0, 2, 4",
    ),
    "requests beyond the plan": (
        [Result(part(RUN, 1, 2, requests=20).facts, TWO[1].records)],
        "runs/0 holds requests 21, 23 of a plan of 20: it is damaged",
    ),
    "clocks that cannot be": (
        [TWO[0], part(RUN, 1, 2, shard=shard_runs.elsewhere(1, 2, 2 * 10**12))],
        "the shards' times cannot be of one clock: their clock readings are wrong",
    ),
}


@loop_over_named(("results", "words"), REFUSED)
def test_what_is_of_another_run_is_refused_and_named(results: list[Result], words: str) -> None:
    with pytest.raises(UsageError) as refused:
        merge.merge_results(named(results))
    assert str(refused.value).startswith(words)


def of(*names: str) -> Callable[[Path], list[str]]:
    return lambda base: [str(base / name) for name in names]


@loop_over(
    ("words", "message"),
    [
        (of(), ""),  # the help
        (of("0", "0"), "{base}/0 is named twice: name each shard once"),
        (of("0", "1/../0"), "{base}/1/../0 is named twice: name each shard once"),
        (of("0", "nowhere"), "{base}/nowhere is not a run directory: "),
        (of("0", "empty"), "{base}/empty is not a run directory: "),
        (of("0", "damaged"), "{base}/damaged: result.json or arrivals.npz is damaged: "),
        (of("0", "whole"), "{base}/whole is not a shard: merge joins runs of `loadgen bench --shard I/N`"),
        (
            lambda base: [*of("0", "1")(base), "--output", str(base / "0")],
            "{base}/0 holds a run already: choose",
        ),
        (lambda base: [*of("0", "1")(base), "--output", "/proc/x"], "cannot write /proc/x: "),
        (lambda base: [*of("0", "1")(base), "--layout", "x"], "--layout x: no such layout"),
        (lambda base: ["--outpt", "x", str(base)], "unknown flag --outpt, did you mean"),
    ],
)
def test_a_wrong_command_is_one_line(
    words: Callable[[Path], list[str]], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, run in {"0": TWO[0], "1": TWO[1], "whole": RUN, "damaged": TWO[1]}.items():
        Run(run).save(tmp_path / name)
    (tmp_path / "empty").mkdir()
    (tmp_path / "damaged" / "result.json").write_text("{", "utf-8")
    before = sorted(path.name for path in tmp_path.iterdir())
    assert cli.main(["merge", *words(tmp_path)]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("loadgen: " + message.format(base=tmp_path) if message else "")
    assert said.err.count("\n") == bool(message)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize("of", [pytest.param(2, marks=pytest.mark.long), 7])
@loop_over("name", [name for name in PROVOKED if name not in OF_SHARDS])
def test_a_doubt_of_a_run_is_that_of_its_merged_shards(name: str, of: int) -> None:
    case, _ = PROVOKED[name]
    run = Result(case.facts, case.records)
    merged = merge.merge_results(named(divided(run, of)))
    assert verdict.encode_verdict(merged.verdict) == verdict.encode_verdict(by_workers(run, of).verdict)


def lost(run: Result) -> list[int]:
    """The indices that were lost."""
    failures = zip(run.records.index.tolist(), run.records.failures, strict=True)
    return [index for index, failure in failures if failure and failure.kind is FailureKind.LOST]


def test_a_missing_shard_costs_its_requests_and_is_named() -> None:
    shards = named(divided(OPEN, 4))
    merged = merge.merge_results([shards[3], shards[0], shards[1]])
    assert lost(merged) == list(range(2, 320, 4))
    assert merged.facts.lost == ("shard 2/4 is missing: its 80 requests are lost",)
    assert [row.lost for row in merged.facts.shards] == ["", "", *merged.facts.lost, ""]
    assert [finding.rule.code for finding in merged.verdict.grave][:2] == GRAVE
    text = report.render_report(merged)
    assert "verdict: INVALID: shard 2/4 is missing: its 80 requests are lost" in text
    assert "not finished: 80 × lost, the first: shard 2/4 was lost" in text
    assert "merged from 3 of 4 shards, lost: 2/4; all of one clock" in text
    assert (merged.metrics.requests, merged.metrics.completed) == (320, 240)


def test_a_missing_shard_that_the_plan_has_no_request_for_costs_nothing() -> None:
    run = made_runs.run(requests=3, concurrency=3)
    merged = merge.merge_results(named(divided(run, 5))[:3])
    assert (merged.facts.lost, len(merged.facts.shards)) == ((), 5)
    assert merged.metrics == run.metrics


def test_of_a_load_for_a_time_it_is_not_known_what_is_missing() -> None:
    shards = named(divided(RUNS["a closed loop for a time"], 2))
    merged = merge.merge_results(shards[1:])
    assert (merged.facts.requests, lost(merged)) == (160, [])
    assert merged.facts.lost == ("shard 0/2 is missing: how many requests are lost is not known",)
    assert [finding.rule.code for finding in merged.verdict.grave][:2] == GRAVE


def test_of_whole_sessions_what_no_shard_has_is_lost() -> None:
    shards = [part(OPEN, number, 3, shard=shard(number, 3, sessions=True)) for number in range(3)]
    merged = merge.merge_results(named(shards)[1:])
    assert lost(merged) == list(range(0, 320, 3))
    assert merged.facts.lost == ("shard 0/3 is missing: its 107 requests are lost",)
    merged = merge.merge_results(named(shards)[2:])
    assert len(lost(merged)) == 214
    share = "is missing: its share of 214 requests is lost"
    assert merged.facts.lost == (f"shard 0/3 {share}", f"shard 1/3 {share}")


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
    of_killed = part(OPEN, 1, 2, shard=shard(1, 2, after=None))
    killed(tmp_path / "1", of_killed, [row for row in rows[:100] if row.index % 2])
    Run(part(OPEN, 0, 2)).save(tmp_path / "0")
    assert cli.main(["merge", "1", "0", "--output", "both"]) == 0
    merged = run_directory.load(Path("both"))
    assert lost(merged) == list(range(101, 320, 2))
    (why,) = merged.facts.lost
    assert why.startswith(
        "shard 1/2: the client was killed during the run; read from its journal, which ends "
    )
    assert why.endswith("; 110 requests are lost")
    assert [finding.rule.code for finding in merged.verdict.grave][:2] == GRAVE
    assert "run directory: both" in capsys.readouterr().out


def test_the_command_writes_a_run_of_its_own_and_prints_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    places = [str(Run(run).save(tmp_path / f"{number}")) for number, run in enumerate(divided(RUN, 3))]
    assert cli.main(["merge", *places[::-1]]) == 0
    (directory,) = (tmp_path / "runs").iterdir()
    assert directory.name.endswith("-made-merged")
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.endswith(f"run directory: runs/{directory.name}\n")
    assert sorted(path.name for path in directory.iterdir()) == ["arrivals.npz", "report.txt", "result.json"]
    again = run_directory.load(directory)
    assert texts(again) == texts(by_workers(RUN, 3))
    assert report.render_short(again, f"runs/{directory.name}") in said.out
    assert cli.main(["merge", "--explain", "--strict", *places[1:]]) == 3
    assert "shard 0/3 is missing: its 8 requests are lost" in capsys.readouterr().out


def test_long_runs_are_joined_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "SPILLED", 100)
    merged = merge.merge_results(named(divided(OPEN, 3)), tmp_path)
    assert merged.records.pack() == OPEN.records.pack()
    assert not merged.records.arrival_ns.flags.writeable
    assert list(tmp_path.iterdir()) == []
