"""A sweep that runs: every point is a run or has its reason, and what was ended goes on."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from builders.loops import read_tables
from builders.serving_scripts import launch_command
from fakes.scripted_server import closed_port
from fakes.virtual_serving import virtual_engines
from loadgen import cli
from loadgen.base.errors import UsageError
from loadgen.plan.profile import Profile
from loadgen.report import load_identity
from loadgen.report.run_directory import load
from loadgen.run import session
from loadgen.run.command.options import Options
from loadgen.settings.validation import ServerSettings
from loadgen.study import sweep_record
from loadgen.study.importers import result_sources
from loadgen.study.series import sweep_command
from loadgen.study.series.campaign import arms, execution
from loadgen.study.series.grid import Variation
from loadgen.study.series.series_store import SeriesStore
from loadgen.study.series.sweep_command import SweepRequest
from loadgen.study.series.time_estimate import Pace, TimeLeft
from loadgen.study.sweep_record import SweepPoint, SweepRecord, SweptPoint, read_points

TABLES = read_tables("sweep_command")

# Python 3.12 warns of any thread at a fork; the child takes none of their locks.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
TINY = ("--input-len", "8", "--output-len", "4", "--num-prompts", "6", "--seed", "7", "--quiet")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that failed ends soon, or lives."""
    monkeypatch.setattr(session, "_FAILED_S", 0.5)


def sweep(*words: str) -> int:
    return cli.main(["sweep", *words])


def the_store(base: str = "runs") -> SeriesStore:
    (directory,) = Path(base).glob("*-sweep-*")
    return sweep_command.open_store(directory)


def points(store: SeriesStore) -> tuple[SweptPoint, ...]:
    """What became of each point."""
    return read_points(store.directory, SweepRecord.read(store.directory))


def states(store: SeriesStore) -> list[str]:
    return [point.state for point in points(store)]


def digests(store: SeriesStore) -> list[str]:
    """What each point asked."""
    return [load(store.directory / point.directory).facts.plan_digest for point in points(store)]


