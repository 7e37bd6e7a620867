"""Likeness: what is refused, what is marked, and what nobody told is not judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builders import made_data, made_runs
from builders.comparison_samples import HIGH, run
from builders.loops import loop_over, loop_over_named, read_tables
from builders.provoked_states import CAPPED, SERVER, read_files
from loadgen import cli
from loadgen.base.rule import Severity
from loadgen.base.structs import replace
from loadgen.engines.refusals import AdaptedField
from loadgen.facts.run_facts import Client, Launched, Server
from loadgen.host.machine_state import ClockState, MachineState
from loadgen.plan import profile
from loadgen.plan.planned_requests import DataFacts
from loadgen.report.report import render_report as report
from loadgen.server.engine_config import EngineConfig
from loadgen.settings.validation import ServerSettings
from loadgen.study.compare.comparability import (
    explain_short_answers,
    explain_state_differences,
    find_differences,
)
from loadgen.study.compare.speculation_split import COMMITTED_MS
from loadgen.study.run_summary import Reported, summarise_run

TABLES = read_tables("comparability")

REFUSED, MARKED = Severity.REFUSED, Severity.MARKED
PLACE: dict[str, Any] = {"engine": "vLLM 0.11.0", "machine": "Thor", "power_mode": "MAXN"}
BASELINE = run("base", 100.0, **PLACE)


def other(load: dict[str, Any] | None = None, **told: Any) -> Reported:
    """A run like baseline's but for keys of its load and what is told."""
    return replace(run("row", 200.0, replace(HIGH, **(load or {}))), **{**PLACE, **told})


def list_found(row: Reported, baseline: Reported) -> list[tuple[str, str]]:
    """How grave each difference is, and its evidence."""
    return [(found.rule.severity.name, found.evidence) for found in find_differences(row, baseline)]


@loop_over(("changes", "severity", "said"), TABLES["differences"])
def test_a_difference_is_refused_or_marked(changes: dict[str, Any], severity: str | None, said: str) -> None:
    assert list_found(other(**changes), BASELINE) == ([(severity, said)] if severity else [])


def test_speeds_of_two_formulas_are_refused() -> None:
    one, two = (
        Reported("row", {"speed_tok_s": 5.0}, HIGH, "file", told_by="speed table", speed_formula=formula)
        for formula in ("output/time", "(prompt+output)/time")
    )
    assert [one.evidence for one in find_differences(one, two)] == [
        "speed = output/time, baseline (prompt+output)/time"
    ]


def test_refused_ones_come_first() -> None:
    row = other({"requests": 10, "output_len": 124.0}, engine="SGLang 0.5")
    assert [severity for severity, _ in list_found(row, BASELINE)] == ["REFUSED", "MARKED", "MARKED"]


@pytest.mark.parametrize(
    ("generated", "said"),
    [(12800.0, ""), (12700.0, ""), (12419.0, "output shorter than requested: 12419 of 12800 tokens")],
)
def test_output_shorter_than_asked_is_told(generated: float, said: str) -> None:
    one = run("row", 1.0, figures={"total_output_tokens": generated})
    untold = replace(one, load=replace(HIGH, asked_output_len=None))
    assert [
        explain_short_answers(one, None),
        explain_short_answers(untold, 128.0),
        explain_short_answers(untold, None),
    ] == [said or None, said or None, None]


KEYS = {"name": "made", "input_len": 64, "output_len": 16, "num_prompts": 24, "max_concurrency": 4}
CLIENT = Client(transport="httpx", cpu_s=1.0, wall_s=2.0, clock_step_ms=0.0, late_bodies=0, backlog_bytes=0)
VLLM = Server(url="u", engine="vLLM", version="1", model="org/m")


def launched(**settings: Any) -> Launched:
    known = ServerSettings(quantization="fp8", **settings)
    return Launched(how="vllm", command=["x"], environment={}, settings=known, ready_s=1.0, owned="pid")


@loop_over(("facts", "severity", "said"), [
    ({}, None, ""),
    ({"profile": profile.build({**KEYS, "range_ratio": "0.5"})}, REFUSED,
     "range 0.5, prefix 0, burstiness 1, baseline range 0.0, prefix 0, burstiness 1"),
    ({"server": replace(VLLM, simulated="instant")}, REFUSED, "a simulation, baseline a real server"),
    ({"client": CLIENT}, MARKED, "httpx, baseline ring or wire"),
    ({"prompt_format": "text-vllm"}, MARKED, "prompts as text-vllm, baseline ids"),
    ({"warmups": 4}, MARKED, "warmed up, baseline not warmed up"),
    ({"repeated_prompts": 3}, MARKED, "prompts repeat, baseline no prompt twice"),
    ({"adapted": (AdaptedField(name="ignore_eos"),)}, MARKED, "ignore_eos left out, baseline True"),
    ({"profile": profile.build({**KEYS, "temperature": 0.7})}, MARKED, "temperature 0.7, baseline not given"),
    ({"targets": ("http://a", "http://b")}, MARKED, "2 servers, baseline 1 server"),
    ({"as_run": EngineConfig(prefix_caching="on")}, MARKED, "prefix_caching on, baseline off"),
    ({"launched": launched(memory_fraction=0.5)}, MARKED, "memory_fraction 0.5, baseline 0.9"),
])  # fmt: skip
def test_runs_of_ours_tell_more(facts: dict[str, Any], severity: Severity | None, said: str) -> None:
    base: dict[str, Any] = {
        "as_run": EngineConfig(prefix_caching="off"),
        "launched": launched(memory_fraction=0.9),
    }
    row, baseline = (
        made_runs.reported(made_runs.run(**{**base, **facts})),
        made_runs.reported(made_runs.run(**base)),
    )
    assert list_found(row, baseline) == ([(severity.name, said)] if severity else [])


