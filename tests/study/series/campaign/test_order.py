"""The order of a campaign: what drifts falls on all alike, and a start of a server is told from the next."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from builders.campaign_files import INSTANT, written
from builders.loops import loop_over, loop_over_named, read_tables
from loadgen import cli
from loadgen.base.errors import UsageError
from loadgen.facts.run_facts import Cell
from loadgen.plan import profile
from loadgen.study.series.campaign import arms, campaign_file, campaign_store
from loadgen.study.series.campaign.arms import Start
from loadgen.study.series.campaign.campaign_store import CampaignRecord
from loadgen.study.series.campaign.steps import Arm
from loadgen.study.series.time_estimate import Pace, TimeLeft, estimate_at_best_s

TABLES = read_tables("order")
AB = ({"name": "A", "preset": "instant"}, {"name": "B", "preset": "instant"})
ABC = (*AB, {"name": "C", "preset": "instant"})


def made(path: Path) -> tuple[Arm, ...]:
    return arms.make_arms(campaign_file.load_campaign(path), path)


def starts(path: Path) -> tuple[Start, ...]:
    return arms.plan_starts(campaign_file.load_campaign(path), made(path))


def told(path: Path) -> list[str]:
    """Each start as `A r0: high, low`."""
    return [
        f"{start.arm.checkpoint} {start.name}: {', '.join(one.group for one in start.planned)}"
        for start in starts(path)
    ]


def test_the_order_turns_about_with_every_repeat(tmp_path: Path) -> None:
    path = written(tmp_path, *ABC, profiles=["high-load", "low-load"], repeats=3)
    there, back = "high-load, low-load", "low-load, high-load"
    assert told(path) == [
        *(f"A r0: {there}", f"B r0: {there}", f"C r0: {there}"),
        *(f"C r1: {back}", f"B r1: {back}", f"A r1: {back}"),
        *(f"A r2: {there}", f"B r2: {there}", f"C r2: {there}"),
    ]


def test_a_server_that_is_started_once_is_named_so_and_serves_all_repeats(tmp_path: Path) -> None:
    path = written(tmp_path, *AB, profiles=["high-load", "low-load"], repeats=2, starts="once")
    profiles = "high-load, low-load, low-load, high-load"
    assert told(path) == [f"A once: {profiles}", f"B once: {profiles}"]
    assert [one.number for one in starts(path)[0].planned] == [0, 0, 1, 1]


def test_each_checkpoint_has_its_own_servers_and_workloads(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {"name": "A", "model": "a"},
        {"name": "B", "model": "b", "servers": ["two"], "profiles": ["low-load"]},
        servers={"one": {"launch": "vllm"}, "two": {"launch": "sglang", "context_len": 5}},
        repeats=1,
    )
    assert [arm.name for arm in made(path)] == ["A on one", "A on two", "B on two"]
    assert told(path) == ["A r0: tiny", "A r0: tiny", "B r0: low-load"]
    assert [arm.settings.context_len for arm in made(path)] == [None, 5, 5]
    path = written(tmp_path, {"name": "Qwen/Qwen3 8B: <FP8>", "preset": "instant"}, repeats=2)
    found = [one.id for start in starts(path) for one in start.planned]
    assert found == [f"r{repeat}-Qwen-Qwen3-8B-FP8-embedded-tiny" for repeat in (0, 1)]


def the_record(path: Path) -> campaign_store.CampaignRecord:
    found = campaign_file.load_campaign(path)
    return campaign_store.make_record(found, path, made(path), datetime(2026, 1, 1, tzinfo=UTC))


def ran(path: Path) -> list[Cell]:
    return [one.cell for start in starts(path) for one in start.planned if one.cell is not None]


@loop_over(("checkpoints", "keys", "changed"), TABLES["changes"])
def test_there_may_be_more_of_everything_and_what_was_run_stays_as_it_was(
    checkpoints: tuple[dict[str, Any], ...], keys: dict[str, Any], changed: list[str], tmp_path: Path
) -> None:
    path = written(tmp_path, *AB, seed=7)
    old, cells = the_record(path), ran(path)
    new = the_record(written(tmp_path, *checkpoints, **{"seed": 7, **keys}))
    assert list(campaign_store.list_differences(old, new, cells)) == changed
    assert list(campaign_store.list_differences(old, new, [])) == []
    assert CampaignRecord.model_validate_json(old.model_dump_json()) == old


def test_a_profile_that_was_run_stays_as_it_was(tmp_path: Path) -> None:
    path = written(tmp_path, *AB)
    old, cells = the_record(path), ran(path)
    (tmp_path / "tiny.toml").write_text("input_len = 9\noutput_len = 3\nnum_prompts = 3\n", "utf-8")
    assert list(campaign_store.list_differences(old, the_record(path), cells)) == [
        "profile tiny: input_len was 8 and is 9",
        "profile tiny: max_concurrency was 2 and is not given",
        "profile tiny: temperature was 0.0 and is not given",
    ]


def test_what_goes_on_keeps_its_seed_and_what_is_not_asked_for_now(tmp_path: Path) -> None:
    old, store = the_record(written(tmp_path, *ABC, repeats=3)), campaign_store.CampaignStore(tmp_path)
    store.write_record(old)
    path = written(tmp_path, *AB, repeats=2)
    new = campaign_store.continue_record(store, the_record(path), path, retry_failed=False)
    assert (new.seed, new.seed_chosen, new.repeats) == (old.seed, False, 3)
    assert [arm.checkpoint for arm in new.arms] == ["A", "B", "C"]
    assert sorted(new.order) == sorted(old.order)


@loop_over(("text", "says"), TABLES["records"])
def test_a_record_that_is_none_is_told(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says):
        CampaignRecord.parse(text.encode(), tmp_path / "campaign.json")


def test_time_left_is_that_of_the_same_cells_before_else_of_others(tmp_path: Path) -> None:
    path = written(tmp_path, {"name": "A", "base_url": "http://h:1"}, *AB[1:], repeats=2)
    found, pace = starts(path), Pace()
    assert arms.estimate_left(pace, found, set()) == TimeLeft(0.015, unknown=2, at_best=True)
    first = found[0].planned[0]
    pace.steps.append((first, 10.0))
    assert arms.estimate_left(pace, found, {first.id}) == TimeLeft(30.0)
    second = found[1].planned[0]
    pace.steps.append((second, 20.0))
    pace.starts.append((found[1].arm.name, 3.0))
    assert arms.estimate_left(pace, found, {first.id, second.id}) == TimeLeft(33.0)
    every = {one.id for start in found for one in start.planned}
    assert arms.estimate_left(pace, found, every) == TimeLeft(0.0)


def test_a_preview_shows_order_commands_and_time_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, *AB, {"name": "C", "model": "/nowhere/m", "launch": "vllm"}, repeats=3, seed=7)
    assert cli.main(["campaign", str(path), "--dry-run", "--allow-launch"]) == 0
    out = capsys.readouterr().out
    assert "3 arms (checkpoint on server), 3 repeats: 9 cells, 9 starts of a server" in out
    assert "/nowhere/m does not exist: its cells would fail" in out
    assert "  r0, r2: A on embedded → B on embedded → C on vllm\n" in out
    assert "  r1: C on vllm → B on embedded → A on embedded\n" in out
    assert f"    loadgen bench --preset=instant --profile {tmp_path}/tiny.toml --repeat 3 --seed 7\n" in out
    assert "    cannot be started here: " in out
    assert "estimated time: unknown until the first cells are done\n" in out
    assert sorted(one.name for one in tmp_path.iterdir()) == ["c.toml", "tiny.toml"]
    assert cli.main(["campaign", str(written(tmp_path, INSTANT, repeats=1)), "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "1 arm (checkpoint on server), 1 repeat: 1 cell, 1 start of a server\n" in out
    assert "  r0: instant\n" in out


@loop_over_named(("keys", "seconds"), TABLES["times"])
def test_what_a_file_takes_is_known_of_a_window_alone(
    keys: dict[str, Any], seconds: float | None, tmp_path: Path
) -> None:
    table = {"name": "A", "model": "Qwen/Qwen3-8B", "launch": "vllm"}
    (arm,) = made(written(tmp_path, table, hardware="jetson-thor"))
    assert estimate_at_best_s(arm.options, profile.build(keys)) == seconds


def test_what_a_preset_takes_is_known_from_its_steps(tmp_path: Path) -> None:
    """Nothing is measured, and no hardware named: 16 prompts of 64 / 16, 4 at a time, and 4 warm-ups."""
    (arm,) = made(written(tmp_path, {"name": "A", "preset": "h20/qwen3-8b-fp8"}))
    keys = {"input_len": 64, "output_len": 16, "num_prompts": 16, "max_concurrency": 4, "num_warmups": 4}
    seconds, alone = (
        estimate_at_best_s(arm.options, profile.build({**keys, "max_concurrency": most})) for most in (4, 1)
    )
    assert seconds is not None
    assert alone is not None
    assert 0.2 < seconds < 2.0
    assert 2 < alone / seconds <= 4
    longer = estimate_at_best_s(arm.options, profile.build({**keys, "num_prompts": 160}))
    assert longer == pytest.approx(seconds * 164 / 20)
