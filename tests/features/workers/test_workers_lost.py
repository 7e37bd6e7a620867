"""Workers that are killed, stopped or out of resources: the rest is kept, each lost request has a record."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping

import psutil
import pytest

from fakes.scripted_server import ScriptedServer, api, stream, target_of
from loadgen.base.signals import CANCELLED, StopRequest
from loadgen.engines.engines import UNKNOWN
from loadgen.features.workers import workers as leading
from loadgen.plan import plan, profile
from loadgen.plan.request_sources import ModelTarget, Seed
from loadgen.run.command.progress import Display, Progress
from loadgen.run.firing import Outcome, TransportOptions, Watch
from loadgen.run.measurement import measure
from loadgen.run.worker_count import spread_over_workers
from loadgen.transport.failure import FailureKind

pytestmark = [
    pytest.mark.whole,
    # Python 3.12 warns of any thread at a fork; the child takes none of their locks.
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]
REQUESTS, TOKENS = 60, 4
Meddle = Callable[[list[psutil.Process]], None]


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


def kill(process: psutil.Process) -> None:
    process.kill()


def stop(process: psutil.Process) -> None:
    process.suspend()


def second(do: Callable[[psutil.Process], None]) -> Meddle:
    """Done to the second worker."""
    return lambda workers: do(workers[1])


def its_child(do: Callable[[psutil.Process], None]) -> Meddle:
    """Done to the capturing process of the second worker."""
    return lambda workers: do(workers[1].children()[0])


def all_of(do: Callable[[psutil.Process], None]) -> Meddle:
    """Done to each worker."""

    def each(workers: list[psutil.Process]) -> None:
        for worker in workers:
            do(worker)

    return each


def run(
    meddling: Meddling, load: Mapping[str, float], watch: Watch | None = None, workers: int = 3
) -> Outcome:
    keys = {"name": "lost", "input_len": 8, "output_len": TOKENS, "num_prompts": REQUESTS}
    made = plan.make(profile.build({**keys, **load}), ModelTarget(UNKNOWN, "m"), Seed(7, chosen=True))
    with ScriptedServer(api(lambda _: stream(TOKENS, 0.02))) as server:
        options = TransportOptions(target_of("127.0.0.1", server.port))
        outcome = measure(made, spread_over_workers(options, made, 3), watch or Watch(meddling, "t"))
    _, left = psutil.wait_procs(meddling.seen, timeout=5)
    assert left == []
    return outcome


CLOSED, OPEN = {"max_concurrency": 6}, {"request_rate": 40.0}


@pytest.mark.parametrize("load", [CLOSED, OPEN], ids=["closed", "open"])
@pytest.mark.parametrize(
    ("meddle", "why"),
    [
        pytest.param(second(kill), "killed by signal 9", id="worker"),
        pytest.param(its_child(kill), "the capturing process died (status -9)", id="capturing process"),
    ],
)
def test_a_worker_that_is_killed_costs_its_own_requests(
    meddle: Meddle, why: str, load: Mapping[str, float], caplog: pytest.LogCaptureFixture
) -> None:
    outcome = run(Meddling(meddle), load)
    records = outcome.records
    assert records.index.tolist() == list(range(REQUESTS))
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


@pytest.mark.parametrize("meddle", [second(stop), its_child(stop)], ids=["worker", "capturing process"])
def test_a_worker_stopped_for_good_is_ended_when_the_others_are_done(
    meddle: Meddle, impatient: None, caplog: pytest.LogCaptureFixture
) -> None:
    outcome = run(Meddling(meddle), CLOSED)
    assert outcome.records.index.tolist() == list(range(REQUESTS))
    assert 0 < len(outcome.records.failed) < REQUESTS // 2
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
    outcome = run(Meddling(all_of(kill), ended=100), {**CLOSED, "num_prompts": 180})
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