@loop_over(("row", "baseline", "figures", "evidence"), [
    ({"prompt_format": "corpus"}, {}, {},
     ["drafts of another text (random corpus, baseline random ids)"]),
    ({"data": made_data.data()}, {"data": made_data.data(file_digest="fe")}, {},
     ["drafts of another text (sharegpt ids 01234567, baseline sharegpt ids fe)"]),
    ({}, {}, {}, []),
    ({"prompt_format": "corpus"}, {}, {COMMITTED_MS: 9.0}, []),
    ({"prompt_format": "corpus", "as_run": None}, {"as_run": None}, {}, []),
])  # fmt: skip
def test_drafts_of_another_text_are_refused_by_their_remedy(
    row: dict[str, Any], baseline: dict[str, Any], figures: dict[str, float], evidence: list[str]
) -> None:
    drafts = {"as_run": EngineConfig(speculative="ngram, 3 tokens")}
    sides = [made_runs.reported(made_runs.run(**{**drafts, **facts})) for facts in (row, baseline)]
    own, other = (replace(side, figures={**side.figures, **figures}) for side in sides)
    found = [one.evidence for one in find_differences(own, other) if one.rule.code == "text of drafts"]
    assert found == [f"{text}: --acceptance-length N compares step times" for text in evidence]


def test_counts_of_runs_by_time_may_differ() -> None:
    timed = {key: value for key, value in KEYS.items() if key != "num_prompts"} | {"duration": 5.0}
    row, baseline = (
        made_runs.reported(made_runs.run(requests, profile=profile.build(timed))) for requests in (24, 48)
    )
    assert find_differences(row, baseline) == []


def of_data(made: DataFacts | None = None, file: bool = True, **keys: Any) -> Reported:
    """A run of ours of a file, by default the same one; `data` says what differs, `trace` its rate."""
    if "trace" in keys:
        made, keys["trace"] = made_data.trace(*keys["trace"]), "t"
    path = {"dataset_path": "a.jsonl"} if file and "trace" not in keys else {}
    facts: dict[str, Any] = {"data": made or made_data.data(**keys.pop("data", {}))} if file else {}
    return summarise_run(Path("r"), made_runs.run(profile=profile.build({**KEYS, **path, **keys}), **facts))


@loop_over_named(("row", "baseline", "evidence"), TABLES["data"])
def test_other_data_is_another_load(
    row: dict[str, Any], baseline: dict[str, Any], evidence: list[str]
) -> None:
    found = find_differences(of_data(**row), of_data(**baseline))
    assert [(each.rule.code, each.evidence) for each in found] == [("data", text) for text in evidence]


def test_the_rate_of_a_trace_is_its_own() -> None:
    at_a_rate = made_data.data("trace")
    keys = {**KEYS, "trace": "t", "self_timed": False, "request_rate": 100.0}
    other = summarise_run(Path("r"), made_runs.run(profile=profile.build(keys), data=at_a_rate))
    found = {rule.rule.code: rule.evidence for rule in find_differences(of_data(trace=[]), other)}
    assert found["request rate"] == "a trace's own requests/s, baseline 100"


def of_cache(
    share: float | None = None, warm: bool = False, ttft_ms: float = 50.0, tpot_ms: float = 7.0
) -> Reported:
    """A run whose prompt tokens were found in the cache to such a share, if warm with the doubt of it."""
    figures = {"mean_ttft_ms": ttft_ms, "mean_tpot_ms": tpot_ms, "cached_share": share}
    return replace(run("row", 200.0, figures=figures), **PLACE, doubts=("prefix-cache",) * warm)


@loop_over_named(("row", "baseline", "severity", "said"), TABLES["caches"])
def test_a_warm_side_is_not_set_against_a_cold_one(
    row: dict[str, Any], baseline: dict[str, Any], severity: str | None, said: str
) -> None:
    found = list_found(of_cache(**row), of_cache(**baseline))
    assert found == ([(severity, said)] if severity else [])


