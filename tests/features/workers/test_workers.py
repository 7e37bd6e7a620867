"""Several workers send one plan as one process does; what is lost with one of them has records."""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from fakes.scripted_server import Answer, Asked, ScriptedServer, api, stream, target_of, whole
from fakes.tls import make_contexts
from loadgen import cli
from loadgen.base.errors import MeasureError
from loadgen.base.signals import CANCELLED, StopRequest
from loadgen.engines.engines import UNKNOWN
from loadgen.features.workers import workers as leading
from loadgen.plan import plan, profile
from loadgen.plan.plan import Plan
from loadgen.plan.request_sources import ModelTarget, Seed
from loadgen.records import journal as journals
from loadgen.records.journal import Journal
from loadgen.report import run_directory
from loadgen.report.run_directory import REPORT, RESULT
from loadgen.run.command.progress import Display, LiveTotals, Progress
from loadgen.run.firing import Outcome, TransportOptions, Watch
from loadgen.run.measurement import measure
from loadgen.run.stop_rules import StopRules
from loadgen.run.worker_count import spread_over_workers
from loadgen.settings.run_settings import Tolerance
from loadgen.transport.failure import FailureKind

Meddle = Callable[[list[psutil.Process]], object]
pytestmark = [
    pytest.mark.whole,
    # Python 3.12 warns of any thread at a fork; the child takes none of their locks.
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]
TOKENS = 3
FAST = api(lambda _: stream(TOKENS, 0.001))


def a_plan(requests: int = 40, **keys: float) -> Plan:
    load = {"name": "workers", "input_len": 8, "output_len": TOKENS, "num_prompts": requests, **keys}
    return plan.make(profile.build(load), ModelTarget(UNKNOWN, "m"), Seed(7, chosen=True))


def sent(
    made: Plan, server: ScriptedServer, workers: int, watch: Watch, transport: str = "wire", trust: Any = None
) -> Outcome:
    options = TransportOptions(server.target(trust), transport)
    return measure(made, spread_over_workers(options, made, workers), watch)


@pytest.mark.parametrize("transport", ["wire", "httpx"])
@pytest.mark.parametrize(
    ("keys", "workers", "tls"),
    [
        ({"max_concurrency": 5}, 2, False),
        ({"max_concurrency": 7}, 3, False),
        ({"request_rate": 400.0}, 2, False),
        ({"request_rate": 400.0, "max_concurrency": 6}, 3, False),
        ({"max_concurrency": 4}, 2, True),
    ],
)
def test_every_request_is_sent_once_and_slots_are_unique(
    keys: dict[str, float], workers: int, tls: bool, transport: str
) -> None:
    made = a_plan(40, **keys)
    serving, trust = make_contexts("127.0.0.1") if tls else (None, None)
    with ScriptedServer(FAST, tls=serving) as server:
        outcome = sent(made, server, workers, Watch(Display(), "t"), transport, trust)
    records = outcome.records
    assert records.index.tolist() == list(range(40))
    assert records.ok.all()
    assert records.output_tokens.tolist() == [TOKENS] * 40
    assert (outcome.workers, outcome.lost, outcome.cut_short, outcome.rule) == (workers, (), "", "")
    assert outcome.health.busiest_cpu_ns <= outcome.health.cpu_ns
    most = keys.get("max_concurrency")
    if isinstance(most, int):
        assert set(records.slot.tolist()) <= set(range(most))
    for slot in np.unique(records.slot):  # one request after the other on each
        rows = records.slot == slot
        order = np.argsort(records.sent_ns[rows])
        assert (records.sent_ns[rows][order][1:] >= records.end_ns[rows][order][:-1]).all()
    if made.offsets_ns is not None:
        assert (records.intended_ns - records.intended_ns[0] == made.offsets_ns - made.offsets_ns[0]).all()
        assert (records.slot % workers == records.index % workers).all()


def test_a_worker_with_a_free_slot_takes_the_next_request() -> None:
    slow = api(lambda asked: stream(TOKENS, 0.4 if asked.number == 2 else 0.001))  # one holds up one slot
    with ScriptedServer(slow) as server:
        outcome = sent(a_plan(max_concurrency=2), server, 2, Watch(Display(), "t"))
    by_slot = np.bincount(outcome.records.slot)
    assert by_slot.sum() == 40
    assert by_slot.min() < 5  # half of them, were they divided


