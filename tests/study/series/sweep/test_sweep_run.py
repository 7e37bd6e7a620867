"""A sweep that goes on: only as the same sweep, with every run that is there, and nothing that is not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from builders.loops import loop_over
from fakes.scripted_server import closed_port
from loadgen import cli
from loadgen.base.errors import UsageError
from loadgen.plan.profile import Profile
from loadgen.plan.request_sources import Seed
from loadgen.report.run_directory import load
from loadgen.run.command.options import Options
from loadgen.study.series.sweep import sweep_command, sweep_run
from loadgen.study.series.sweep.grid import GridPoint
from loadgen.study.series.sweep.sweep_run import (
    Sweeping,
    SweepRequest,
    SweepStore,
    describe_time,
    forecast_time,
    plan_point,
)
from loadgen.study.series.time_estimate import TimeLeft
from loadgen.study.sweep_record import SweepRecord

# Python 3.12 warns of any thread at a fork; the child takes none of their locks.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
TINY = ("--preset", "instant", "--input-len", "8", "--output-len", "4", "--num-prompts", "4", "--quiet")
TWO = ("--concurrency", "1,2", "--seed", "7", *TINY)


def sweep(*words: str) -> int:
    return cli.main(["sweep", *words])


def request(*words: str) -> SweepRequest:
    """The sweep of a command line."""
    return sweep_command.read_request(words)[0]


def begun(*words: str) -> SweepStore:
    """A sweep's directory with nothing measured."""
    return sweep_run.begin_sweep(request(*words))


def only_store() -> SweepStore:
    (directory,) = Path("runs").glob("*-sweep-*")
    return SweepStore(directory)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--concurrency", "1,3", *TWO[2:]), "the points differ"),
        (("--concurrency", "1,2,77", *TWO[2:]), "the points differ"),
        ((*TWO, "--seed", "8"), "the seed is 7"),
        ((*TWO, "--output-len", "5"), "what is not varied differs, or a file that is read"),
    ],
)
def test_the_latest_sweep_is_taken_only_if_it_is_the_same(words: tuple[str, ...], why: str) -> None:
    store = begun(*TWO)
    with pytest.raises(UsageError) as caught:
        sweep_run.resume_sweep(request(*words), None)
    assert str(caught.value) == (
        "no sweep by this command to resume under runs: give its flags, or its directory to --resume; of the "
        f"latest, {store.directory}, {why}"
    )


def test_the_latest_of_the_same_sweeps_is_taken_whatever_came_after() -> None:
    same = begun(*TWO)
    begun("--rate", "1,2", *TWO[2:])
    assert sweep_run.resume_sweep(request(*TWO), None).directory == same.directory
    assert sweep_run.resume_sweep(request(*TWO[:2], *TINY), None).directory == same.directory  # its seed
    with pytest.raises(UsageError, match="no sweep by this command to resume under runs: give its flags, or"):
        sweep_run.resume_sweep(request("--rate", "3,4", *TINY), None)


def data(*lens: int) -> str:
    rows = [json.dumps({"prompt": f"tell me of {length}", "output_tokens": length}) for length in lens]
    return "".join(f"{row}\n" for row in rows)


CHANGES: list[tuple[str, str, str, tuple[str, ...]]] = [
    ("d.jsonl", data(4, 5), data(4, 6), ("--dataset-path", "d.jsonl", "--concurrency", "1,2")),
    ("d.jsonl", data(4, 5), data(4, 6), ("--vary", "dataset_path=d.jsonl,e.jsonl")),
    ("h.csv", "8,1\n", "8,1\n9,1\n", ("--input-dist", "histogram:h.csv", "--concurrency", "1,2")),
    ("p.toml", "num_prompts = 2", "num_prompts = 9", ("--profile", "./p.toml", "--vary", "input_len=8,9")),
    ("p.toml", "input_len = 20\n", "input_len = 21\n", ("--profile", "./p.toml", "--concurrency", "1,2")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "before", "after", "words"), CHANGES)
def test_a_file_that_changed_makes_another_sweep(
    name: str, before: str, after: str, words: tuple[str, ...]
) -> None:
    Path("e.jsonl").write_text(data(3))
    Path(name).write_text(before)
    fixed = request("--preset", "instant", *words).fixed
    assert request("--preset", "instant", *words).fixed == fixed
    Path(name).write_text(after)
    assert request("--preset", "instant", *words).fixed != fixed


def leave_run(store: SweepStore) -> None:
    """What an interrupted point leaves."""
    place = store.directory / "interrupted" / "000-concurrency-1" / "run"
    place.mkdir(parents=True)
    (place / "journal.bin").write_bytes(b"x")