def test_a_sweep_leaves_a_run_and_a_row_for_each_point(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--preset", "instant", "--concurrency", "1,2…4", "--repeat", "2", *TINY)
    assert sweep(*words) == 0
    store = the_store()
    record, swept = SweepRecord.read(store.directory), points(store)
    assert (record.axis, record.seed, record.name) == ("concurrency", 7, "bench")
    assert [(point.settings, point.repeat) for point in swept] == [
        ({"max_concurrency": limit}, repeat) for repeat in (0, 1) for limit in (1, 2, 4)
    ]
    assert {point.state for point in swept} == {"done"}
    names = [point.directory for point in swept[2:4]]
    assert names == ["points/002-concurrency-4", "points/003-concurrency-1-repeat-1"]
    assert len(set(digests(store))) == 6  # prompts of its own for each
    facts = load(store.directory / swept[2].directory).facts
    assert (facts.max_concurrency, facts.requests, facts.repeat) == (4, 6, 2)
    shown = capsys.readouterr().out
    assert "2 runs each" in shown
    assert f"6 of 6 points are finished: {store.directory}" in shown
    assert len(result_sources.read_sources([str(store.directory)]).reported) == 6
    assert not (store.directory / "unfinished").exists()


def starts() -> list[Path]:
    """The logs of the servers that were started."""
    return list((the_store().directory / "servers").glob("*/server.log"))


def launched(tmp_path: Path, code: str, *words: str) -> int:
    return sweep("--launch-command", launch_command(tmp_path, code), *words, *TINY[2:])


@pytest.mark.whole
def test_a_failed_point_has_its_reason_and_is_measured_again_on_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = "asked.prompt_tokens > 8 and not os.path.exists('fine')"
    code = f"Server(lambda asked: 500 if {refused} else None).serve()"
    words = ("--vary", "input_len=4,64", "--max-concurrency", "1")
    assert launched(tmp_path, code, *words) == 0
    shown = capsys.readouterr().out
    assert "input_len=64: failed: every request failed, the first with http-status" in shown
    assert "measure 1 failed point again: loadgen " in shown
    place = the_store().directory
    Path("fine").touch()
    assert launched(tmp_path, code, *words, "--resume", str(place)) == 0
    assert states(the_store()) == ["done", "done"]
    assert not (place / "failed" / "001-input_len-64").exists()


@pytest.mark.whole
def test_a_server_is_restarted_only_where_its_flags_differ(tmp_path: Path) -> None:
    words = ("--serve-param", "max-num-seqs=8,16", "--concurrency", "1,2", "--input-len", "8")
    assert launched(tmp_path, "Server().serve()", *words) == 0
    swept = points(the_store())
    assert [(point.serve, point.settings) for point in swept] == [
        ({"max-num-seqs": flag}, {"max_concurrency": limit}) for flag in ("8", "16") for limit in (1, 2)
    ]
    assert len(starts()) == 2
    runs = [load(the_store().directory / point.directory).facts for point in swept]
    given = [run.launched.settings.arguments for run in runs if run.launched is not None]
    assert given == [("--max-num-seqs=8",)] * 2 + [("--max-num-seqs=16",)] * 2
    assert [run.profile.name for run in runs] == ["max-num-seqs=8"] * 2 + ["max-num-seqs=16"] * 2


@pytest.mark.whole
def test_a_server_that_does_not_start_fails_its_points_and_names_its_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--serve-param", "max-num-seqs=8,16", "--concurrency", "1,2", "--input-len", "8")
    fails = "any('=8' in word for word in sys.argv)"
    code = f"import sys\nif {fails}:\n    sys.exit(2)\nServer().serve()"
    assert launched(tmp_path, code, *words) == 0
    assert states(the_store()) == ["failed", "failed", "done", "done"]
    (reason,) = {point.reason for point in points(the_store())[:2]}
    words_before, _, log = reason.partition("; its whole log: ")
    assert words_before == "command ended with 2 before it was ready"
    assert Path(log).is_file()
    assert len(starts()) == 2
    assert all(len(line) <= 80 or log in line for line in capsys.readouterr().out.splitlines()[:6])


def test_an_output_length_that_varies_is_what_each_point_asks_of_the_rows() -> None:
    Path("d.jsonl").write_text('{"prompt": "hello there", "output_tokens": 4}\n' * 3)
    Path("e.jsonl").write_text('{"prompt": "hello there"}\n' * 3)
    words = ("--preset", "instant", "--max-concurrency", "1", "--quiet")
    assert sweep(*words, "--vary", "output_len=8,16", "--dataset-path", "d.jsonl") == 0
    assert outputs(the_store()) == [8, 16]
    given = ("--output-len", "6", "--vary", "dataset_path=d.jsonl,e.jsonl", "--run-dir", "given")
    assert sweep(*words, *given) == 0
    assert outputs(the_store("given")) == [6, 6]


def outputs(store: SeriesStore) -> list[int | None]:
    """The tokens of every answer that each point asked for."""
    facts = [load(store.directory / point.directory).facts for point in points(store)]
    return [load_identity.find_asked_lengths(each)[1] for each in facts]


@pytest.mark.parametrize(("words", "message"), TABLES["refused"])
def test_what_is_wrong_at_any_point_is_refused_before_the_first(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("d.jsonl").write_text('{"prompt": "hello there", "output_tokens": 4}\n')
    assert sweep("--preset", "instant", *words) == 2
    assert message in capsys.readouterr().err
    assert not Path("runs").exists()


FAST = ("--slo", "ttft p50 < 60s")
SLOW = ("--slo", "ttft p50 < 1us")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((*FAST, "--fail-on", "slo,failures,invalid"), 0),
        ((*SLOW, "--fail-on", "failures,invalid"), 0),
        ((*SLOW, "--fail-on", "slo"), 8),
        (("--fail-on", "slo"), 2),
    ],
)
def test_a_condition_that_holds_at_one_point_is_the_sweeps_code(words: tuple[str, ...], code: int) -> None:
    with virtual_engines():
        assert sweep("--preset", "instant", "--concurrency", "1,2", *TINY, *words) == code
    assert Path("runs").exists() == (code != 2)


