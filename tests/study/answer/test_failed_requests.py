"""What failed requests and answers of other lengths do to figures: no verdict, and a word in every place."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from builders import made_runs
from builders.comparison_samples import HIGH, cells
from builders.loops import loop_over
from builders.made_answers import speeds, with_facts
from loadgen.facts.run_facts import ATTACHED
from loadgen.study.compare.comparability import explain_other_quantity, list_one_servers
from loadgen.study.gate.gate_record import parse_gate_metrics
from loadgen.study.gate.gate_sides import group_sides, list_reasons, list_remarks
from loadgen.study.run_summary import Reported


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


@loop_over(
    ("key", "own", "why"),
    [
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
    ],
)
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
    rows = [("A", attached[:2]), ("B", attached[2:])]
    server = made_runs.run(requests=2).facts.server
    assert list_one_servers(rows) == [f"A and B are one: {server.model} at {server.url} answered all of them"]
    assert list_one_servers([("A", made[:2]), ("B", made[2:])]) == []
