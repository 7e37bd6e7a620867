"""Which machine and model a run is held against, what our own verdict adds, and what the roofline accuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from builders.loops import loop_over
from builders.published_runs import run
from loadgen.base.rule import Severity, Source
from loadgen.features.roofline import machines
from loadgen.features.roofline.estimate import estimate_ceiling
from loadgen.report.load_identity import Load
from loadgen.study.audit.findings import CHECKS, OF_OURS, SAME_AS, RunFindings, audit_runs
from loadgen.study.run_summary import Reported
from loadgen.verdict.verdict import DOUBTS, Level
from report.test_run_directory import made

THOR, H20 = machines.find_machine("jetson-thor"), machines.find_machine("h20-96gb")
CONFIG = {"model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32,
          "head_dim": 128, "num_key_value_heads": 8, "intermediate_size": 12288,
          "vocab_size": 151936}  # fmt: skip
LEAST_MS = 31.1  # a token of Qwen3-8B-FP8 after 2048 on a Thor


def alone(tpot_ms: float, name: str = "Qwen3-8B-FP8", ttft_ms: float = 400.0, **fields: Any) -> Reported:
    figures = {
        "completed": 10,
        "total_input_tokens": 20480,
        "total_output_tokens": 1280,
        "mean_ttft_ms": ttft_ms,
        "mean_tpot_ms": tpot_ms,
    }
    return Reported(name, figures, Load("low", 10, 2048.0, 128.0, 128, 1), "p.md:1", told_by="vllm", **fields)


def names(audited: RunFindings) -> set[str]:
    return {one.rule.code for one in audited.findings} - {"thin-percentiles"}


@loop_over(
    ("tpot_ms", "ttft_ms", "doubts", "level"),
    [
        (LEAST_MS * 1.1, 400.0, set(), Level.VALID),
        (LEAST_MS, 400.0, set(), Level.VALID),
        (LEAST_MS / 1.04, 400.0, set(), Level.VALID),  # as figures and names round
        (LEAST_MS / 1.1, 400.0, {"above-roofline"}, Level.SUSPECT),
        (LEAST_MS / 1.3, 400.0, {"beyond-roofline"}, Level.INVALID),
        (LEAST_MS * 3.2, 400.0, set(), Level.VALID),
        (LEAST_MS * 3.5, 400.0, {"slow-kernel"}, Level.SUSPECT),
        (LEAST_MS * 1.1, 58.0, set(), Level.VALID),
        (LEAST_MS * 1.1, 50.0, {"beyond-peak"}, Level.SUSPECT),
    ],
)
def test_a_run_is_held_against_bus_and_peak(
    tpot_ms: float, ttft_ms: float, doubts: set[str], level: Level
) -> None:
    (audited,) = audit_runs([alone(tpot_ms, ttft_ms=ttft_ms)], THOR, None)
    assert (names(audited), audited.level) == (doubts, level)


def test_speculation_is_ruled_out_only_if_messages_carry_one_token() -> None:
    (plain,) = audit_runs([alone(8.88)], THOR, None)
    one = alone(8.88)
    (told,) = audit_runs([replace(one, figures={**one.figures, "mean_itl_ms": 8.88})], THOR, None)
    said = [audited.findings[0].evidence for audited in (plain, told)]
    assert ["rules out speculative decoding" in each for each in said] == [False, True]


def test_a_machine_is_what_is_given_else_what_the_run_names() -> None:
    given, named, unknown, untold = (
        audit_runs([alone(30.0, machine=name)], machine, None)[0]
        for name, machine in (("NVIDIA H20", THOR), ("NVIDIA H20", None), ("Cray-1", None), ("", None))
    )
    assert given.ceiling is not None
    assert named.ceiling is not None
    assert (given.ceiling.machine.key, named.ceiling.machine.key) == ("jetson-thor", "h20-96gb")
    assert (unknown.ceiling, untold.ceiling) == (None, None)
    passing = "pass --hardware KEY, as jetson-thor, or --bandwidth GB/s"
    assert unknown.no_ceiling == f"the machine 'Cray-1' is unknown: {passing}"
    assert untold.no_ceiling == f"no machine is named: {passing}"


def test_a_runs_own_ceiling_is_kept_and_put_on_the_machine_that_is_given() -> None:
    own = estimate_ceiling("Qwen3-8B", H20)
    as_told, moved = (
        audit_runs([alone(30.0, ceiling=own)], machine, None)[0].ceiling for machine in (None, THOR)
    )
    assert as_told == own
    assert moved == own.model_copy(update={"machine": THOR})


def test_what_is_given_is_as_many_as_the_run_tells() -> None:
    two, given = alone(30.0, machine="2 × NVIDIA H20"), machines.make_machine(4000.0)
    found = [
        audit_runs([two], machine, None)[0].ceiling
        for machine in (THOR, None, machines.find_machine("4xh100"), given)
    ]
    assert [one.machine.devices for one in found if one] == [2, 2, 4, 1]
    assert found[0] is not None
    assert found[0].machine.bandwidth_bytes_per_s == 2 * THOR.bandwidth_bytes_per_s


def test_an_unknown_model_is_asked_for_and_can_be_given(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG), "utf-8")
    one, other = alone(8.88, "mine-FP8"), alone(8.88, "Qwen3-8B-FP8")
    (unknown,) = audit_runs([one], THOR, None)
    assert (unknown.ceiling, names(unknown)) == (None, set())
    assert "mine" in unknown.no_ceiling
    assert "--model-config, or --model NAME" in unknown.no_ceiling
    for given in (audit_runs([one], THOR, config), audit_runs([one], THOR, None, "Qwen3-8B")):
        assert names(given[0]) == {"beyond-roofline"}
        assert given[0].ceiling is not None
        assert round(given[0].ceiling.tpot_ms(1, 2112), 1) == LEAST_MS
    mixed = audit_runs([one, replace(other, name="Qwen3-0.6B")], THOR, config)
    rates = [audited.ceiling.tpot_ms() for audited in mixed if audited.ceiling]
    assert rates[0] > 5 * rates[1]  # the config is of the one that the table does not know


@pytest.mark.parametrize(
    ("input_len", "engine", "machine", "slow"),
    [
        (1.0, "Transformers", H20, True),
        (6144.0, "Transformers", H20, False),  # its prompt's time is in it
        (1.0, "Transformers", machines.find_machine("2xh20-96gb"), False),  # one device at a time
        (1.0, "vLLM", machines.find_machine("2xh20-96gb"), True),
    ],
)
def test_a_speed_is_called_slow_only_where_it_is_of_decoding(
    input_len: float, engine: str, machine: Any, slow: bool
) -> None:
    load = Load("input", None, input_len, 2048.0, None, 1)
    one = Reported("Qwen3-32B", {"speed_tok_s": 8.0}, load, "x", engine=engine)
    assert ("slow-kernel" in names(audit_runs([one], machine, None)[0])) is slow


@pytest.mark.parametrize(
    ("input_len", "duration_s", "mean_ttft_ms", "slow"),
    [
        (2048.0, 462.0, 28_000.0, True),  # 3.5 s are left for a prompt that takes 0.06 s at best
        (
            64.0,
            118.0,
            550.0,
            False,
        ),  # as many times its best, but that is 1.8 ms: launching kernels takes longer
    ],
)
def test_prefill_is_called_slow_only_where_it_takes_its_time_at_best(
    input_len: float, duration_s: float, mean_ttft_ms: float, slow: bool
) -> None:
    figures = {
        "completed": 100,
        "duration": duration_s,
        "total_input_tokens": round(100 * input_len),
        "total_output_tokens": 12800,
        "mean_ttft_ms": mean_ttft_ms,
        "mean_tpot_ms": 70.0,
        "mean_itl_ms": 70.0,
        "median_itl_ms": 70.0,
    }
    load = Load("high", 100, input_len, 128.0, 128, 8)
    (audited,) = audit_runs([Reported("Qwen3-8B-FP8", figures, load, "p.md:1", told_by="vllm")], THOR, None)
    assert ("slow-kernel" in names(audited)) is slow


def test_our_own_runs_keep_their_verdict_and_nothing_is_found_twice() -> None:
    result = made()
    own = Reported("m", {"completed": 3, "mean_ttft_ms": 0.0}, Load("p"), "runs/x", run=result)
    (audited,) = audit_runs([own], None, None)
    assert result.verdict.findings
    assert [(one.rule, one.evidence) for one in audited.findings] == [
        (one.rule, one.evidence) for one in result.verdict.findings
    ]  # nothing-measured is not asked: the verdict has every arrival


def test_a_verdict_without_its_arrivals_is_told_by_name() -> None:
    one = replace(alone(30.0), told_by="loadgen", level="SUSPECT", doubts=("prefix-cache",))
    (audited,) = audit_runs([one], THOR, None)
    assert names(audited) == {"prefix-cache"}
    assert audited.level is Level.SUSPECT
    assert audited.findings[0].evidence == "found by the run's own verdict; its directory has the figures"


def test_our_own_runs_are_asked_what_their_verdict_could_not_know() -> None:
    fast = replace(alone(8.88), run=made(), told_by="loadgen")
    assert "beyond-roofline" in names(audit_runs([fast], THOR, None)[0])  # no ceiling was known when it ran
    known = estimate_ceiling("Qwen3-8B-FP8", THOR)
    judged = replace(alone(8.88), run=made(ceiling=known), told_by="loadgen")
    (audited,) = audit_runs([judged], THOR, None)
    assert "beyond-roofline" not in names(audited) - {one.rule.code for one in judged.run.verdict.findings}  # type: ignore[union-attr]
    twins = [replace(run("m"), run=made(), source=f"runs/{name}") for name in "ab"]
    assert "duplicate" in names(audit_runs(twins, None, None)[0])


def test_the_worst_is_told_first() -> None:
    (audited,) = audit_runs([alone(8.88, ttft_ms=20.0)], THOR, None)
    severities = [one.rule.severity for one in audited.findings]
    assert severities == sorted(severities, reverse=True)
    assert audited.level is Level.INVALID
    assert audited.roofline == pytest.approx(LEAST_MS / 8.88, rel=0.01)


def test_every_check_has_its_words_and_a_name_of_its_own() -> None:
    assert len({check.code for check in CHECKS}) == len(CHECKS)
    assert all(check.condition and check.remedy for check in CHECKS)
    assert {*SAME_AS.values()} <= {doubt.code for doubt in DOUBTS}
    assert {*SAME_AS} | OF_OURS <= {check.code for check in CHECKS}
    assert {check.code for check in CHECKS if check.severity is Severity.INVALID} == {
        "beyond-roofline",
        "impossible-value",
        "figures-disagree",
        "counts-disagree",
        "impossible-order",
        "longer-than-the-run",
        "beyond-schedule",
        "nothing-measured",
        "many-failures",
    }
    assert {check.code for check in CHECKS if check.source is Source.ROOFLINE} == {
        "beyond-roofline",
        "above-roofline",
        "draft-not-stated",
        "beyond-peak",
        "slow-kernel",
    }
