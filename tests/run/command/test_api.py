"""The public API: a run as a value from scripts, notebooks, threads and tests, and nothing left of it."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import loadgen
from builders import made_runs
from builders.loops import loop_over, read_tables
from builders.required import require
from fakes.scripted_server import Answer, Asked, ScriptedServer, api, closed_port, stream
from fakes.virtual_serving import VirtualServing
from loadgen.report.run import Run
from loadgen.settings.keyword_types import BenchOptions
from loadgen.study.series.series_api import LimitOptions, SweepOptions

PATIENCE_S = 20.0


def slow_stream(asked: Asked) -> Answer:
    """The first five at once, each later one after ten seconds."""
    return stream() if asked.number < 8 else Answer([10.0])


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(api(lambda _: stream(), owner="vllm")) as server:
        yield server


@pytest.fixture
def virtual() -> Iterator[VirtualServing]:
    """The same in virtual time, for what is asked of a run as a value."""
    with VirtualServing(api(lambda _: stream(), owner="vllm")) as server:
        yield server


@pytest.fixture
def hanging() -> Iterator[ScriptedServer]:
    """A server that answers five requests and keeps the others waiting."""
    with ScriptedServer(api(slow_stream, owner="vllm")) as server:
        yield server


def small(server: ScriptedServer | VirtualServing, **more: Any) -> loadgen.Run:
    return loadgen.bench(server.base_url, **{**SMALL, **more})


SMALL: Any = {"num_prompts": 4, "max_concurrency": 2, "input_len": 8, "output_len": 3, "observe": False}
# More than five are never answered, so that a stop has something to cut.
LONG: Any = {**SMALL, "num_prompts": 50}


def within(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def half_way(server: ScriptedServer) -> bool:
    """Whether it keeps requests waiting."""
    return len([asked for asked in server.asked if asked.head.startswith("POST")]) >= 7


def open_files(server: ScriptedServer | None) -> int:
    """File handles of this process without those of a server in it."""
    own = [] if server is None else [sock for sock in server.sockets if sock.fileno() >= 0]
    return len(os.listdir("/proc/self/fd")) - len(own)


@contextmanager
def nothing_left(server: ScriptedServer | None = None) -> Iterator[None]:
    """No process, thread, file handle or signal handler more than before."""
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    files = open_files(server)
    yield
    assert not psutil.Process().children(recursive=True)
    names = ("loadgen", "observe", "journal", "sensing")
    assert within(lambda: not [one for one in threading.enumerate() if one.name.startswith(names)])
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    if open_files(server) > files:
        gc.collect()  # a cycle may hold some
    assert within(lambda: open_files(server) <= files)


@pytest.mark.whole
def test_a_run_is_a_value_and_nothing_else_is_seen_of_it(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small(server)  # what is imported and cached once is there now
    with nothing_left(server):
        run = small(server, seed=7, label="a")
    assert (run.metrics.completed, run.metrics.failed, run.seed, run.partial) == (4, 0, 7, "")
    assert 0 < run.metrics.ttft.mean_ms <= run.metrics.ttft.p99_ms < 10_000
    assert run.metrics.itl.std_ms >= 0
    assert run.metrics.output_throughput_per_s > 0
    assert run.verdict.status in ("VALID", "SUSPECT", "INVALID")
    assert all(doubt.name and doubt.evidence and doubt.remedy for doubt in run.verdict.doubts)
    assert "Serving Benchmark Result" in run.report()
    assert f"verdict: {run.verdict.status}" in run.report(explain=True)
    assert run.json()["completed"] == 4
    assert repr(run).startswith("<loadgen.Run bench on m: 4 of 4 requests")
    assert gc.isenabled()
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())


def test_requests_are_columns(virtual: VirtualServing) -> None:
    run = small(virtual)
    columns = run.requests()
    assert columns["index"].tolist() == [0, 1, 2, 3]
    assert columns["ok"].all()
    assert columns["ok"].dtype == bool
    assert set(columns["finish_reason"]) == {"length"}
    assert (columns["cached_tokens"] == -1).all()
    assert np.isclose(columns["ttft_ns"].mean() / 1e6, run.metrics.ttft.mean_ms)
    assert {len(column) for column in columns.values()} == {4}


def test_requests_as_a_frame_need_pandas(virtual: VirtualServing, monkeypatch: pytest.MonkeyPatch) -> None:
    run = small(virtual)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "pandas", None)
        with pytest.raises(loadgen.LoadgenError, match=r"in the clone, .venv/bin/pip install '.\[pandas\]'"):
            run.to_pandas()
    pandas = pytest.importorskip("pandas")
    frame = run.to_pandas()
    assert list(frame["ttft_ns"]) == run.requests()["ttft_ns"].tolist()
    assert frame["cached_tokens"].isna().all()
    assert frame["index"].dtype == pandas.Int64Dtype()


def test_a_saved_run_is_loaded_and_judged_as_it_was(virtual: VirtualServing, tmp_path: Path) -> None:
    run = small(virtual)
    assert run.directory is None
    assert run.save(tmp_path / "a" / "b") == run.directory == tmp_path / "a" / "b"
    loaded = loadgen.load(tmp_path / "a" / "b")
    assert loaded.metrics.ttft == run.metrics.ttft
    assert loaded.verdict == run.verdict
    assert loaded.report() == run.report()
    with pytest.raises(loadgen.LoadgenError, match="holds a run already"):
        run.save(tmp_path / "a" / "b")
    with pytest.raises(loadgen.LoadgenError, match="is not a run directory"):
        loadgen.load(tmp_path)


def test_a_profile_is_a_name_a_path_or_a_value(virtual: VirtualServing, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("input_len = 5\noutput_len = 3\nnum_prompts = 2\nmax_concurrency = 1\n")
    assert loadgen.bench(virtual.base_url, path, observe=False).profile.name == "mine"
    value = loadgen.Profile(input_len=6, output_len=3, num_prompts=9, max_concurrency=1)
    run = loadgen.bench(virtual.base_url, value, num_prompts=2, observe=False)
    assert (run.profile.input_len, run.profile.num_prompts) == (6, 2)
    run = loadgen.bench(virtual.base_url, value, duration=0.2, observe=False)
    assert (run.profile.duration, run.profile.num_prompts) == (0.2, None)
    run = loadgen.bench(virtual.base_url, "low-load", **SMALL)
    assert (run.profile.name, run.profile.input_len) == ("low-load", 8)


UNCHECKED: list[tuple[dict[str, Any], str]] = [
    ({"profile": loadgen.Profile.model_construct(input_len=0)}, "input_len = 0: "),
    ({"profile": loadgen.Profile().model_copy(update={"stream": "no!"})}, "stream = 'no!': "),
    ({"extra_body": {1: 2}}, "^extra_body: expected `str`, got `int`"),
]


@loop_over("named", [None, 5, b"x", [], ["runs/1"], {}])
def test_what_is_no_place_is_an_error_that_says_what_to_pass(named: Any) -> None:
    with pytest.raises(
        loadgen.LoadgenError, match=r"load\(\): expected a run's directory, got `\w+`: pass its path"
    ):
        loadgen.load(named)


@loop_over("call", [loadgen.compare, loadgen.audit, loadgen.merge])
@loop_over("named", [None, 5])
def test_what_is_no_list_is_an_error_that_says_what_to_pass(call: Any, named: Any) -> None:
    with pytest.raises(loadgen.LoadgenError, match=r"expected a list of .*: write \[run\]"):
        call(named)


@loop_over("call", [loadgen.compare, loadgen.audit])
@loop_over("named", [[None], ["x", 5], {"a": None}, {"a": [None]}, b"x"])
def test_what_is_no_run_in_a_list_is_an_error_of_ours(call: Any, named: Any) -> None:
    with pytest.raises(
        loadgen.LoadgenError, match=r"expected runs and places, got|is not a run|No such file"
    ):
        call(named)


@pytest.mark.whole
@loop_over(("options", "message"), [*read_tables("api")["refused"], *UNCHECKED])
def test_what_cannot_be_is_an_error_of_ours(options: dict[str, Any], message: str) -> None:
    with pytest.raises(loadgen.LoadgenError, match=message), nothing_left():
        loadgen.bench(**options)


@loop_over(
    ("keys", "message"),
    [
        ({"input_len": 0}, r"Profile\(\): input_len = 0: input should be greater than or equal to 1"),
        ({"num_prompts": "many"}, "num_prompts = 'many': input should be a valid integer"),
        ({"input_length": 3}, "unknown key 'input_length', did you mean 'input_len'"),
        ({"duration": 5.0}, "duration = 5.0: needs max_concurrency or request_rate"),
        ({"extra_body": {"a": float("nan")}}, "extra_body = .*: cannot be sent as JSON"),
        ({"server": {"seed": -1}}, r"\[server\] seed = -1"),
    ],
)
def test_a_profile_made_by_hand_is_checked_with_errors_of_ours(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(loadgen.LoadgenError, match=message):
        loadgen.Profile(**keys)


@pytest.mark.whole
def test_a_server_that_does_not_answer_is_an_error_of_ours() -> None:
    url = f"http://127.0.0.1:{closed_port()}"
    with pytest.raises(loadgen.LoadgenError, match="is not ready"):
        loadgen.bench(url)
    with pytest.raises(loadgen.LoadgenError, match="is not ready"):
        asyncio.run(loadgen.bench_async(url))


def test_a_key_is_sent_and_never_kept(virtual: VirtualServing, tmp_path: Path) -> None:
    run = small(virtual, api_key="sk-very-secret-0123456789", run_dir=tmp_path)
    assert any("Bearer sk-very-secret-0123456789" in asked.head for asked in virtual.asked)
    directory = require(run.directory)
    assert directory.parent == tmp_path
    assert all(b"very-secret" not in path.read_bytes() for path in directory.iterdir())
    files = {path.name for path in directory.iterdir()}  # those of the command
    assert files - {"samples.npz"} == {"result.json", "arrivals.npz", "report.txt"}


@pytest.mark.whole
def test_an_awaited_run_leaves_the_loop_free(server: ScriptedServer) -> None:
    async def main() -> tuple[loadgen.Run, int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.005)

        ticking = asyncio.create_task(tick())
        run = await loadgen.bench_async(server.base_url, **SMALL)
        ticking.cancel()
        return run, ticks

    run, ticks = asyncio.run(main())
    assert run.metrics.completed == 4
    assert ticks > 3


def test_a_run_that_blocks_works_inside_a_running_loop(virtual: VirtualServing) -> None:
    async def cell() -> loadgen.Run:
        return small(virtual)

    assert asyncio.run(cell()).metrics.completed == 4


@pytest.mark.whole
def test_runs_at_once_do_not_disturb_one_another(server: ScriptedServer) -> None:
    with nothing_left(server), ThreadPoolExecutor(3) as threads:
        runs = list(threads.map(lambda seed: small(server, seed=seed, num_prompts=20), range(3)))
    assert [(run.seed, run.metrics.completed) for run in runs] == [(0, 20), (1, 20), (2, 20)]
    assert gc.isenabled()

    async def both() -> list[loadgen.Run]:
        url = server.base_url
        return list(await asyncio.gather(*(loadgen.bench_async(url, **SMALL, seed=seed) for seed in (1, 2))))

    assert [run.seed for run in asyncio.run(both())] == [1, 2]


async def cancelled(server: ScriptedServer, **more: Any) -> loadgen.Run | None:
    task = asyncio.create_task(loadgen.bench_async(server.base_url, **LONG, **more))
    assert await asyncio.to_thread(within, lambda: half_way(server))
    task.cancel()
    try:
        await task
    except asyncio.CancelledError as error:
        return vars(error)["run"]  # type: ignore[no-any-return]
    raise AssertionError("it was not cancelled")


@pytest.mark.whole
def test_a_cancelled_run_ends_with_what_it_measured(hanging: ScriptedServer, tmp_path: Path) -> None:
    with nothing_left(hanging):
        run = asyncio.run(cancelled(hanging, run_dir=tmp_path))
    assert run is not None
    assert 0 < run.metrics.completed < 50
    assert run.partial == "cancelled"
    assert loadgen.load(require(run.directory)).metrics.completed == run.metrics.completed


@pytest.mark.whole
def test_a_time_limit_of_asyncio_keeps_what_was_measured(hanging: ScriptedServer) -> None:
    async def limited() -> None:
        async with asyncio.timeout(4.0):
            await loadgen.bench_async(hanging.base_url, **LONG)

    with pytest.raises(TimeoutError) as caught, nothing_left(hanging):
        asyncio.run(limited())
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    assert vars(caught.value.__cause__)["run"].metrics.completed > 0


@pytest.mark.whole
def test_a_run_cancelled_before_it_began_is_none() -> None:
    """The server accepts connections and never answers: nothing can have been measured."""
    with ScriptedServer(lambda asked: Answer([10.0])) as silent, nothing_left(silent):

        async def main() -> None:
            task = asyncio.create_task(loadgen.bench_async(silent.base_url, **LONG))
            assert await asyncio.to_thread(within, lambda: bool(silent.asked))
            task.cancel()
            await task

        begun = time.monotonic()
        with pytest.raises(asyncio.CancelledError) as caught:
            asyncio.run(main())
        assert vars(caught.value).get("run") is None
        assert time.monotonic() - begun < 8.0


@pytest.mark.whole
def test_ctrl_c_ends_a_run_with_what_it_measured(hanging: ScriptedServer) -> None:
    def press() -> None:
        within(lambda: half_way(hanging))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    pressing = threading.Thread(target=press)
    with nothing_left(hanging):
        pressing.start()
        with pytest.raises(loadgen.Interrupted) as caught:
            loadgen.bench(hanging.base_url, **LONG)
    pressing.join()
    assert isinstance(caught.value, KeyboardInterrupt)
    assert require(caught.value.run).metrics.completed > 0


@pytest.mark.whole
def test_what_the_program_froze_stays_frozen(server: ScriptedServer) -> None:
    frozen: list[object] = []
    gc.freeze()
    small(server)
    assert gc.isenabled()
    assert not any(found is frozen for found in gc.get_objects())  # which leaves out what is frozen


@pytest.mark.whole
def test_a_run_that_a_rule_ends_is_returned(hanging: ScriptedServer) -> None:
    run = loadgen.bench(hanging.base_url, **LONG, max_duration_s=1.0, drain_timeout_s=0.0)
    assert "--max-duration" in run.partial
    assert run.metrics.completed > 0


@pytest.mark.usefixtures("engines")
def test_the_gpus_of_a_simulation_are_those_that_are_given() -> None:
    run = loadgen.bench(preset="instant", num_prompts=4, input_len=8, output_len=4, gpus=2, observe=False)
    metrics = run.metrics
    assert metrics.output_throughput_per_gpu_per_s == metrics.output_throughput_per_s / 2
    report = " ".join(run.report().split())
    assert f"per GPU: {metrics.output_throughput_per_gpu_per_s:.1f} output tok/s" in report


@loop_over(
    ("function", "options"),
    [
        (loadgen.bench, BenchOptions),
        (loadgen.bench_async, BenchOptions),
        (loadgen.sweep, SweepOptions),
        (loadgen.limit, LimitOptions),
    ],
)
def test_a_signature_names_every_keyword(function: Callable[..., Any], options: Any) -> None:
    shown = inspect.signature(function)
    assert list(shown.parameters) == ["base_url", "profile", *options.__annotations__]
    assert "max_concurrency: int | None = ..." in str(shown)
    assert "ForwardRef" not in str(shown)


def test_a_run_is_shown_as_its_report_in_a_notebook() -> None:
    page = Run(made_runs.run(model="a<b>&c"))._repr_html_()
    assert page.startswith("<pre>")
    assert "Serving Benchmark Result" in page
    assert "a&lt;b&gt;&amp;c" in page
    assert "loadgen report" not in page  # it lies nowhere
