"""`loadgen compare` and `loadgen.compare`: what they are asked for, what they print, and what they refuse."""

from __future__ import annotations

import csv
import inspect
import io
import json
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

import loadgen
from builders import made_runs
from builders.comparison_samples import PUBLISHED
from builders.loops import loop_over, read_tables
from loadgen import cli
from loadgen.report.report import render_report as report
from loadgen.report.run import Run
from loadgen.report.run_directory import Result
from loadgen.settings.setting import list_rows
from loadgen.study import compare_command
from loadgen.study.answer.answer_settings import AnswerSettings
from loadgen.study.compare import model
from loadgen.study.compare.model import CampaignSettings, ComparisonOptions
from loadgen.study.compare_command import Comparison
from loadgen.study.importers import result_sources

TABLES = read_tables("compare_command")

ONE = str(Path(__file__).parents[2] / "docs" / "examples" / "vllm.json")
THOR, RTX = str(PUBLISHED / "jetson_thor_serving.md"), str(PUBLISHED / "rtx_pro_6000_speed.csv")


def saved(place: Path, run: Result) -> str:
    """A run directory of ours."""
    place.mkdir(parents=True)
    made_runs.keep(run, place, report(run))
    return str(place)


def compared(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["compare", *words]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["compare", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_the_thor_page_is_one_command(capsys: pytest.CaptureFixture[str]) -> None:
    said = compared(capsys, THOR, "--hardware", "jetson-thor")
    assert max(map(len, said.splitlines())) <= 80
    assert "no verdict    Qwen3-8B-FP8: 7.08× by tok/s" in said
    assert "not compared: requests: 200, baseline 100" in said
    assert "351 %" in said
    assert "impossible: 8.88 ms per token" in " ".join(said.split())


def test_forms(capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads(compared(capsys, THOR, "--json"), parse_constant=pytest.fail)
    assert [len(one["rows"]) for one in told["comparisons"]] == [8, 8]
    rows = list(csv.DictReader(io.StringIO(compared(capsys, THOR, "--csv"))))
    assert {row["baseline"] for row in rows} == {"Qwen3-8B"}
    assert compared(capsys, THOR, "--markdown").count("| Qwen3-8B-AWQ |") == 2


def test_the_tables_of_the_rtx_page(capsys: pytest.CaptureFixture[str]) -> None:
    said = compared(capsys, RTX, "--rankings", "--effects", "--fits")
    lines = [" ".join(line.split()) for line in said.splitlines()]
    assert "1 Qwen3-4B-AWQ 4B Dense AWQ 391.2" in lines
    assert "4B Qwen3-4B 208.1 391.2 (1.88×)" in lines
    assert any(line.startswith("Qwen3-30B-A3B 58.6 no no no no yes") for line in lines)
    told = json.loads(compared(capsys, RTX, "--effects", "--json"))
    assert {"size": "4B", "model": "Qwen3-4B", "BF16": "208.1", "AWQ": "391.2 (1.88×)"} in told["effects_1"][
        "rows"
    ]


def test_our_own_runs_are_compared(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name, speed in (("Qwen3-8B", 1.0), ("Qwen3-8B-FP8", 2.0)):
        for seed in range(3):
            run = made_runs.run(
                speed=speed, seed=2 * seed + int(speed), model=name, plan_digest=f"plan-{seed}"
            )
            saved(tmp_path / f"{name}-{seed}", run)
    told = json.loads(compared(capsys, str(tmp_path), "--json"))
    (one,) = told["comparisons"]
    effect = one["rows"][1]["effects"]["output_throughput"]
    assert (one["rows"][1]["name"], effect["units"], effect["paired"]) == ("Qwen3-8B-FP8", 3, True)
    assert effect["ratio"] == pytest.approx(2.0, abs=0.1)


def test_a_campaign_s_comparison_begins_with_what_to_take(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name, speed in (("Qwen3-8B", 1.0), ("Qwen3-8B-FP8", 2.0)):
        for repeat in range(3):
            made = made_runs.run(speed=speed, seed=repeat, model=name, cell=made_runs.cell(name, repeat))
            saved(tmp_path / "cells" / f"{name}-{repeat}", made)
    (tmp_path / "campaign.json").write_text('{"answer": {"fits": "12GiB"}}', "utf-8")
    place, first = str(tmp_path), "take Qwen3-8B-FP8: the only one within 12 GiB"
    said = compared(capsys, place)
    assert said.splitlines()[2] == first
    alone = compared(capsys, place, "--answer", "--fits", "20GiB")
    assert alone.splitlines()[2].startswith("take Qwen3-8B-FP8: the fastest within 20 GiB, 2.0")
    assert "verdict by" in said
    assert "verdict by" not in alone
    told = json.loads(compared(capsys, place, "--json"))
    assert next(iter(told)) == "answer"
    assert told["answer"]["recommendations"][0]["names"] == ["Qwen3-8B-FP8"]
    assert compared(capsys, place, "--csv").startswith("load,checkpoint,baseline,")
    assert compared(capsys, place, "--csv", "--answer").startswith("checkpoint,speed_1,speed_1_low,")
    assert compared(capsys, "--fits", place).startswith("What fits which memory (GiB)")


@loop_over(("words", "said"), TABLES["refused"])
def test_what_cannot_be_is_refused(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    places = {"THOR": THOR, "ONE": ONE}
    assert said in refused(capsys, *(places.get(word, word) for word in words))


def test_a_recorded_machine_of_another_version_costs_the_roofline_alone() -> None:
    ask = ComparisonOptions(campaign=CampaignSettings(hardware="jetson-tor"))
    tables = compare_command.compare_sources(result_sources.read_sources([THOR]), ask)
    assert "no roofline: --hardware jetson-tor: unknown, the nearest is jetson-thor" in tables[0].remarks[0]
    assert len(tables[0].lines) == 8


def test_nothing_to_read_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["compare", str(tmp_path)]) in (1, 2)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("loadgen: ")


def test_what_cannot_be_read_does_not_stop_the_rest(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "broken.json").write_text('{"a": ', "utf-8")
    assert cli.main(["compare", THOR, str(tmp_path / "broken.json")]) == 0
    said = capsys.readouterr()
    assert "Qwen3-8B-FP8" in said.out
    assert "broken.json" in said.err


def test_one_run_is_shown_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    said = compared(capsys, saved(tmp_path / "one", made_runs.run()))
    assert "nothing to compare it with" in " ".join(said.split())


def test_the_same_place_twice_is_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    place = saved(tmp_path / "one", made_runs.run())
    copy = shutil.copytree(place, tmp_path / "copy")
    assert f"given twice, used once: {copy}" in " ".join(compared(capsys, place, str(copy)).split())
    assert cli.main(["compare", place, f"{place}/../one"]) == 0
    assert capsys.readouterr().err == f"loadgen: {place}/../one was named before: it is read once\n"


@pytest.mark.parametrize(("text", "told"), [
    ('{"baseline": "Qwen3-8B", "margin": 0.05, "hardware": "h20-96gb", "description": "Two ways"}',
     CampaignSettings("Qwen3-8B", 0.05, "h20-96gb", description="Two ways")),
    ('{"baseline": 3, "margin": "wide"}', CampaignSettings()),
    ("[]", CampaignSettings()),
    ('{"baseline"', CampaignSettings()),
])  # fmt: skip
def test_a_campaign_says_how_it_is_compared(tmp_path: Path, text: str, told: CampaignSettings) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "campaign.json").write_text(text, "utf-8")
    if text.endswith("}"):
        told = replace(told, directory=tmp_path / "c")
    assert model.read_campaign_settings([str(tmp_path / "other"), str(tmp_path / "c")]) == told
    assert model.read_campaign_settings([str(tmp_path)]) == told


def vllm_file(path: Path, speed: float, **metadata: object) -> str:
    """A result file of `vllm bench serve`, with what `--metadata` added."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figures = {
        f"{word}_{key}_ms": 7500 / speed for key in ("ttft", "tpot", "itl") for word in ("mean", "p99")
    }
    totals = {"total_input_tokens": 25600, "total_output_tokens": 16000, "output_throughput": speed}
    document = {
        "date": f"202611{int(speed) % 28 + 1:02}-101010", "endpoint_type": "openai", "backend": "openai",
        "label": None, "model_id": "org/model-8b", "num_prompts": 100, "request_rate": "inf",
        "max_concurrency": 8, "duration": 16000 / speed, "completed": 100, "failed": 0,
        "request_throughput": speed / 160, "total_token_throughput": 2.6 * speed,
        **totals, **figures, **metadata,
    }  # fmt: skip
    path.write_text(json.dumps(document), "utf-8")
    return str(path)


@loop_over(("code", "figures"), TABLES["impossible"].items())
@loop_over("side", [0, 1])
def test_no_verdict_is_given_on_what_an_audit_calls_impossible(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, code: str, figures: dict[str, float], side: int
) -> None:
    speeds = (600.0, 300.0)
    for at, speed in enumerate(speeds):
        for repeat in range(3):
            odd = figures if at == side else {}
            vllm_file(tmp_path / "ab"[at] / f"{repeat}.json", speed + repeat, result_dir="x", **odd)
    places = str(tmp_path / "a"), str(tmp_path / "b")
    (table,) = json.loads(compared(capsys, *places, "--json"))["comparisons"]
    bad, other = (table["rows"][at] for at in (side, 1 - side))
    assert {effect["call"] for row in (bad, other) for effect in row["effects"].values()} == {"no verdict"}
    assert bad["marks"][0].startswith("INVALID, left out: ")
    assert code.partition(" ")[0] in bad["marks"][0]
    assert not [mark for mark in other["marks"] if "INVALID" in mark]
    sound = [vllm_file(tmp_path / f"{speed:g}.json", speed) for speed in speeds]
    assert "INVALID" not in compared(capsys, *sound)


def rows(capsys: pytest.CaptureFixture[str], *places: str) -> dict[str, tuple[int, float]]:
    """How many runs each row has, and their mean throughput."""
    (table,) = json.loads(compared(capsys, *places, "--json"))["comparisons"]
    return {
        row["name"]: (len(row["runs"]), round(row["summaries"]["output_throughput"]["mean"], 1))
        for row in table["rows"]
    }


def test_two_files_of_one_model_are_two_sides(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    before = vllm_file(tmp_path / "before.json", 666.7, build="v0.11", tp="1")
    after = vllm_file(tmp_path / "after.json", 333.3, build="v0.12", tp="4")
    assert rows(capsys, before, after) == {
        "model-8b (before.json)": (1, 666.7),
        "model-8b (after.json)": (1, 333.3),
    }
    said = " ".join(compared(capsys, before, after).split())
    assert "no verdict model-8b (after.json): 0.50× by tok/s" in said
    assert "model-8b (after.json): build v0.12, baseline v0.11; tp 4, baseline 1" in said
    assert "repeats?" not in said
    assert rows(capsys, str(tmp_path)) == {
        "model-8b (build v0.12, tp 4)": (1, 333.3),
        "model-8b (build v0.11, tp 1)": (1, 666.7),
    }


def test_metadata_of_our_own_runs_tells_them_apart(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for turn, build in enumerate(("old build", "new build")):
        saved(tmp_path / build, made_runs.run(seed=turn, metadata=(f"build={build}", f"run={turn}")))
    assert set(rows(capsys, str(tmp_path))) == {"m (old build)", "m (new build)"}


def test_runs_are_compared_under_the_names_they_are_given(tmp_path: Path) -> None:
    first, second = (Run(made_runs.run(seed=seed)) for seed in (1, 2))
    place = first.save(tmp_path / "first")
    found = loadgen.compare({"before": [place], "after": [second]}, baseline="before")
    assert [line.name for line in found.tables[0].lines] == ["before", "after"]
    assert "before" in found.text()
    assert "| after" in found.markdown()
    assert json.dumps(found.json())
    rows = loadgen.compare([first, second]).tables[0].lines
    assert [line.name for line in rows] == ["m (first)", "m (run 2)"]
    rows = loadgen.compare({"twice": [first, second]}).tables[0].lines
    assert [(line.name, len(line.runs)) for line in rows] == [("twice", 2)]
    with pytest.raises(loadgen.LoadgenError, match="write \\[run\\]"):
        loadgen.compare(first)  # type: ignore[arg-type]
    with pytest.raises(loadgen.LoadgenError, match="margin"):
        loadgen.compare([first, second], margin=3.0)


def test_runs_are_audited(tmp_path: Path) -> None:
    run = Run(made_runs.run())
    found = loadgen.audit([run])
    assert [(one.name, one.verdict.status) for one in found.runs] == [("m", run.verdict.status)]
    assert "m" in found.text(explain=True)
    assert found.json()["runs"]
    (tmp_path / "a.txt").write_text("nothing")
    with pytest.raises(loadgen.LoadgenError, match="no known results"):
        loadgen.audit([tmp_path / "a.txt"])


def test_what_to_take_is_asked_of_a_comparison() -> None:
    page = Path(__file__).parents[1] / "data" / "published" / "rtx_pro_6000_speed.csv"
    found = loadgen.compare([page])
    assert "answer" not in found.json()
    chosen = found.answer(fits="16GiB")
    assert chosen is not None
    assert chosen.recommendations[0].words.startswith("undecided: Qwen3-4B-AWQ leads Qwen3-4B by 1.88 ×")
    with pytest.raises(loadgen.LoadgenError, match="--fits 'big': give a size of memory"):
        found.answer(fits="big")


def test_the_answer_has_a_keyword_for_each_setting() -> None:
    asked = set(inspect.signature(Comparison.answer).parameters) - {"self"}
    assert asked == {row.name for row in list_rows(AnswerSettings)}
