"""The whole way: from a command to the block and the run directory."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakes.scripted_server import (
    DONE,
    HEAD,
    LAST,
    Answer,
    Asked,
    End,
    ScriptedServer,
    api,
    chunk,
    closed_port,
    stream,
    token,
    whole,
)
from fakes.virtual_serving import VirtualServing
from loadgen import cli
from loadgen.features.selftest import capacity
from loadgen.figures.metrics import compute_metrics
from loadgen.figures.objectives import make_metric_options
from loadgen.plan.plan import Plan
from loadgen.plan.profile import Profile
from loadgen.records.journal import JOURNAL
from loadgen.records.record import Records
from loadgen.report.result_block import find_layout
from loadgen.report.run_directory import ARRIVALS, REPORT, RESULT, load
from loadgen.report.run_lines import summarize_client
from loadgen.report.section import ReportOptions
from loadgen.run import acceptance, session
from loadgen.run.firing import Outcome, TransportOptions, Watch
from loadgen.run.measurement import measure
from loadgen.server.sample_file import SAMPLES

pytestmark = [
    pytest.mark.usefixtures("elsewhere"),
    # Python 3.12 warns of any thread at a fork; the child takes none of their locks.
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]
LOAD = ["--random-input-len", "8", "--random-output-len", "3", "--num-prompts", "4", "--max-concurrency", "2"]


@pytest.fixture(autouse=True)
def _no_process_left() -> Iterator[None]:
    yield
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def bench(server: ScriptedServer | VirtualServing, *words: str) -> int:
    return cli.main(["bench", "--quiet", "--base-url", server.base_url, *LOAD, *words])


def run_directory() -> Path:
    (directory,) = Path("runs").iterdir()
    return directory


def test_two_profiles_print_a_block_each_and_share_no_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        Path(f"{name}.toml").write_text('description = "of the test"\n')
    with VirtualServing(api(lambda _: stream())) as server:
        assert bench(server, "--profile", "./one.toml,./two.toml", "--seed", "1") == 0
        assert len({asked.body for asked in server.asked if asked.body}) == 8
    out = capsys.readouterr().out
    assert out.count("Serving Benchmark Result") == 2
    assert out.index("one: of the test") < out.index("two: of the test")
    assert len(list(Path("runs").iterdir())) == 2


def test_a_key_in_a_header_of_ones_own_is_not_overridden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    with VirtualServing(api(lambda _: stream())) as server:
        assert bench(server, "--header", "authorization=Bearer mine") == 0
        assert all("Bearer mine" in asked.head and "sk-1" not in asked.head for asked in server.asked)


def test_the_request_that_is_printed_is_the_first_that_is_sent(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--seed", "1", "--request-id-prefix", "mine-", "--max-concurrency", "1", "--temperature", "0.5"]
    with VirtualServing(api(lambda _: stream())) as server:
        assert bench(server, *words, "--print-request", "--save-result", "--result-dir", "results") == 0
        assert not list(Path().iterdir())
        head, _, body = capsys.readouterr().out.partition("\n\n")
        assert bench(server, *words) == 0
        sent = next(asked for asked in server.asked if asked.head.startswith("POST"))
    assert head.splitlines() == sent.head.splitlines()
    assert body == f"{sent.body.decode()}\n"
    assert "x-request-id: mine-0" in head.splitlines()


ERRED = whole(b'{"error":{"message":"no such thing"}}', "404 Not Found")
IN_BAND = Answer([HEAD, chunk(b'data: {"error":{"message":"boom","code":500}}\n\n'), chunk(DONE), LAST])


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        pytest.param(Answer([ERRED]), "4 × http-status, the first: 404: no such thing", id="404"),
        pytest.param(IN_BAND, "4 × in-band-error, the first: 500: boom", id="in-band"),
        pytest.param(Answer([whole(b'{"choices":[{"text":"x"}]}')]), "4 × not-streamed", id="no streaming"),
        pytest.param(Answer([HEAD, chunk(DONE), LAST]), "4 × empty", id="empty"),
        pytest.param(Answer([HEAD, chunk(token())], End.CLOSE), "4 × truncated", id="cut"),
    ],
)
@pytest.mark.parametrize("transport", ["wire", "httpx"])
def test_when_every_request_fails_nothing_was_measured_and_it_says_why(
    answer: Answer, told: str, transport: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with VirtualServing(api(lambda _: answer)) as server:
        assert bench(server, "--transport", transport) == 1
    said = capsys.readouterr()
    assert f"failed: {told}" in " ".join(said.out.split())
    assert "Failed requests:                         4" in said.out
    assert said.err.count("\n") == 1
    assert "every request failed" in said.err


def test_some_failures_are_shown_and_the_figures_stand(capsys: pytest.CaptureFixture[str]) -> None:
    failing = iter([True, False, False, False])
    with VirtualServing(api(lambda _: IN_BAND if next(failing) else stream())) as server:
        assert bench(server, "--max-concurrency", "1") == 0
    out = capsys.readouterr().out
    assert "Successful requests:                     3" in out
    assert "failed: 1 × in-band-error" in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--random-input-len", "5000"], "m accepts 4096"),
        (["--model", "other"], "does not serve 'other'; it serves m"),
        (["--num-warmups", "2", "--endpoint", "/wrong/completions"], "every warm-up request failed"),
    ],
)
def test_what_the_server_cannot_do_is_told_in_one_line(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def script(asked: Asked) -> Answer:
        return Answer([ERRED]) if "/wrong" in asked.head else stream()

    with VirtualServing(api(script, owner="vllm")) as server:
        assert bench(server, *words) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert told in said.err
    assert said.err.count("\n") == 1
    assert not Path("runs").exists() or not list(Path("runs").iterdir())


def test_nobody_there_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--port", str(closed_port()), *LOAD]) == 1
    said = capsys.readouterr()
    assert "is not ready" in said.err
    assert (said.out, said.err.count("\n")) == ("", 1)


def test_result_files_are_written_where_and_as_asked(capsys: pytest.CaptureFixture[str]) -> None:
    with VirtualServing(api(lambda _: stream())) as server:
        words = ["--save-result", "--append-result", "--result-dir", "out/x", "--result-filename", "r.json"]
        for _ in range(2):
            assert bench(server, *words, "--metadata", "gpu=H20", "--label", "mine") == 0
    rows = [json.loads(line) for line in Path("out/x/r.json").read_text().splitlines()]
    assert [(row["gpu"], row["label"], row["completed"]) for row in rows] == [("H20", "mine", 4)] * 2
    assert "result file: out/x/r.json" in capsys.readouterr().out


def interrupting(times: int) -> tuple[Callable[[Asked], Answer], threading.Event]:
    """Two requests are answered, the others hang; Ctrl-C comes once the hanging ones are under way."""
    lock, release = threading.Lock(), threading.Event()
    posts: list[int] = []

    def script(asked: Asked) -> Answer:
        with lock:
            posts.append(asked.number)
            count = len(posts)
        if count <= 2:
            return stream()
        if count == 4:
            threading.Thread(target=_press, args=(times, release), daemon=True).start()
        return Answer([HEAD, chunk(token())], End.HANG)

    return script, release


def _press(times: int, release: threading.Event) -> None:
    for _ in range(times):
        release.wait(0.3)
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.whole
@pytest.mark.parametrize("transport", ["wire", "httpx"])
def test_ctrl_c_once_reports_what_finished(transport: str, capsys: pytest.CaptureFixture[str]) -> None:
    script, _ = interrupting(1)
    with ScriptedServer(api(script)) as server:
        assert bench(server, "--num-prompts", "40", "--transport", transport) == 130
    out = capsys.readouterr().out
    assert out.startswith("PARTIAL")
    assert "Successful requests:                     2" in out
    assert "not finished: 2 × cancelled" in out
    assert json.loads((run_directory() / RESULT).read_text())["loadgen"]["interrupted"] is True


@pytest.mark.whole
def test_ctrl_c_twice_is_out_at_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from loadgen.transport.capture_process import CaptureRun

    monkeypatch.setattr(CaptureRun, "stop", lambda self: None)  # a run that does not heed the first
    script, _ = interrupting(2)
    with ScriptedServer(api(script)) as server:
        assert bench(server, "--num-prompts", "40") == 130
    said, directory = capsys.readouterr(), run_directory()
    assert said.err == (
        f"loadgen: 2 requests were measured: loadgen report {directory} shows them\n"
        "loadgen: interrupted by Ctrl-C\n"
    )
    assert said.out == ""
    assert [path.name for path in directory.iterdir()] == [JOURNAL]
    assert cli.main(["report", str(directory)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("PARTIAL")
    assert "Successful requests:                     2" in out


@pytest.mark.whole
def test_a_capturing_process_that_dies_leaves_a_partial_report(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from loadgen.transport.capture_process import CaptureRun

    monkeypatch.setattr(CaptureRun, "stop", lambda self: os.kill(self.pid, signal.SIGKILL))
    script, _ = interrupting(1)
    with ScriptedServer(api(script)) as server:
        assert bench(server, "--num-prompts", "40") in (1, 130)
    out = capsys.readouterr().out
    assert "Successful requests:                     2" in out
    assert "PARTIAL: the capturing process died (status -9)" in " ".join(out.split())


@pytest.mark.usefixtures("engines")
def test_a_simulation_is_marked_from_its_display_to_its_files(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    titles: list[str] = []

    def noted(plan: Plan, options: TransportOptions, watch: Watch) -> Outcome:
        titles.append(watch.title)
        return measure(plan, options, watch)

    for place in (acceptance, session):
        monkeypatch.setattr(place, "measure", noted)
    assert cli.main(["bench", "--quiet", *LOAD, "--num-warmups", "1"]) == 0
    assert titles == ["SIMULATED warming up", "SIMULATED bench"]
    out = capsys.readouterr().out
    assert out.startswith("SIMULATED")
    assert "Successful requests:                     4" in out
    stored = json.loads((run_directory() / RESULT).read_text("utf-8"))
    assert (stored["simulated"], stored["model_id"]) == (True, "Qwen/Qwen3-8B (simulated)")


@pytest.mark.whole
def test_the_client_measures_itself_at_the_pace_of_the_warm_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    paces: list[float] = []

    def seen(workload: Profile, transport: str, warmed: Records, workers: int) -> None:
        paces.append(compute_metrics(warmed, make_metric_options(workload)).itl.mean_ms)
        measure_client(workload, transport, warmed, workers)

    measure_client = capacity.measure_at_pace
    monkeypatch.setattr(capacity, "measure_at_pace", seen)
    words = ["--profile", "smoke", "--preset", "bench/1024x50", "--selftest", "--quiet"]
    assert cli.main(["bench", *words, "--run-dir", str(tmp_path / "runs")]) == 0
    (pace_ms,) = paces
    assert pace_ms > 15  # the preset's step takes 20 ms, a machine that stands still longer
    told = capsys.readouterr().out
    (directory,) = (tmp_path / "runs").iterdir()
    (summary,) = summarize_client(load(directory), ReportOptions(False, find_layout(None)))
    assert "; P99 error " in summary
    own = json.loads((directory / RESULT).read_text("utf-8"))["loadgen"]
    stored, used = own["calibration"], own["client"]["transport"]
    assert f"self-test of {used} at 4 streams × {1000 / pace_ms:g} tok/s\n" in told
    assert (stored["streams"], stored["transport"], stored["interval_ms"]) == (4, used, pace_ms)


@pytest.mark.whole
def test_a_run_prints_its_report_and_writes_its_directory(capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedServer(api(lambda _: stream(3, 0.002))) as server:
        assert bench(server, "--seed", "7", "--num-warmups", "2") == 0
        assert len([asked for asked in server.asked if asked.head.startswith("POST")]) == 6
    out = capsys.readouterr().out
    directory = run_directory()
    assert sorted(path.name for path in directory.iterdir()) == sorted([RESULT, ARRIVALS, REPORT, SAMPLES])
    assert "============ Serving Benchmark Result ============" in out
    assert "Successful requests:                     4" in out
    assert out.endswith(f"run directory: {directory}\n")
    assert f"\nmore: loadgen report {directory} (" in out
    assert cli.main(["report", str(directory)]) == 0
    whole_report = capsys.readouterr().out
    assert whole_report == (directory / REPORT).read_text()
    assert "seed 7 (given)" in whole_report
    block = whole_report[whole_report.index("=") : whole_report.index("verdict:")]
    assert block in out


def test_a_seed_that_was_not_given_is_drawn_said_and_kept(capsys: pytest.CaptureFixture[str]) -> None:
    bodies = []
    for _ in range(2):
        with VirtualServing(api(lambda _: stream())) as server:
            assert bench(server) == 0
            bodies.append({asked.body for asked in server.asked if asked.body})
    assert bodies[0].isdisjoint(bodies[1])
    seeds = [json.loads((path / RESULT).read_text())["loadgen"]["seed"] for path in Path("runs").iterdir()]
    assert len(set(seeds)) == 2
    whole_reports = "".join((path / REPORT).read_text() for path in Path("runs").iterdir())
    assert all(f"seed {seed} (drawn)" in whole_reports for seed in seeds)


WORKLOAD = "input_len = 8\noutput_len = 2\nnum_prompts = 2\nmax_concurrency = {}\nnum_warmups = 1\n"


@pytest.mark.parametrize(
    ("profiles", "rows"),
    [
        pytest.param("./light.toml", 0, id="one load"),
        pytest.param("./light.toml,./light.toml", 0, id="one load twice"),
        pytest.param("./light.toml,./heavy.toml", 2, id="two loads"),
    ],
)
@pytest.mark.usefixtures("engines")
def test_a_table_of_loads_is_printed_last(
    profiles: str,
    rows: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, limit in (("light", 1), ("heavy", 2)):
        (tmp_path / f"{name}.toml").write_text(WORKLOAD.format(limit), "utf-8")
    assert cli.main(["bench", "--quiet", "--preset", "instant", "--profile", profiles]) == 0
    out = capsys.readouterr().out
    table = out.partition("\n8 in / 2 out, 2 requests\n")[2].splitlines()
    assert [line.split()[:2] for line in table if line.lstrip().startswith(("light ", "heavy "))] == [
        ["light", "1"],
        ["heavy", "2"],
    ][:rows]
    assert ("instant (SIMULATED)" in table) is bool(rows)
