"""Worker process: sends and decodes one part of a plan, and journals it in a file of its own."""

from __future__ import annotations

import gc
import os
from contextlib import suppress

import msgspec

from loadgen.figures.decode import Decoder
from loadgen.figures.record import Record
from loadgen.report.journal import Journal
from loadgen.run.firing import DecodedTally, OneProcess
from loadgen.run.live_totals import LiveTotals
from loadgen.run.progress import Progress
from loadgen.run.saturation import BegunRequest, begun_of
from loadgen.run.stop_rules import StopRules
from loadgen.run.workers.worker_pipe import EndedRequests, WorkerEnd, WorkerResult
from loadgen.transport.capture_process import CaptureRun, describe_fault, end_with_parent, start_capture
from loadgen.transport.failure import Failure
from loadgen.transport.sending.job import Counters, Job


class WorkerTask(msgspec.Struct, frozen=True):
    """What a worker is to do, and where it leaves what comes of it: all of it is shared with its parent."""

    job: Job
    transport: str
    decoder: Decoder
    counters: Counters
    totals: LiveTotals
    journal: Journal
    cpus: tuple[int, ...] = ()  # that it may run on; (): any
    saturation: bool = False  # whether that is judged


class EndedRows:
    """How requests ended since this was last taken; `saturation`: with what that is judged by."""

    def __init__(self, saturation: bool) -> None:
        self.rows: list[tuple[int, Failure | None]] = []
        self.begun: list[BegunRequest] = []
        self.saturation = saturation

    def note(self, record: Record) -> None:
        failure = record.failure
        if self.rows and (self.rows[-1][1] is None) is (failure is None):
            self.rows[-1] = (self.rows[-1][0] + 1, failure)
        else:
            self.rows.append((1, failure))
        if self.saturation and (begun := begun_of(record)) is not None:
            self.begun.append(begun)

    def taken(self, journal_error: str) -> EndedRequests:
        ended = EndedRequests(self.rows, self.begun, journal_error)
        self.rows, self.begun = [], []
        return ended


def work(task: WorkerTask, pipe: WorkerEnd, parent: int) -> None:
    """Do a worker's task in a process that was just forked, and end it; this never returns."""
    code = 1
    try:
        end_with_parent(parent)
        gc.freeze()
        gc.disable()
        if task.cpus:
            with suppress(OSError):  # they were taken away meanwhile
                os.sched_setaffinity(0, task.cpus)
        pipe.send(_result(task, pipe))
        code = 0
    except (BrokenPipeError, ConnectionError):
        pass  # the parent is gone, and no one reads this; what was forked here ends with this process
    except BaseException as error:
        with suppress(OSError):
            pipe.send(WorkerResult(None, describe_fault(error)))
    finally:
        os._exit(code)


def _result(task: WorkerTask, pipe: WorkerEnd) -> WorkerResult:
    """Send, decode and journal; what is left to say at the end."""
    run = start_capture(task.job, task.transport, task.counters, with_parent=True)
    process = OneProcess(task.decoder, run, task.journal, StopRules())
    progress, rows = Progress("", None, task.counters), EndedRows(task.saturation)

    def note(record: Record) -> None:
        progress.note(record)
        rows.note(record)

    def publish() -> None:
        task.totals.publish(progress.totals)
        if rows.rows:
            pipe.send(rows.taken(task.journal.error))

    for _ in process.decoded(note, pipe.sock.fileno()):
        publish()
        _obey(pipe, run)
    publish()
    tally: DecodedTally = process.tally
    return WorkerResult(run.health, run.died, tally, task.journal.unwritten, task.journal.error)


def _obey(pipe: WorkerEnd, run: CaptureRun) -> None:
    if pipe.stop_asked():
        run.stop()