def test_values_as_long_as_paths_are_measured() -> None:
    place = Path("x" * 120, "y" * 120)
    place.mkdir(parents=True)
    for name in ("a", "b"):
        (place / name).write_text('{"prompt": "hello there", "output_tokens": 4}\n')
    words = ("--preset", "instant", "--max-concurrency", "1", "--quiet")
    assert sweep(*words, "--vary", f"dataset_path={place / 'a'},{place / 'b'}") == 0
    assert states(the_store()) == ["done", "done"]


def test_a_log_shows_how_many_points_there_are_and_what_begins(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "_LONG_S", 0.0)  # a point as short as these has no line when it begins
    assert sweep("--preset", "instant", "--concurrency", "1,2", "--disable-stream", *TINY[:-1]) == 0
    begun, first, *lines = capsys.readouterr().out.splitlines()
    assert begun == f"2 points, less than 1 s, in {the_store().directory}"
    assert first == "[1/2] concurrency=1: measuring 6 requests, less than 1 s"
    assert lines[0].startswith("[1/2] concurrency=1: ")
    assert " tok/s, mean E2EL " in lines[0]
    assert lines[1].startswith("[2/2] concurrency=2: measuring 6 requests, ")  # as the first one took
    assert lines[2].startswith("[2/2] concurrency=2: ")
    assert not any("nan" in line or " 0 s left" in line for line in lines[:3])


FOUR = ("--preset", "instant", "--input-len", "8", "--output-len", "4", "--num-prompts", "4", "--quiet")
TWO = ("--concurrency", "1,2", "--seed", "7", *FOUR)


def request(*words: str) -> SweepRequest:
    """The sweep of a command line."""
    return sweep_command.read_request(words)[0]


def begun(*words: str) -> SeriesStore:
    """A sweep's directory with nothing measured."""
    return sweep_command.begin_sweep(request(*words))


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
        sweep_command.resume_sweep(request(*words), None)
    assert str(caught.value) == (
        "no sweep by this command to resume under runs: give its flags, or its directory to --resume; of the "
        f"latest, {store.directory}, {why}"
    )
    with pytest.raises(UsageError, match=f"is another sweep: {why}; resume with its flags: "):
        sweep_command.resume_sweep(request(*words), store.directory)


@pytest.mark.parametrize(("name", "before", "after", "words"), TABLES["changes"])
def test_a_file_that_changed_makes_another_sweep(
    name: str, before: str, after: str, words: list[str]
) -> None:
    Path("e.jsonl").write_text('{"prompt": "tell me of 3", "output_tokens": 3}\n')
    Path(name).write_text(before)
    fixed = request("--preset", "instant", *words).fixed
    assert request("--preset", "instant", *words).fixed == fixed
    Path(name).write_text(after)
    assert request("--preset", "instant", *words).fixed != fixed


def leave_run(store: SeriesStore) -> None:
    """What an interrupted point leaves."""
    place = store.directory / "interrupted" / "000-concurrency-1" / "run"
    place.mkdir(parents=True)
    (place / "journal.bin").write_bytes(b"x")


def test_only_an_empty_directory_is_removed() -> None:
    for measured in (False, True):
        store = begun(*TWO)
        if measured:
            leave_run(store)
        assert store.remove_empty() is not measured
        assert store.directory.exists() is measured


