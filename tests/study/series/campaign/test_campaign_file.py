"""A campaign's file: what is wrong is said before anything starts, with its key; cells that are searches."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from builders.campaign_files import INSTANT, cells, failures, the_directory, written
from builders.loops import loop_over, read_tables
from loadgen import cli
from loadgen.base.errors import UsageError
from loadgen.plan import profile
from loadgen.run.command.options import bench_parser
from loadgen.settings.setting import Makes
from loadgen.settings.table import list_profile_keys
from loadgen.study.importers import result_sources
from loadgen.study.series.campaign import arms, campaign_file
from loadgen.study.series.campaign.campaign_file import (
    fill_variables,
    hide_flag_secrets,
    make_arguments,
    overlay_flags,
)
from loadgen.study.series.campaign.campaign_store import make_record

TABLES = read_tables("campaign_file")
LAUNCHED = {"name": "a", "model": "m", "launch": "vllm"}


@loop_over(("checkpoints", "keys", "says"), TABLES["refused_files"])
def test_what_is_wrong_with_a_file_is_said_in_one_line_that_names_it(
    checkpoints: list[dict[str, Any]], keys: dict[str, Any], says: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = written(tmp_path, *checkpoints, **keys)
    code = cli.main(["campaign", str(path), "--dry-run"])
    err = capsys.readouterr().err
    assert code == (2 if says else 0)
    assert says in err
    assert err.count("\n") == bool(says)
    assert not says or "c.toml" in err or "stored as" in err or "too long" in err
    assert not Path("runs").exists()


@pytest.mark.parametrize(("line", "says"), TABLES["refused_commands"])
def test_what_is_wrong_with_a_command_is_said(
    line: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, INSTANT)
    assert cli.main(["campaign", *line.split()]) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert not Path("runs").exists()


SHIPPED = ["demo", "example", "qwen3-h20-ladder", "qwen3-thor"]


def test_the_example_is_a_file_of_one_s_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["campaign", "--example"]) == 0
    (tmp_path / "mine.toml").write_text(capsys.readouterr().out, "utf-8")
    assert cli.main(["campaign", str(tmp_path / "mine.toml"), "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "2 arms (checkpoint on server), 3 repeats: 6 cells, 6 starts of a server" in out
    assert "each cell is a search for the highest load at ttft p90 < 500ms, tpot p90 < 50ms" in out


def test_the_answer_s_constraints_are_kept(tmp_path: Path) -> None:
    own = {**INSTANT, "lm_eval": "scores/results_1.json"}
    path = written(tmp_path, own, answer={"fits": "16GiB", "max_kl": 0.05})
    file = campaign_file.load_campaign(path)
    record = make_record(file, path, arms.make_arms(file, path), datetime(2026, 11, 26))
    assert record.model_dump()["answer"] == {
        "fits": "16GiB", "slo": None, "max_kl": 0.05, "price_per_hour": None,
        "lm_eval": {"instant": str(path.parent / "scores/results_1.json")},
    }  # fmt: skip


@loop_over("name", SHIPPED)
def test_the_shipped_campaigns_are_sound(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MODELS", raising=False)
    path = campaign_file.locate_campaign(name)
    found = campaign_file.load_campaign(path)
    made = arms.make_arms(found, path)
    assert (found.name, name in profile.list_shipped()) == (name, False)
    assert len(found.description) < 110
    assert {variable for arm in made for variable in arm.missing} <= {"MODELS", "JETSON_VLLM_IMAGE"}


def test_the_h20_ladder_has_every_row_of_the_page() -> None:
    from loadgen.features.roofline.models import split_name
    from loadgen.study.speed.speed_rows import read_speed_csv

    page = read_speed_csv(profile.find_shipped().parent / "loadgen/study/speed/published/qwen3_h20_speed.csv")
    names = {"AWQ-INT4": "AWQ", "GPTQ-INT4": "GPTQ-Int4"}
    published = {
        (row.model, names.get(row.quantization, row.quantization), row.gpu_num)
        for row in page
        if row.backend == "SGLang"
    }
    ours, file = set(), campaign_file.load_campaign(campaign_file.locate_campaign("qwen3-h20-ladder"))
    for arm in arms.make_arms(file, Path("x")):
        base, quantization = split_name(arm.options.model or "")
        ours.add((base, quantization or "BF16", arm.settings.tensor_parallel or 1))
    assert ours == published


@loop_over(("flags", "line"), TABLES["flags"])
def test_a_key_is_the_flag_of_that_name(flags: dict[str, Any], line: list[str]) -> None:
    assert make_arguments(flags, bench_parser()) == line
    bench_parser().parse_args(line)


def test_a_checkpoints_flags_override_its_servers_variables_add_up() -> None:
    server = {"context_len": 5, "server_env": {"A": "1", "B": "2"}, "launch": "vllm"}
    own = {"context_len": 7, "server_env": {"B": "3"}}
    merged = {"context_len": 7, "server_env": {"A": "1", "B": "3"}, "launch": "vllm"}
    assert overlay_flags(server, own) == merged


def test_variables_and_the_home_directory_are_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELS", "/m")
    monkeypatch.setenv("HOME", "/h")
    monkeypatch.delenv("NONE", raising=False)
    told: dict[str, Any] = {"model": "${MODELS}/a", "tokenizer": "~/t", "label": "${NONE}$x~"}
    told["server_env"] = {"A": "${NONE:-b}"}
    filled = {**told, "model": "/m/a", "tokenizer": "/h/t", "server_env": {"A": "b"}}
    assert fill_variables(told, lambda name: True) == (filled, {"NONE"}, set())
    filled["model"] = "${MODELS}/a"
    assert fill_variables(told, lambda name: False) == (filled, {"NONE"}, {"MODELS"})


def test_a_variable_that_is_not_set_stops_a_run_and_not_a_preview(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NONE", raising=False)
    path = written(tmp_path, {"name": "a", "base_url": "${NONE}"})
    assert cli.main(["campaign", str(path)]) == 2
    assert "NONE not set in the environment: export NONE=…" in capsys.readouterr().err
    assert cli.main(["campaign", str(path), "--dry-run"]) == 0
    assert "environment variables to set first: NONE" in capsys.readouterr().out
    assert not Path("runs").exists()


def test_secrets_are_written_nowhere() -> None:
    told = {
        "header": {"Authorization": "Bearer very-secret"},
        "server_env": {"HF_TOKEN": "very-secret", "A": "b"},
        "server_args": "--api-key very-secret --max-num-seqs 8",
        "label": "x",
    }
    shown = hide_flag_secrets(told)
    assert "very-secret" not in str(shown)
    assert shown["server_env"]["A"] == "b"
    assert shown["label"] == "x"
    assert "max-num-seqs 8" in shown["server_args"]


PARSER = bench_parser()
NAMES = {
    action.dest: option[2:].replace("-", "_")
    for action in PARSER._actions
    for option in action.option_strings
    if option.startswith("--") and not option.startswith("--no-")
}


@loop_over("key", [key for key in list_profile_keys(*set(Makes) - {Makes.REQUEST}) if key in NAMES])
def test_all_but_the_request_belongs_in_a_profile(key: str) -> None:
    with pytest.raises(UsageError, match="belongs in a profile: all checkpoints get the same requests"):
        campaign_file.make_arguments({NAMES[key]: "1"}, PARSER)


PACED = {"preset": "jetson-thor/qwen3-8b-bf16"}  # a slow one: few requests are simulated
LIMIT: dict[str, Any] = {
    "slo": "ttft p50 < 10s", "over": "concurrency", "max_runs": 3, "min_duration_s": 0.3, "budget_s": 10,
    "highest": 2,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_each_cell_is_a_search_and_the_limits_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, {**PACED, "name": "A"}, {**PACED, "name": "B"}, repeats=1, limit=LIMIT)
    assert cli.main(["campaign", str(path)]) == 0
    place = the_directory()
    assert failures(place) == {}
    assert cells(place) == ["r0-A-embedded-tiny", "r0-B-embedded-tiny"]
    read = result_sources.read_sources([str(place)])
    ends = [(limit.name, limit.record.ended) for limit in read.limits]
    assert ends == [("A", "everything-passes"), ("B", "everything-passes")]
    arms_of = {run.cell.arm for limit in read.limits for run in limit.runs if run.cell}
    assert arms_of == {"A on embedded", "B on embedded"}
    out = capsys.readouterr().out
    assert "Highest concurrency at ttft p50 < 10000 ms" in out
    assert "A: limit: at least 2 at a time" in out
    assert "2 of 2 cells are finished" in out


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_budget_too_small_is_advised_by_the_files_keys(tmp_path: Path) -> None:
    path = written(tmp_path, {**PACED, "name": "A"}, repeats=1, limit=LIMIT | {"budget_s": 3})
    assert cli.main(["campaign", str(path)]) == 1
    (reason,) = failures(the_directory()).values()
    assert reason.startswith("budget_s = 3 is too small for two runs: at 1 at a time one takes")
    assert ": give budget_s = " in reason


def test_a_dry_run_estimates_searches_by_their_budget(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limit = LIMIT | {"budget_s": 600}
    path = written(tmp_path, {**INSTANT, "name": "A"}, {**INSTANT, "name": "B"}, repeats=2, limit=limit)
    assert cli.main(["campaign", str(path), "--dry-run"]) == 0
    assert "\nestimated time: at most 40 min of searches; starts" in capsys.readouterr().out


@loop_over(("changes", "message"), TABLES["refused_tables"])
def test_what_is_wrong_with_a_limit_names_the_file_and_the_key(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    table = {key: value for key, value in (LIMIT | changes).items() if value is not None}
    with pytest.raises(UsageError, match=rf"c\.toml: {message}"):
        campaign_file.load_campaign(written(tmp_path, INSTANT, limit=table))


@loop_over(("workload", "changes", "message"), TABLES["refused_loads"])
def test_what_cannot_be_searched_is_refused_before_anything_starts(
    tmp_path: Path, workload: str, changes: dict[str, Any], message: str
) -> None:
    path = written(tmp_path, INSTANT, profiles=[workload], limit=LIMIT | changes)
    (tmp_path / "ramp.toml").write_text('schedule = "rate 2 for 60s"\n', "utf-8")
    with pytest.raises(UsageError, match=rf"checkpoint 'instant': \[limit\], profile {message}"):
        arms.make_arms(campaign_file.load_campaign(path), path)


def test_the_commands_of_a_preview_are_searches(tmp_path: Path) -> None:
    path = written(tmp_path, INSTANT, limit=LIMIT)
    loaded = campaign_file.load_campaign(path)
    (arm,) = arms.make_arms(loaded, path)
    words = arms.render_command(arm, 5, 7, loaded.limit)
    assert words.startswith("loadgen limit --preset=instant")
    assert "--slo 'ttft p50 < 10s' --within 5% --budget 10s --max-runs 3 --over concurrency" in words
    assert words.endswith("--min-duration 0.3s --to 2")
    assert "--repeat" not in words
