"""Sweeps and searches from Python: values with runs, nothing printed, and nothing left without a place."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import loadgen
from builders.loops import loop_over, read_tables
from fakes.scripted_server import Answer, Asked, ScriptedServer, api, closed_port, stream
from fakes.supervised import until
from fakes.virtual_serving import VirtualServing
from loadgen.base.errors import UsageError

TABLES = read_tables("series_api")

# Python 3.12 warns of any thread at a fork; the child takes none of their locks.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
TINY: dict[str, Any] = {
    "preset": "instant", "input_len": 8, "output_len": 4, "num_prompts": 4, "seed": 7, "observe": False,
}  # fmt: skip
SEARCH: dict[str, Any] = {
    "preset": "jetson-thor/qwen3-8b-bf16", "input_len": 8, "output_len": 4, "seed": 7, "observe": False,
    "over": "concurrency", "min_duration_s": 0.3, "budget_s": 36, "highest": 4,
}  # fmt: skip


UNCOUNTED = {name: value for name, value in TINY.items() if name != "num_prompts"}


def test_a_sweep_takes_a_profile_as_bench_does(tmp_path: Path) -> None:
    value = loadgen.Profile(name="mine", input_len=8, output_len=3, num_prompts=2, max_concurrency=9)
    keys: dict[str, Any] = {"concurrency": "1,2", "repeats": 2, "preset": "instant", "observe": False}
    sweep = loadgen.sweep(profile=value, run_dir=str(tmp_path), **keys)
    assert [point.repeat for point in sweep.points] == [0, 0, 1, 1]
    assert [run.profile.max_concurrency for run in sweep.runs] == [1, 2, 1, 2]
    assert sweep.directory is not None
    assert sweep.directory.name.endswith("-sweep-mine")
    assert sweep.runs[0].directory == sweep.directory / "points" / "000-concurrency-1"
    again = loadgen.sweep(profile=value, resume=str(sweep.directory), **keys)
    assert [run.seed for run in again.runs] == [run.seed for run in sweep.runs]


def test_a_failed_point_has_its_reason_and_the_others_their_runs() -> None:
    def answer(asked: Asked) -> Answer:
        return Answer([b"HTTP/1.1 500 no\r\ncontent-length: 0\r\n\r\n"]) if asked.number > 12 else stream()

    with VirtualServing(api(answer, owner="vllm")) as server:
        keys = {**TINY, "num_prompts": 6, "ready_check_timeout_s": 1.0}
        del keys["preset"]
        sweep = loadgen.sweep(server.base_url, concurrency=[1, 2, 3], **keys)
    assert [point.state for point in sweep.points] == ["done", "done", "failed"]
    assert [point.reason for point in sweep.points[:2]] == ["", ""]
    assert "http" in sweep.points[2].reason
    assert [run.profile.max_concurrency for run in sweep.runs] == [1, 2]


def test_a_limit_is_a_value_with_its_runs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    limit = loadgen.limit(slo="e2el p50 < 60s", **SEARCH)
    assert (limit.record.axis, limit.record.ended) == ("concurrency", "everything-passes")
    assert (limit.value, limit.low, limit.high) == (None, 4, None)
    assert (limit.highest_passing, limit.lowest_failing) == (4, None)
    assert [run.profile.max_concurrency for run in limit.runs] == [1, 4]
    assert limit.text().startswith("limit: at least 4 at a time\n")
    assert limit.json()["objectives"] == ["e2el p50 < 60000 ms"]
    assert repr(limit) == "<loadgen.Limit search: limit: at least 4 at a time>"
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []
    compared = loadgen.compare({"a": limit, "b": limit})
    assert compared.tables == ()
    assert [row.name for row in compared.limits[0].rows] == ["a", "b"]
    assert "Highest concurrency at e2el p50 < 60000 ms" in compared.text()
    assert compared.json()["limits"][0]["rows"][1]["name"] == "b"


def test_a_search_on_a_disk_goes_on_and_is_compared(tmp_path: Path) -> None:
    limit = loadgen.limit(slo="e2el p50 < 60s", run_dir=str(tmp_path), **SEARCH)
    assert limit.directory is not None
    assert limit.runs[0].directory == limit.directory / limit.record.runs[0].directory
    again = loadgen.limit(slo="e2el p50 < 60s", resume=str(limit.directory), **SEARCH)
    assert again.record == limit.record
    compared = loadgen.compare({"x": limit.directory})
    assert [row.name for row in compared.limits[0].rows] == ["x"]
    assert "### Highest concurrency at e2el p50" in compared.markdown()


@loop_over(("verb", "options", "message"), TABLES["refused"])
def test_what_cannot_be_is_an_error_of_ours(verb: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(loadgen.LoadgenError, match=message):
        getattr(loadgen, verb)(preset="instant", **options)


@pytest.mark.whole
def test_no_server_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(loadgen.LoadgenError, match="is not ready"):
        loadgen.sweep(f"http://127.0.0.1:{closed_port()}", concurrency=[1, 2], run_dir=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


@contextmanager
def pressed(reached: Callable[[], bool]) -> Iterator[None]:
    """Press Ctrl-C as soon as something is reached."""

    def press() -> None:
        until(reached, "what is interrupted")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    pressing = threading.Thread(target=press)
    pressing.start()
    yield
    pressing.join()


@pytest.mark.whole
def test_ctrl_c_ends_a_sweep_with_the_points_that_are_done(tmp_path: Path) -> None:
    """The third point would take five minutes."""
    linked: dict[str, list[Any]] = {"max_concurrency": [1, 2, 3], "duration": [0.3, 0.3, 300.0]}
    with (
        pressed(lambda: len(list(tmp_path.glob("*-sweep-*/points/*/result.json"))) >= 2),
        pytest.raises(loadgen.SweepInterrupted) as caught,
    ):
        loadgen.sweep(link=[linked], run_dir=str(tmp_path), **UNCOUNTED)
    sweep = caught.value.sweep
    assert sweep is not None
    assert [point.state for point in sweep.points] == ["done", "done", "planned"]
    assert sweep.partial == "stopped by Ctrl-C"
    assert len(sweep.runs) == 2


def test_a_search_that_begins_at_no_number_is_refused() -> None:
    with pytest.raises(UsageError, match="limit: start = inf: input should be a finite number"):
        loadgen.limit(slo="e2el p50 < 60s", start=math.inf, **SEARCH)


@pytest.mark.whole
def test_ctrl_c_during_the_first_run_of_a_search_leaves_none() -> None:
    """Its first run would take five minutes."""
    reached = threading.Event()

    def answer(asked: Asked) -> Answer:
        if asked.number > 30:
            reached.set()
        return stream()

    keys = {**SEARCH, "min_duration_s": 300.0, "budget_s": 1800}
    del keys["preset"]
    with (
        ScriptedServer(api(answer, owner="vllm")) as server,
        pressed(reached.is_set),
        pytest.raises(loadgen.LimitInterrupted) as caught,
    ):
        loadgen.limit(server.base_url, slo="e2el p50 < 60s", **keys)
    assert caught.value.limit is None
    assert caught.value.run is None
