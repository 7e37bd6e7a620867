"""What is recommended under constraints, when that is undecided, and what would change it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from builders import made_runs
from builders.comparison_samples import HIGH, cell, cells
from builders.loops import loop_over
from builders.made_answers import NOISE, answered, keep_campaign, made_quality, speeds, with_facts
from builders.made_limits import TTFT, limit_record
from loadgen.facts.run_facts import ATTACHED
from loadgen.study.answer.answer_settings import AnswerRequest
from loadgen.study.answer.contest import Candidate, make_load_contest
from loadgen.study.answer.recommendation import judge_constraints
from loadgen.study.compare.comparability import explain_other_quantity, list_one_servers
from loadgen.study.compare.comparison import BROKEN, compare_runs
from loadgen.study.compare.model import ComparedRow, ComparisonOptions
from loadgen.study.gate.gate_record import parse_gate_metrics
from loadgen.study.gate.gate_sides import group_sides, list_reasons, list_remarks
from loadgen.study.importers.clients.loadgen_runs import StoredLimit
from loadgen.study.limit_record import LimitEstimate
from loadgen.study.run_summary import Reported

QUALITIES = {"fp8": made_quality(0.02, 0.002), "awq": made_quality(0.06, 0.02), "int4": made_quality(0.11)}
SPEEDS = {"bf16": 100.0, "fp8": 150.0, "awq": 170.0, "int4": 210.0}
OF_SIZE = {"bf16": 16, "fp8": 9, "awq": 6, "int4": 5}


def sized() -> list[Reported]:
    """Runs of llama.cpp, which takes the memory that it needs, with a P95 of TPOT."""
    return [
        replace(
            run,
            engine="llama.cpp 1",
            memory_bytes=OF_SIZE[run.name] << 30,
            figures={**run.figures, "p95_tpot_ms": 6000 / SPEEDS[run.name]},
        )
        for run in speeds(**SPEEDS)
    ]


@loop_over(("asked", "lines"), [
    (
        {},
        [
            "take int4: the fastest, 1.24 × as fast as awq",
            "next: awq, 0.81 × as fast",
            "its KL is 0.11 (0.1 to 0.12), usual for 2 bits (llama.cpp's q2_K: 0.11 to 0.45): no --max-kl "
            "was given",
        ],
    ),
    (
        {"max_kl": 0.03},
        [
            "take fp8: the fastest within a KL of 0.03, 1.50 × as fast as bf16",
            "with --max-kl 0.12: int4, 1.40 × as fast (its KL is 0.11 (0.1 to 0.12))",
            "with --max-kl 0.08: awq, 1.13 × as fast (its KL is 0.06 (0.04 to 0.08))",
            "next: bf16, 0.67 × as fast",
        ],
    ),
    (
        {"max_kl": 0.05},
        [
            "undecided: awq is the fastest, but its KL is 0.06 (0.04 to 0.08), required: a KL of 0.05; "
            "fp8 is within all",
            "with --max-kl 0.12: int4, 1.24 × as fast (its KL is 0.11 (0.1 to 0.12))",
        ],
    ),
    (
        {"max_kl": 0.03, "fits": "8GiB"},
        [
            "take none: no checkpoint is within the constraints",
            "with --max-kl 0.12: int4 (its KL is 0.11 (0.1 to 0.12))",
            "with --max-kl 0.08: awq (its KL is 0.06 (0.04 to 0.08))",
            "with --fits 9GiB: fp8 (it needs 9.0 GiB (measured))",
            "excluded: bf16 (it needs 16.0 GiB (measured))",
        ],
    ),
    (
        {"slo": "tpot p95 < 35ms", "max_kl": 0.2, "fits": "4GiB"},
        [
            "take none: no checkpoint is within the constraints",
            "with --fits 5GiB: int4 (it needs 5.0 GiB (measured))",
            "excluded: awq (it needs 6.0 GiB (measured)), fp8 (it needs 9.0 GiB (measured)), bf16 (it "
            "needs 16.0 GiB (measured))",
        ],
    ),
    (
        {"slo": "tpot p99 < 35ms"},
        [
            "undecided: int4 is the fastest, but its tpot p99 is not known, required: tpot p99 < 35 ms",
            "excluded: awq (tpot p99 is at least 35.3 ms), fp8 (tpot p99 is at least 40 ms), bf16 (tpot "
            "p99 is at least 60 ms)",
        ],
    ),
    (
        {"slo": "tpot p99 < 35ms", "max_kl": 0.09},
        [
            "take none: no checkpoint is within the constraints",
            "excluded: int4 (its KL is 0.11 (0.1 to 0.12)), awq (tpot p99 is at least 35.3 ms), fp8 "
            "(tpot p99 is at least 40 ms) and 1 more",
        ],
    ),
])  # fmt: skip
def test_a_recommendation(tmp_path: Path, asked: dict[str, Any], lines: list[str]) -> None:
    keep_campaign(tmp_path, QUALITIES)
    (found,) = answered(tmp_path, sized(), **asked).recommendations
    assert [found.words, *found.remarks] == lines


def test_a_campaign_s_own_constraints_hold(tmp_path: Path) -> None:
    keep_campaign(tmp_path, QUALITIES, answer={"max_kl": 0.03, "fits": None, "lm_eval": {}})
    (found,) = answered(tmp_path, sized()).recommendations
    assert found.names == ("fp8",)


def test_speeds_that_are_not_told_apart_are_undecided(tmp_path: Path) -> None:
    keep_campaign(tmp_path, {})
    runs = [*cells("bf16", [100, 108, 94]), *cells("fp8", [101, 93, 107])]
    (found,) = answered(tmp_path, runs).recommendations
    assert found.choice == "undecided"
    assert found.names == ("bf16", "fp8")
    assert found.words.startswith("undecided: bf16 leads fp8 by 1.0")
    assert "per side would decide it" in found.words
    (single,) = answered(tmp_path, [*cells("bf16", [100]), *cells("fp8", [150])]).recommendations
    assert single.words == (
        "undecided: fp8 leads bf16 by 1.50 ×, which is not significant: one run a side has no spread: "
        "a verdict needs repeats"
    )


def test_of_equal_speeds_the_nearest_to_the_reference_is_taken(tmp_path: Path) -> None:
    keep_campaign(tmp_path, {"fp8": made_quality(0.02, 0.002), "awq": made_quality(0.06, 0.02)})
    alike = [1.0, 1.0002, 0.9998]
    (found,) = answered(tmp_path, speeds(HIGH, alike, bf16=100, fp8=150, awq=150.1)).recommendations
    assert found.words == "take fp8: as fast as awq, and nearer to bf16"
    bare = tmp_path / "bare"
    bare.mkdir()
    keep_campaign(bare, {})
    (found,) = answered(bare, speeds(HIGH, alike, bf16=100, fp8=150, awq=150.1)).recommendations
    assert found.words == "take awq or fp8: they are equally fast"


def test_each_load_has_a_recommendation_of_its_own_with_its_price(tmp_path: Path) -> None:
    keep_campaign(tmp_path, {})
    low = replace(HIGH, name="low-load", requests=10, max_concurrency=1)
    runs = [*speeds(bf16=100, fp8=150), *speeds(low, bf16=30, fp8=20)]
    found = answered(tmp_path, runs, price_per_hour=3.6)
    assert [each.names for each in found.recommendations] == [("fp8",), ("bf16",)]
    assert [each.words.partition("; ")[2] for each in found.recommendations] == [
        "a million output tokens cost 6.67 at the load high-load",
        "a million output tokens cost 33.3 at the load low-load",
    ]


ARMS: dict[str, dict[str, Any]] = {
    "plain": {"launch": "vllm"},
    "fp8-kv": {"launch": "vllm", "memory_fraction": 0.9, "server_args": "--async-scheduling"},
    "eager": {"launch": "vllm", "enforce_eager": True, "server_env": {"A": "b"}},
}


@loop_over(("fastest", "named"), [
    ("fp8-kv", "--memory-fraction=0.9 --server-args=--async-scheduling, no --enforce-eager, no --server-env"),
    ("eager", "--enforce-eager --server-env='{\"A\": \"b\"}', no --memory-fraction, no --server-args"),
    ("plain", "no --memory-fraction, no --server-args, no --enforce-eager, no --server-env"),
])  # fmt: skip
def test_of_one_checkpoint_the_flags_are_taken(tmp_path: Path, fastest: str, named: str) -> None:
    arms = [{"checkpoint": "m", "server": name, "flags": flags} for name, flags in ARMS.items()]
    keep_campaign(tmp_path, {}, arms=arms, baseline="")
    means = {name: 200.0 if name == fastest else 90.0 + at for at, name in enumerate(ARMS)}
    runs = [
        run
        for name, mean in means.items()
        for run in cells("m", [mean * each for each in NOISE], server=name)
    ]
    (found,) = answered(tmp_path, runs).recommendations
    assert found.words.startswith(f"take m on {fastest} ({named}): the fastest, ")


def test_broken_answers_are_not_recommended() -> None:
    (table,) = compare_runs(speeds(bf16=100, fp8=150), ComparisonOptions())
    marked = tuple(replace(line, broken=f"{BROKEN} the answers repeat") for line in table.lines)
    contest = make_load_contest(replace(table, lines=marked), ComparisonOptions())
    (judged,) = judge_constraints(Candidate("fp8", ()), contest, AnswerRequest())
    assert (judged.holds, judged.evidence) == (None, f"{BROKEN} the answers repeat")


@loop_over(("repeats", "slo", "holds", "evidence"), [
    (3, "e2el p95 < 60s", True, "e2el p95 is "),
    (3, "e2el p95 < 1ms", False, "e2el p95 is "),
    (1, "e2el p95 < 60s", None, "of too few requests"),
    (3, "e2el p99.9 < 60s", None, "of too few requests"),
    (3, "tps_user p10 > 1", True, "tps_user p10 is "),
    (3, "tps_user p10 > 1e6", False, "tok/s"),
    (1, "tps_user p5 > 1", None, "of too few requests"),
])  # fmt: skip
def test_objectives_are_judged_by_the_requests_of_all_repeats(
    repeats: int, slo: str, holds: bool | None, evidence: str
) -> None:
    runs = [made_runs.reported(made_runs.run(40, seed=seed, speed=1.0)) for seed in range(repeats)]
    (table,) = compare_runs(speeds(bf16=100, fp8=150), ComparisonOptions())
    contest = make_load_contest(table, ComparisonOptions())
    (judged,) = judge_constraints(
        Candidate("m", tuple(runs)), contest, AnswerRequest.read({"slo": slo, "fits": None})
    )
    assert judged.holds is holds
    assert evidence in judged.evidence


def searched(name: str, value: float | None, low: float, high: float) -> StoredLimit:
    """A search of one cell; the run at its highest passing load has the name of that load's directory."""
    place = Path(f"cells/{name}")
    found = None if value is None else LimitEstimate(value=value, low=low, high=high)
    record = limit_record(name=name, limit=found)
    (run, *_) = cells(name, [10 * low])
    runs = tuple(replace(run, source=str(place / each.directory), cell=cell(name, 0)) for each in record.runs)
    return StoredLimit(place, record, runs)