@pytest.mark.parametrize(
    ("resumed", "measured", "removed"),
    [(False, False, True), (False, True, False), (True, False, False), (True, True, False)],
)
def test_only_an_empty_directory_that_was_begun_here_is_removed(
    resumed: bool, measured: bool, removed: bool
) -> None:
    store = begun(*TWO)
    if resumed:
        store = SweepStore(store.directory)
    if measured:
        leave_run(store)
    assert store.remove_empty() is removed
    assert store.directory.exists() is not removed


@pytest.mark.whole
def test_a_server_that_is_down_costs_no_run_of_a_sweep_that_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("--base-url", f"http://127.0.0.1:{closed_port()}", *TWO[:4], *TINY[2:])
    store = begun(*words)
    leave_run(store)
    assert sweep(*words, "--resume", str(store.directory)) == 1
    assert (store.directory / "interrupted" / "000-concurrency-1" / "run" / "journal.bin").exists()
    shown, failure = capsys.readouterr()
    assert "; resume with: loadgen " in failure
    assert "to see" not in shown


def broken(run: Path) -> None:
    (run / "result.json").write_text("{")


@pytest.mark.parametrize("damage", [broken, shutil.rmtree], ids=["broken", "gone"])
def test_a_finished_point_whose_run_cannot_be_read_is_measured_again(
    damage: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep(*TWO[:-1]) == 0
    store = only_store()
    run = store.directory / "points" / "001-concurrency-2"
    digest = load(run).facts.plan_digest
    damage(run)
    capsys.readouterr()
    assert sweep(*TWO[:-1], "--resume", str(store.directory)) == 0
    again = load(run).facts
    assert (again.attempt, again.plan_digest == digest) == (1, False)  # its prompts may be in a cache
    shown = " ".join(capsys.readouterr().out.split())
    assert "concurrency=2: its run cannot be read, and is measured again: " in shown
    assert "[2/2] concurrency=2: attempt 2, with new prompts" in shown
    assert "1 of 2 points left" in shown
    kept = store.directory / "interrupted" / "001-concurrency-2"
    assert kept.exists() is (damage is broken)


def test_what_a_kill_kept_from_the_layout_of_vllm_is_written_on_resume() -> None:
    assert sweep(*TWO, "--repeat", "2") == 0
    place = only_store().directory / "vllm"
    written = {path: path.read_bytes() for path in place.rglob("*.json")}
    assert len(written) == 6
    shutil.rmtree(place / "BENCH--max_concurrency=1")
    (place / "BENCH--max_concurrency=2" / "run=1.json").unlink()
    assert sweep(*TWO, "--repeat", "2", "--resume") == 0
    assert {path: path.read_bytes() for path in place.rglob("*.json")} == written


@loop_over(
    ("damage", "why"),
    [
        (('"number": 1', '"number": 0'), "points: value error, two have the same number"),
        (('"format"', "{"), "invalid json: "),
        (('"seed": 7', '"seed": "x"'), "seed: input should be a valid integer"),
    ],
)
def test_a_record_that_is_damaged_is_refused(damage: tuple[str, str], why: str) -> None:
    store = begun(*TWO)
    path = store.directory / "sweep.json"
    path.write_text(path.read_text().replace(*damage))
    with pytest.raises(UsageError) as caught:
        store.read_record()
    assert str(caught.value).startswith(f"{path} is damaged: {why}")


@loop_over(
    ("keys", "line"),
    [
        ({"request_rate": 0.05, "num_prompts": 50}, "[1/1] rate=0.05: measuring 50 requests, about 17 min"),
        ({"max_concurrency": 4, "num_prompts": 50}, "[1/1] concurrency=4: measuring 50 requests"),
        ({"max_concurrency": 4, "duration": 60.0}, "[1/1] concurrency=4: measuring 60 s"),
        ({"max_concurrency": 4, "duration": 5.0}, None),
        ({"request_rate": 10.0, "num_prompts": 50}, None),
    ],
)
def test_a_long_point_is_announced(keys: dict[str, Any], line: str | None) -> None:
    load = {key: value for key, value in keys.items() if key in ("request_rate", "max_concurrency")}
    points = (GridPoint(0, load, {}, 0, Profile(**keys)),)
    record = SweepRecord(name="s", command=(), fixed="", seed=0, points=tuple(map(plan_point, points)))
    lines: list[str] = []
    servers = cast("Any", SimpleNamespace(starts_s=[], options=Options()))
    sweeping = Sweeping(SweepStore(Path()), record, points, servers, Seed(0), lines.append)
    sweeping._announce(points[0], attempts=0)
    assert lines == [line] * (line is not None)


NONE = Options()


def point(number: int, serve: dict[str, str] | None = None, **keys: Any) -> GridPoint:
    return GridPoint(number, keys, serve or {}, 0, Profile(**keys))


def test_a_rate_and_a_duration_have_their_own_time() -> None:
    left = [point(0, request_rate=0.05, num_prompts=50), point(1, max_concurrency=4, duration=30.0)]
    assert forecast_time(left, (), (), NONE) == TimeLeft(1030.0)
    assert describe_time(forecast_time(left, (), (), NONE)) == "about 17 min"


def test_a_closed_loop_takes_as_long_a_request_as_the_nearest_point() -> None:
    alone, eight = (point(at, max_concurrency=8**at, num_prompts=50 + 30 * at) for at in (0, 1))
    done = [(alone, 100.0), (eight, 30.0)]
    assert forecast_time([point(2, max_concurrency=16, num_prompts=320)], done, (), NONE).seconds == 60.0
    # The same settings again, as a repeat has them, take the same time.
    assert forecast_time([replace(alone, number=3)], done, (), NONE).seconds == 100.0


def test_what_nothing_shows_is_unknown() -> None:
    left = [point(0, max_concurrency=1), point(1, request_rate=1.0, num_prompts=60)]
    assert describe_time(forecast_time(left[:1], (), (), NONE)) == ""
    assert describe_time(forecast_time(left, (), (), NONE)) == "at least 60 s"
    assert describe_time(TimeLeft(0.4)) == "less than 1 s"
    assert describe_time(TimeLeft(0.4, 1)) == ""


def test_a_server_with_other_flags_takes_a_start() -> None:
    rate = {"request_rate": 1.0, "num_prompts": 10}
    flags = [{"max-num-seqs": value} for value in ("8", "16", "16", "32")]
    points = [point(number, serve, **rate) for number, serve in enumerate(flags)]
    done = [(points[0], 10.0)]
    assert forecast_time(points[1:], done, [40.0, 50.0, 90.0], NONE).seconds == 3 * 10 + 2 * 50


def test_a_preset_has_the_time_in_its_steps_until_a_point_is_measured() -> None:
    keys: dict[str, Any] = {"input_len": 64, "output_len": 16, "num_prompts": 16}
    alone, together = (point(at, max_concurrency=at, **keys) for at in (1, 4))
    preset = Options(preset="h20/qwen3-8b-fp8")
    one = forecast_time([alone], (), (), preset)
    assert (one.words[:6], one.unknown) == ("about ", 0)
    assert forecast_time([alone], [(together, 10.0)], (), preset).seconds == 40.0


def varied(settings: Mapping[str, Any], serve: Mapping[str, str] | None = None) -> GridPoint:
    return GridPoint(0, dict(settings), dict(serve or {}), 0, Profile())


def test_a_folder_is_named_by_what_is_varied() -> None:
    of = varied({"max_concurrency": 4, "temperature": 0.5}, {"max-num-seqs": "8"})
    assert sweep_run._name_combination(of) == "SERVE--max_num_seqs=8-BENCH--max_concurrency=4-temperature=0.5"


@loop_over(
    ("one", "other"),
    [
        ({"dataset_path": "ds/a.jsonl"}, {"dataset_path": "ds_a.jsonl"}),
        ({"dataset_path": f"{'x' * 300}/a"}, {"dataset_path": f"{'x' * 300}/b"}),
        ({"request_rate": 0.1234567}, {"request_rate": 0.1234568}),
        ({"dataset_path": "ä"}, {"dataset_path": "ö"}),
    ],
)
def test_no_two_combinations_share_a_folder(one: dict[str, Any], other: dict[str, Any]) -> None:
    names = {sweep_run._name_combination(varied(settings)) for settings in (one, other)}
    assert len(names) == 2
    assert all(len(name.encode()) <= 200 and "/" not in name for name in names)


def test_what_was_varied_has_the_types_of_vllms_parameters(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text("{}", "utf-8")
    serve = {"max-num-seqs": "8", "gpu-memory-utilization": "0.9", "enforce-eager": "true", "dtype": "half"}
    read = sweep_run._read_run(tmp_path, varied({"request_rate": float("inf")}, serve))
    assert read == {
        "max_num_seqs": 8, "gpu_memory_utilization": 0.9, "enforce_eager": True, "dtype": "half",
        "request_rate": "inf", "run_number": 0,
    }  # fmt: skip
    json.dumps(read, allow_nan=False)