@pytest.mark.whole
def test_a_server_that_is_down_costs_no_run_of_a_sweep_that_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("--base-url", f"http://127.0.0.1:{closed_port()}", *TWO[:4], *FOUR[2:])
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
    store = the_store()
    run = store.directory / "points" / "001-concurrency-2"
    digest = load(run).facts.plan_digest
    damage(run)
    capsys.readouterr()
    assert sweep(*TWO[:-1], "--resume", str(store.directory)) == 0
    again = load(run).facts
    assert (again.attempt, again.plan_digest == digest) == (0, True)  # its server was empty
    shown = " ".join(capsys.readouterr().out.split())
    assert ("concurrency=2: its run cannot be read, and is measured again: " in shown) is (damage is broken)
    assert "1 of 2 points left" in shown
    assert "[2/2] concurrency=2: " in shown
    kept = store.directory / "interrupted" / "001-concurrency-2"
    assert kept.exists() is (damage is broken)


def test_a_record_of_two_points_of_one_number_is_refused() -> None:
    path = begun(*TWO).directory / "sweep.json"
    path.write_text(path.read_text().replace('"number": 1', '"number": 0'))
    with pytest.raises(UsageError, match=f"^{path} is damaged: points: value error, two have the same num"):
        SweepRecord.read(path.parent)


NONE = Options()


def starts_of(
    *given: dict[str, Any], serve: tuple[str, ...] = (), options: Options = NONE
) -> list[arms.Start]:
    """The starts of points with these keys, each on a server with its flag."""
    flags = [{"max-num-seqs": value} for value in serve] or [{}] * len(given)
    made = tuple(
        (SweepPoint(number=number, settings=keys, serve=flags[number]), Profile(**keys))
        for number, keys in enumerate(given)
    )
    return list(sweep_command.plan_starts(SweepRequest("s", options, Variation(), made, ServerSettings())))


def left(starts: Sequence[arms.Start], done: dict[int, float], *starts_s: float) -> TimeLeft:
    """The time of the points that are not done: the seconds of those that are, and of the starts so far."""
    every = arms.list_cells(starts)
    pace = Pace([(every[at], took_s) for at, took_s in done.items()], [("", each) for each in starts_s])
    return arms.estimate_left(pace, starts, {every[at].id for at in done})


RATE = {"request_rate": 0.05, "num_prompts": 50}
EACH_S = {"request_rate": 1.0, "num_prompts": 10}


def test_a_sweeps_time_is_that_of_its_loads_and_of_the_nearest_points() -> None:
    assert left(starts_of(RATE, {"max_concurrency": 4, "duration": 30.0}), {}) == TimeLeft(1030.0)
    loads = [{"max_concurrency": n, "num_prompts": count} for n, count in ((1, 50), (8, 80), (16, 320))]
    assert left(starts_of(*loads), {0: 100.0, 1: 30.0}).seconds == 60.0
    # The same settings again, as a repeat has them, take the same time.
    assert left(starts_of(*loads[:2], loads[0]), {0: 100.0, 1: 30.0}).seconds == 100.0
    assert left(starts_of({"max_concurrency": 1}), {}).words == ""
    assert left(starts_of({"max_concurrency": 1}, {**EACH_S, "num_prompts": 60}), {}).words == "at least 60 s"
    assert (TimeLeft(0.4).words, TimeLeft(0.4, 1).words) == ("less than 1 s", "")
    launched = starts_of(*[EACH_S] * 4, serve=("8", "16", "16", "32"))
    assert [len(start.planned) for start in launched] == [1, 2, 1]
    assert left(launched, {0: 10.0}, 40.0, 50.0, 90.0).seconds == 3 * 10 + 2 * 50


def test_points_that_are_not_done_are_listed_with_their_reasons() -> None:
    points = (
        SweptPoint({"max_concurrency": 1}, 0, "done"),
        SweptPoint({"max_concurrency": 8}, 0, "saturated", "TTFT rises"),
        SweptPoint({"input_len": 512}, 0, "failed", "out of\nmemory", serve={"max-num-seqs": "8"}),
        SweptPoint({"max_concurrency": 16}, 1, "planned"),
    )
    assert sweep_record.list_unfinished(points) == [
        "concurrency=8: ended early, saturated: TTFT rises",
        "max-num-seqs=8 input_len=512: failed: out of memory",
        "concurrency=16 repeat 1: not measured",
    ]