def test_searches_rank_by_their_limits(tmp_path: Path) -> None:
    keep_campaign(tmp_path, {"fp8": made_quality(0.02, 0.002)})
    searches = [searched("bf16", 10, 9.5, 10.5), searched("fp8", 18, 17.1, 19)]
    found = answered(tmp_path, [], searches, slo=TTFT, price_per_hour=3.6)
    keys = [column.key for column in found.columns]
    assert keys == ["speed_1", "throughput", "kl", "agreement", "output_price"]
    (recommended,) = found.recommendations
    cost = "a million output tokens cost 5.85 at its limit, 18 req/s"
    fastest = "take fp8: the fastest within ttft p99 < 500 ms, 1.8 × the req/s of bf16"
    assert recommended.words == f"{fastest}; {cost}"


def test_a_search_without_a_limit_leaves_it_undecided(tmp_path: Path) -> None:
    keep_campaign(tmp_path, {"fp8": made_quality(0.02, 0.002)})
    one = answered(tmp_path, [], [searched("bf16", 10, 9.5, 10.5), searched("fp8", None, 17.1, 19)])
    (recommended,) = one.recommendations
    assert [recommended.words, *recommended.remarks] == [
        "undecided: bf16 has the highest limit found, but others have none",
        "not ranked: fp8 (limit: at least 9.51 requests/s)",
    ]
    none = answered(tmp_path, [], [searched("bf16", None, 9.5, 10.5), searched("fp8", None, 17.1, 19)])
    assert [none.recommendations[0].words, *none.recommendations[0].remarks] == [
        "undecided: bf16 (limit: at least 9.51 requests/s), fp8 (limit: at least 9.51 requests/s)"
    ]