def drawn(
    seed: int, input_tokens: int = 64, output_tokens: int = 16, model: str = "", input_len: int = 0
) -> Reported:
    """A run of a plan of the settings KEYS, whose prompts have so many tokens by the server's count."""
    facts: dict[str, Any] = {"server": replace(VLLM, model=model)} if model else {}
    facts |= {"profile": profile.build({**KEYS, "input_len": input_len})} if input_len else {}
    planned = DataFacts(output=made_data.lengths(16 if output_tokens == 16 else 20, 1, 40))
    found = made_runs.run(plan_digest=f"plan {seed}", data=planned, **facts)
    row = made_runs.reported(found)
    figures = {"total_input_tokens": 24.0 * input_tokens, "total_output_tokens": 24.0 * output_tokens}
    return replace(row, figures={**row.figures, **figures})


@loop_over_named(("row", "baseline", "codes"), TABLES["draws"])
def test_lengths_of_two_draws_of_one_load_may_differ(
    row: dict[str, Any], baseline: dict[str, Any], codes: list[str]
) -> None:
    assert [one.rule.code for one in find_differences(drawn(**row), drawn(**baseline))] == codes


SLOW = MachineState(clocks={"CPU": ClockState(now_mhz=1700, limit_mhz=1700, most_mhz=3400)})
FAST = MachineState(clocks={"CPU": ClockState(now_mhz=3400, limit_mhz=3400, most_mhz=3400)})
CPU = "CPU clock limit 1,700 MHz, baseline 3,400 MHz"


def measured(before: MachineState | None, after: MachineState | None = None, name: str = "m") -> Reported:
    """A run with these states, on the machine at which every made run is."""
    return made_runs.reported(made_runs.run(model=name, state_before=before, state_after=after))


@loop_over(("run", "baseline", "evidence"), [
    pytest.param(measured(SLOW), measured(FAST), CPU, id="a CPU frequency cap"),
    pytest.param(measured(CAPPED), measured(SERVER), "power cap of GPU 0 350 W, baseline 700 W",
                 id="a power cap"),
    pytest.param(measured(FAST), measured(FAST), None, id="one state"),
    pytest.param(measured(None), measured(FAST), None, id="not recorded"),
    pytest.param(measured(FAST, SLOW), measured(FAST, FAST),
                 "CPU clock limit at the end 1,700 MHz, baseline 3,400 MHz", id="set during the run"),
    pytest.param(measured(SLOW, SLOW), measured(FAST, FAST), CPU, id="before and at the end: once"),
    pytest.param(measured(FAST, replace(FAST, temperature_c={"GPU 0": 90})),
                 measured(FAST, replace(FAST, temperature_c={"GPU 0": 60})), None,
                 id="warmer at the end, which the load made"),
    pytest.param(measured(MachineState(power_mode="30W")), measured(MachineState(power_mode="MAXN")),
                 None, id="power modes, which another rule refuses"),
    pytest.param(replace(measured(SLOW), machine="H20"), replace(measured(FAST), machine="Thor"), None,
                 id="two machines"),
])  # fmt: skip
def test_a_state_differs(run: Reported, baseline: Reported, evidence: str | None) -> None:
    assert explain_state_differences(run, baseline) == evidence
    found = [each for each in find_differences(run, baseline) if each.rule.code == "state"]
    assert [(each.rule.severity, each.evidence) for each in found] == (
        [(Severity.MARKED, evidence)] if evidence else []
    )


def kept(place: Path, name: str, state: MachineState | None) -> str:
    """A run directory, and its path."""
    place = place / name
    place.mkdir()
    run = made_runs.run(model=name, seed=len(name), state_before=state)
    made_runs.keep(run, place, report(run))
    return str(place)


@pytest.mark.parametrize(("state", "why"), [
    (SLOW, "other: CPU clock limit 1,700 MHz (first run of base: 3,400 MHz)"),
    (None, "other: the state of its machine is not recorded"),
    (FAST, ""),
], ids=["a CPU frequency cap", "not recorded", "one state"])  # fmt: skip
def test_unequal_states_are_refused_where_that_is_wanted(
    state: MachineState | None, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = [kept(tmp_path, "base", FAST), kept(tmp_path, "other", state)]
    assert cli.main(["compare", *places]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert (CPU in shown) == (state is SLOW)
    assert cli.main(["compare", *places, "--require-equal-state"]) == (1 if why else 0)
    printed = capsys.readouterr()
    assert printed.err == (
        f"loadgen: not measured in one state: {why}; bring the machine into one state and measure again, or "
        "compare without --require-equal-state\n"
        if why
        else ""
    )
    assert (printed.out == "") == bool(why)


def test_every_row_that_differs_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    orin = read_files("agx_orin")
    hot = replace(orin, temperature_c={"gpu-thermal": 95.0})
    places = [kept(tmp_path, name, state) for name, state in (("base", orin), ("a", hot), ("bb", None))]
    assert cli.main(["compare", *places, "--require-equal-state"]) == 1
    first, *rest = capsys.readouterr().err.splitlines()
    assert "a: hottest sensor 95 °C (first run of base: 77 °C); bring the machine" in first
    assert rest == ["  bb: the state of its machine is not recorded"]