def test_workers_have_journals_that_are_read_together_and_publish_totals(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.bin")
    journal.put_facts(b"{}")
    watch = Watch(Display(), "t", journal=journal, totals=LiveTotals(tmp_path / "totals"))
    with ScriptedServer(FAST) as server:
        outcome = sent(a_plan(max_concurrency=4), server, 2, watch)
    seen = LiveTotals(tmp_path / "totals").read()
    assert (seen.sent, seen.ended, seen.decoded, seen.failed, seen.tokens) == (40, 40, 40, 0, 40 * TOKENS)
    (tmp_path / "totals").unlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "journal-0.bin", "journal-1.bin", "journal.bin"
    ]  # fmt: skip
    assert journals.read_journal(tmp_path / "journal.bin").facts == b"{}"
    read = [index for part in journals.open_parts(tmp_path / "journal.bin") for index in part.index.tolist()]
    assert sorted(read) == outcome.records.index.tolist()
    journal.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("everywhere", [True, False], ids=["full for all", "full for the workers"])
def test_what_no_disk_takes_comes_over_the_pipe(
    everywhere: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(file: int, data: bytes, write: Callable[[int, bytes], int] = os.write) -> int:
        name = os.readlink(f"/proc/self/fd/{file}").rpartition("/")[2]
        if name.startswith("journal-" if not everywhere else "journal"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data)

    monkeypatch.setattr(os, "write", write)
    warned: list[str] = []
    journal = Journal(tmp_path / "journal.bin", warned.append)
    with ScriptedServer(FAST) as server:
        outcome = sent(a_plan(max_concurrency=4), server, 2, Watch(Display(), "t", journal=journal))
    assert outcome.records.index.tolist() == list(range(40))
    assert outcome.records.ok.all()
    assert outcome.lost == ()
    assert "No space left on device" in warned[0]
    assert bool(journal.error) is everywhere
    journal.close()
    if not everywhere:
        kept = sum(len(part) for part in journals.open_parts(tmp_path / "journal.bin"))
        assert kept == 40


OOPS = Answer([0.005, whole(b"{}", "500 Oops")])


def test_failures_of_all_workers_count_together() -> None:
    rules = StopRules(max_failures=Tolerance(count=30))
    failing = api(lambda asked: OOPS if asked.number % 2 else stream(TOKENS, 0.02))
    with ScriptedServer(failing) as server:
        outcome = sent(a_plan(400, max_concurrency=6), server, 3, Watch(Display(), "t", rules=rules))
    assert outcome.rule.startswith("--max-failures 30: ")
    assert len(outcome.records) < 400
    assert rules.failed > 30


def test_time_for_sending_is_over_for_all_workers() -> None:
    rules = StopRules(max_duration_s=0.3, drain_s=0.2)
    with ScriptedServer(api(lambda _: stream(TOKENS, 0.6))) as server:
        outcome = sent(a_plan(400, max_concurrency=4), server, 2, Watch(Display(), "t", rules=rules))
    assert outcome.rule.startswith("--max-duration 0.3 s: 4 requests still under way")
    assert [failure.kind for failure in outcome.records.failed] == [FailureKind.CANCELLED] * 4


def test_another_thread_may_stop_a_run() -> None:
    stop = StopRequest()
    requests = itertools.count(1)

    def answer(_: Asked) -> Answer:
        if next(requests) == 9:  # of four at once, at least five were answered
            stop.request_stop(CANCELLED)
        return stream(TOKENS, 0.05)

    with ScriptedServer(api(answer)) as server:
        outcome = sent(a_plan(4000, max_concurrency=4), server, 2, Watch(Display(), "t", interrupts=stop))
    assert (outcome.signal, outcome.cut_short) == (CANCELLED, "cancelled")
    kinds = {failure.kind for failure in outcome.records.failed}
    assert kinds <= {FailureKind.CANCELLED}
    assert outcome.records.ok.any()


@pytest.mark.parametrize(
    ("keys", "asked", "workers"),
    [({"max_concurrency": 2}, 8, 2), ({"requests": 3}, 8, 3), ({"max_concurrency": 1}, 2, 1), ({}, 4, 4)],
)
def test_there_are_no_more_workers_than_slots_and_requests(
    keys: dict[str, int], asked: int, workers: int
) -> None:
    made = a_plan(**{"requests": 40, **keys})
    options = spread_over_workers(TransportOptions(target_of("127.0.0.1", 9)), made, asked)
    assert options.workers == workers
    assert options.make_warm_up(4).workers == 1


def test_workers_that_cannot_be_forked_are_an_error_and_leave_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forked: list[int] = []

    def fork(fork: Callable[[], int] = os.fork) -> int:
        if len(forked) == 2:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        forked.append(fork())
        return forked[-1]

    monkeypatch.setattr(os, "fork", fork)
    with ScriptedServer(FAST) as server, pytest.raises(MeasureError, match="worker 2 of 3 cannot be started"):
        sent(a_plan(max_concurrency=4), server, 3, Watch(Display(), "t"))
    assert not any(psutil.pid_exists(pid) for pid in forked)


LOAD = ["--random-input-len", "8", "--random-output-len", "3", "--max-concurrency", "4", "--quiet"]


@pytest.mark.parametrize("flags", [[], ["--save-detailed"], ["--repeat", "2"], ["--num-warmups", "3"]])
def test_the_command_and_its_report_know_workers(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load = [*LOAD, "--num-prompts", "20", "--workers", "2"]
    line = ["bench", *load, "--result-dir", str(tmp_path / "r"), *flags]
    with ScriptedServer(FAST) as server:
        assert cli.main([*line, "--base-url", server.base_url, "--run-dir", str(tmp_path / "d")]) == 0
    capsys.readouterr()
    for directory in (path for path in (tmp_path / "d").iterdir() if path.is_dir()):
        assert not list(directory.glob("journal*"))
        assert ", 2 workers, " in (directory / REPORT).read_text("utf-8").replace("\n ", "")
        stored = json.loads((directory / RESULT).read_text("utf-8"))
        assert stored["completed"] == 20
        assert stored["loadgen"]["client"]["workers"] == 2
    if flags == ["--save-detailed"]:
        (file,) = (tmp_path / "r").iterdir()
        assert all(json.loads(file.read_text("utf-8"))["generated_texts"])


def test_a_run_whose_client_is_killed_is_read_from_all_its_journals(tmp_path: Path) -> None:
    line = ["bench", *LOAD, "--num-prompts", "4000", "--workers", "2", "--run-dir", str(tmp_path)]

    def killed(base_url: str) -> int:
        pid = os.fork()
        if not pid:
            os._exit(cli.main([*line, "--base-url", base_url]))
        return pid

    with ScriptedServer(api(lambda _: stream(TOKENS, 0.01))) as server:
        pid = killed(server.base_url)
        deadline = time.monotonic() + 20
        while (
            time.monotonic() < deadline
            and sum(path.stat().st_size > 1000 for path in tmp_path.glob("*/journal-*.bin")) < 2
        ):
            time.sleep(0.05)
        workers = psutil.Process(pid).children(recursive=True)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert len(workers) == 4
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []
    (directory,) = tmp_path.iterdir()
    run = run_directory.load(directory)
    assert run.facts.recovered
    assert set((run.records.slot % 2).tolist()) == {0, 1}


# Workers that are killed, stopped or out of resources: the rest is kept, each lost request has a record.


class Meddling(Display):
    """Does something to the workers once a run has got somewhere."""

    def __init__(self, meddle: Meddle, ended: int = 4) -> None:
        self.meddle, self.ended = meddle, ended
        self.seen: list[psutil.Process] = []

    def show(self, progress: Progress) -> None:
        if progress.ended >= self.ended and not self.seen:
            own = psutil.Process()
            # In the order in which they were started: pids begin again after the largest.
            self.seen = sorted(own.children(), key=lambda child: (child.create_time(), child.pid))
            self.meddle(self.seen)


def second(do: Callable[[psutil.Process], None]) -> Meddle:
    """Done to the second worker."""
    return lambda workers: do(workers[1])


def its_child(do: Callable[[psutil.Process], None]) -> Meddle:
    """Done to the capturing process of the second worker."""
    return lambda workers: do(workers[1].children()[0])


def run(meddling: Meddling, load: Mapping[str, Any], watch: Watch | None = None) -> Outcome:
    with ScriptedServer(api(lambda _: stream(TOKENS, 0.02))) as server:
        made = a_plan(**{"requests": 60, **load})
        outcome = sent(made, server, 3, watch or Watch(meddling, "t"))
    _, left = psutil.wait_procs(meddling.seen, timeout=5)
    assert left == []
    return outcome


CLOSED, OPEN = {"max_concurrency": 6}, {"request_rate": 40.0}


@pytest.mark.parametrize("load", [CLOSED, OPEN], ids=["closed", "open"])
@pytest.mark.parametrize(
    ("meddle", "why"),
    [
        pytest.param(second(psutil.Process.kill), "killed by signal 9", id="worker"),
        pytest.param(
            its_child(psutil.Process.kill), "the capturing process died (status -9)", id="capturing process"
        ),
    ],
)
def test_a_worker_that_is_killed_costs_its_own_requests(
    meddle: Meddle, why: str, load: Mapping[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    outcome = run(Meddling(meddle), load)
    records = outcome.records
    assert records.index.tolist() == list(range(60))
    assert {failure.kind for failure in records.failed} == {FailureKind.LOST}
    lost = len(records.failed)
    assert outcome.lost == (f"worker 1 of 3 was lost: {why}; {lost} requests are lost with it",)
    assert outcome.cut_short == ""
    assert 0 < lost <= (12 if load is CLOSED else 20)  # claimed by it, or a third of all
    assert f"worker 1 of 3 was lost: {why}; measuring continues with the others" in caplog.messages
    assert outcome.health.ended_ns > outcome.health.started_ns


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_WARNED_S", 0.3), ("_SILENT_S", 1.0), ("_SILENT_STOPPING_S", 0.6)):
        monkeypatch.setattr(leading, name, seconds)
    monkeypatch.setattr(leading, "_LIVELY_S", 0.8)


@pytest.mark.parametrize(
    "meddle",
    [second(psutil.Process.suspend), its_child(psutil.Process.suspend)],
    ids=["worker", "capturing process"],
)
def test_a_worker_stopped_for_good_is_ended_when_the_others_are_done(
    meddle: Meddle, impatient: None, caplog: pytest.LogCaptureFixture
) -> None:
    outcome = run(Meddling(meddle), CLOSED)
    assert outcome.records.index.tolist() == list(range(60))
    assert 0 < len(outcome.records.failed) < 30
    (words,) = outcome.lost
    assert words.startswith("worker 1 of 3 was lost: silent for 1 s, and nothing else was waited for; ")
    assert "worker 1 of 3 shows no life (is it stopped?): measuring continues" in caplog.messages


def test_a_worker_that_is_stopped_for_a_while_goes_on(impatient: None) -> None:
    timers: list[threading.Timer] = []

    def pause(workers: list[psutil.Process]) -> None:
        workers[1].suspend()
        timers.append(threading.Timer(0.5, workers[1].resume))
        timers[0].start()

    outcome = run(Meddling(pause), CLOSED)
    timers[0].join()
    assert outcome.lost == ()
    assert outcome.records.ok.all()


def test_a_stop_does_not_wait_long_for_a_worker_that_is_stopped(impatient: None) -> None:
    request = StopRequest()

    def meddle(workers: list[psutil.Process]) -> None:
        workers[1].suspend()
        request.request_stop(CANCELLED)

    meddling = Meddling(meddle)
    outcome = run(meddling, CLOSED, Watch(meddling, "t", interrupts=request))
    assert outcome.cut_short == "cancelled"
    assert outcome.lost[0].startswith("worker 1 of 3 was lost: silent for 0.6 s")
    assert {failure.kind for failure in outcome.records.failed} == {FailureKind.LOST, FailureKind.CANCELLED}


def test_where_every_worker_is_killed_the_run_ends_with_what_there_is() -> None:
    # Long after the first were journalled, which is a quarter of a second after they were decoded.
    def kill_all(workers: list[psutil.Process]) -> None:
        for worker in workers:
            worker.kill()

    outcome = run(Meddling(kill_all, ended=100), {"requests": 180, **CLOSED})
    assert outcome.cut_short == "every worker was lost, the first: killed by signal 9"
    assert len(outcome.lost) == 3
    assert outcome.records.ok.any()
    assert {failure.kind for failure in outcome.records.failed} == {FailureKind.LOST}


def test_the_terminals_signals_reach_the_first_process_alone() -> None:
    def interrupt(workers: list[psutil.Process]) -> None:
        for worker in workers:
            for process in (worker, *worker.children()):
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    process.send_signal(number)

    outcome = run(Meddling(interrupt), CLOSED)
    assert outcome.records.ok.all()
    assert (outcome.lost, outcome.signal) == ((), 0)