def answers(tokens: Sequence[int], failed: int = 0, **figures: float) -> list[Reported]:
    """Results of another client, 100 requests each, whose answers have so many tokens in the mean."""
    return [
        replace(
            each,
            told_by="vllm",
            figures={
                **each.figures,
                "completed": 100 - failed,
                "failed": failed,
                "total_output_tokens": (100 - failed) * mean,
                "total_input_tokens": (100 - failed) * 2048,
                "p95_e2el_ms": 1e3,
                **figures,
            },
        )
        for each, mean in zip(cells("m", [100.0 + at for at in range(len(tokens))]), tokens, strict=True)
    ]


ALIKE = answers([128, 128, 128])


@loop_over(("key", "own", "why"), [
    ("mean_e2el_ms", answers([128, 128, 128]), ""),
    ("mean_e2el_ms", answers([122, 122, 122]), "122 tokens per answer, baseline 128"),
    ("p95_e2el_ms", answers([122, 122, 122]), "122 tokens per answer"),
    ("request_throughput", answers([122, 122, 122]), "is of whole answers"),
    ("mean_e2el_ms", answers([122]), "122 tokens per answer"),
    ("mean_e2el_ms", answers([110, 130, 136]), ""),  # they vary by as much from run to run
    ("output_throughput", answers([122, 122, 122]), ""),
    ("mean_tpot_ms", answers([122, 122, 122]), ""),
    ("p95_e2el_ms", answers([128] * 3, failed=5), ""),
    (
        "p95_e2el_ms",
        answers([128] * 3, failed=6),
        "6 of 100 requests failed, more than p95_e2el_ms leaves out",
    ),
    ("p99_ttft_ms", answers([128] * 3, failed=2), "2 of 100 requests failed"),
    ("median_e2el_ms", answers([128] * 3, failed=9), ""),
    ("mean_ttft_ms", answers([128] * 3, failed=9), ""),
])  # fmt: skip
def test_a_figure_that_is_another_quantity_has_no_verdict(key: str, own: list[Reported], why: str) -> None:
    for sides in ((own, ALIKE), (ALIKE, own)):
        found = explain_other_quantity(key, *sides)
        assert bool(found) is bool(why)
    assert why in explain_other_quantity(key, own, ALIKE)


def test_a_gate_names_failures_and_refuses_a_percentile_without_them() -> None:
    (sides,) = group_sides(answers([128] * 4, failed=9), answers([128] * 4))
    assert "new: 36 of 400 requests failed" in list_remarks([sides])
    (reason,) = list_reasons([sides], parse_gate_metrics(["e2el_p95"]), allows_state=True)
    assert reason == "e2el_p95: 9 of 100 requests failed, more than p95_e2el_ms leaves out"
    assert list_reasons([sides], parse_gate_metrics(["tok/s"]), allows_state=True) == []


def test_rows_that_one_running_server_answered_are_named() -> None:
    made = with_facts(speeds(HIGH, (1.0, 1.01), A=100, B=101))
    attached = [
        replace(run, cell=run.cell.model_copy(update={"start": ATTACHED}))
        for run in made
        if run.cell is not None
    ]
    rows = [ComparedRow("A", tuple(attached[:2])), ComparedRow("B", tuple(attached[2:]))]
    server = made_runs.run(requests=2).facts.server
    assert list_one_servers(rows) == [f"A and B are one: {server.model} at {server.url} answered all of them"]
    assert list_one_servers([ComparedRow("A", tuple(made[:2])), ComparedRow("B", tuple(made[2:]))]) == []
