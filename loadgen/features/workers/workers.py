"""Workers: a plan sent and decoded by several processes of this machine, which this process leads.

The leader decodes nothing: it starts the workers together, adds up their totals, judges the rules over all,
and reads their journals at the end. The kernel ends a worker with the leader, and a worker's capturing
process with the worker. Each shares a pipe with the leader, and with the others the queue of a closed loop
and the common start.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import mmap
import os
import select
import signal
import socket
import struct
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from itertools import chain

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.base import clock
from loadgen.base.arrays import Int64
from loadgen.base.errors import MeasureError
from loadgen.base.printing import flush_standard_streams
from loadgen.plan.plan import Plan
from loadgen.records.decode import Decoder
from loadgen.records.journal import Journal
from loadgen.records.record import Record
from loadgen.run.command.progress import LiveTotals, Progress, Totals
from loadgen.run.firing import (
    NO_HEALTH,
    DecodedTally,
    OneProcess,
    PlanPart,
    TransportOptions,
    Watch,
    allow_files,
    make_decoder,
    make_job,
)
from loadgen.run.stop_rules import BegunRequest, StopRules, read_begin
from loadgen.transport.capture import Capture, Counters, Health
from loadgen.transport.capture_process import (
    FORKING,
    describe_fault,
    end_with_parent,
    fork_process,
    reap_ended,
    set_scheduling,
    start_capture,
)
from loadgen.transport.failure import Failure, FailureKind
from loadgen.transport.sending.job import AtOnce, Job, RunStart, join_digests

LENGTH = struct.Struct("=Q")  # before each message
_READY_NS = 20_000_000  # from the moment that all are ready to the start: each learns of it in time
_INDEX_BYTES = 8


class WorkerTask(msgspec.Struct, frozen=True):
    """A worker's job, and the journal, totals and counters it shares with its parent."""

    job: Job
    transport: str
    decoder: Decoder
    counters: Counters
    totals: LiveTotals
    journal: Journal
    cpus: tuple[int, ...] = ()  # that it may run on; (): any
    saturation: bool = False  # whether that is judged


def work(task: WorkerTask, pipe: WorkerEnd, parent: int) -> None:
    """Do a worker's task in a process that was just forked, send its result, and exit; never returns.

    Any exception is sent as the reason why the worker died, and the exit code is then 1.
    """
    code = 1
    try:
        end_with_parent(parent)
        gc.freeze()
        gc.disable()
        if task.cpus:
            with suppress(OSError):  # they were taken away meanwhile
                os.sched_setaffinity(0, task.cpus)
        pipe.send(_run_task(task, pipe))
        reap_ended()
        code = 0
    except (BrokenPipeError, ConnectionError):
        pass  # the parent is gone, and no one reads this; what was forked here ends with this process
    except BaseException as error:
        with suppress(OSError):
            pipe.send(WorkerResult(None, describe_fault(error)))
    finally:
        os._exit(code)


def _run_task(task: WorkerTask, pipe: WorkerEnd) -> WorkerResult:
    """Send, decode and journal a share of the plan; return the worker's result.

    A few times a second it publishes totals, sends the parent the requests that ended, and reads whether to
    stop.
    """
    run = start_capture(task.job, task.transport, task.counters, with_parent=True)
    process = OneProcess(task.decoder, run, task.journal, StopRules())
    progress, ended = Progress("", None, task.counters), EndedRequests()

    def note(record: Record) -> None:
        progress.note(record)
        ended.note(record, task.saturation)

    def publish() -> None:
        nonlocal ended
        task.totals.publish(progress.totals)
        if ended.rows:
            ended.journal_error = task.journal.error
            pipe.send(ended)
            ended = EndedRequests()

    for _ in process.decode_all(note, pipe.sock.fileno()):
        publish()
        if pipe.stop_asked():
            run.stop()
    publish()
    tally: DecodedTally = process.tally
    return WorkerResult(run.health, run.died, tally, task.journal.unwritten, task.journal.error)


class EndedRequests(msgspec.Struct, tag="ended", array_like=True):
    """How requests ended since the last message: successive ones that ended alike are counted together."""

    rows: list[tuple[int, Failure | None]] = []  # how many, and the failure of the last
    begun: list[BegunRequest] = []  # of those that saturation is judged by
    journal_error: str = ""  # why the worker's journal cannot be written

    def note(self, record: Record, saturation: bool) -> None:
        """Count a request; if saturation is judged and a first token came, note when it began."""
        failure = record.failure
        if self.rows and (self.rows[-1][1] is None) is (failure is None):
            self.rows[-1] = (self.rows[-1][0] + 1, failure)
        else:
            self.rows.append((1, failure))
        if saturation and (begun := read_begin(record)) is not None:
            self.begun.append(begun)


class WorkerResult(msgspec.Struct, tag="result", array_like=True):
    """A worker's report at its end, besides its journal."""

    health: Health | None  # None: its capturing process died
    died: str = ""  # how
    tally: DecodedTally = DecodedTally()
    unwritten: list[tuple[bytes, bytes]] = []  # frames of its journal that are in no file
    journal_error: str = ""  # why


WorkerMessage = EndedRequests | WorkerResult


class WorkerEnd:
    """The worker's end of the pipe; raises OSError if the parent is gone."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._encoder = msgspec.msgpack.Encoder()

    def send(self, message: WorkerMessage) -> None:
        """Send a message, blocking until it is delivered."""
        data = self._encoder.encode(message)
        self.sock.sendall(LENGTH.pack(len(data)) + data)

    def stop_asked(self) -> bool:
        """Read, without blocking, whether the parent asks to stop; raises ConnectionError if it is gone."""
        try:
            data = self.sock.recv(1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        if not data:
            raise ConnectionError("the process that forked this worker is gone")
        return True


class Queue:
    """An order that several processes of a closed loop take from, each when a slot is free.

    All read one file without a name at one shared position, which the kernel moves at each read: no request
    is given out twice, and there is no lock to be left locked by a process that dies. Make it before the
    fork. Raises OSError where such a file cannot be made.
    """

    def __init__(self, indices: Int64) -> None:
        self._length, self._file = len(indices), -1
        if not self._length:
            return
        made = os.memfd_create("loadgen-requests", os.MFD_CLOEXEC)
        left = memoryview(indices.astype(np.int64).tobytes())
        try:
            while left:
                left = left[os.write(made, left) :]
            # The kernel locks the position of a file that was opened, and not of one that was made like this.
            self._file = os.open(f"/proc/self/fd/{made}", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(made)

    def __len__(self) -> int:
        return self._length

    def take_next(self) -> int:
        """Take the plan index of the next request from all processes; -1 if none is left."""
        data = os.read(self._file, _INDEX_BYTES) if self._file >= 0 else b""
        return int.from_bytes(data, "little", signed=True) if data else -1

    def close(self) -> None:
        """Close this process's file descriptor; a second call does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Shared:
    """One process's order over a Queue; the parent can read what it took."""

    shared = True

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self._log = memoryview(mmap.mmap(-1, _INDEX_BYTES * max(len(queue), 1))).cast("q")

    def __len__(self) -> int:
        return len(self.queue)

    def __iter__(self) -> Iterator[int]:
        at, log = 0, self._log
        while (index := self.queue.take_next()) >= 0:
            log[at] = index + 1  # 0: nothing was taken
            at += 1
            yield index

    def list_taken(self, count: int) -> list[int]:
        """List the first `count` plan indices that this process took."""
        return [index - 1 for index in self._log[:count].tolist()]

    def list_claimed(self) -> list[int]:
        """List all requests that this process took."""
        return self.list_taken(int(np.count_nonzero(np.frombuffer(self._log, np.int64))))

    def list_unanswered(self, sent: int, have: Collection[int]) -> list[int]:
        """List those of the first `sent` requests taken that are not in `have`."""
        return [index for index in self.list_taken(sent) if index not in have]


class Together:
    """A start at one instant for several processes, once all are ready; make it before the fork.

    The process that forked them calls `release`, a few hundred times a second, and counts as ready what has
    ended.
    """

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self._view = memoryview(mmap.mmap(-1, 8 * (1 + processes))).cast("q")

    def make_start(self, process: int) -> TogetherStart:
        """Make the start that process number `process`, from 0, waits for."""
        return TogetherStart(self._view, process)

    def is_ready(self, process: int) -> bool:
        """Whether process number `process` is ready."""
        return bool(self._view[1 + process])

    def release(self, now_ns: int, ended: set[int]) -> bool:
        """Set the instant, in 20 ms, once every process is ready or has `ended`; return whether it is set."""
        if not self._view[0] and all(
            self._view[1 + process] or process in ended for process in range(self.processes)
        ):
            self._view[0] = now_ns + _READY_NS
        return self._view[0] > 0


class TogetherStart:
    """The start of one of the processes of `Together`."""

    def __init__(self, view: memoryview, process: int) -> None:
        self._view, self._process = view, process

    def begin_ns(self, now_ns: int) -> int:
        """Mark the process as ready; return the instant, 0 until it is set."""
        self._view[1 + self._process] = 1
        return int(self._view[0])


_LOG = logging.getLogger("loadgen")
_TURN_S, _START_TURN_S = 0.25, 0.002
_LONGEST_TURN_S = 1.0  # that counts: longer, this process itself did not run
# A process that is not stopped shows life ten times a second, a decoding one four times; what takes longer is
# the disk, or a machine without a core to spare.
_WARNED_S, _SILENT_S, _SILENT_STOPPING_S, _SILENT_STARTING_S = 10.0, 30.0, 5.0, 120.0
_LIVELY_S = 2.0
_PIECE_BYTES = 1 << 18
_LOST = Failure(FailureKind.LOST, "the worker that this request belonged to was lost")


class Workers:
    """A plan while several workers send it; raises UsageError and MeasureError if they cannot begin."""

    def __init__(self, plan: Plan, options: TransportOptions, watch: Watch) -> None:
        self.plan, self.options, self.watch = plan, options, watch
        self.journal, self.workers = watch.journal, options.workers
        self.decoder = make_decoder(plan, options, watch.tokenizer is not None)
        self.together: Together | None = None
        self.stopped = False
        self.lost: tuple[str, ...] = ()
        self._queue: Queue | None = None
        self._journal_error = ""
        tasks = self._prepare_tasks()
        self.runs: list[WorkerRun] = []
        flush_standard_streams()
        try:
            self._fork(tasks)
        except OSError as error:
            self.kill()
            raise MeasureError(
                f"worker {len(self.runs)} of {self.workers} cannot be started ({error.strerror or error}): "
                "lower --workers, or raise the limit on processes and open files (ulimit -u, ulimit -n)"
            ) from None

    def _prepare_tasks(self) -> list[WorkerTask]:
        """Make each worker's task, and open what workers share, before the fork; raises UsageError."""
        plan, options, part = self.plan, self.options, self.options.part
        indices = part.share.list_indices(len(plan), plan.sessions)
        # The requests of a session stay in one worker.
        closed = plan.offsets_ns is None and plan.sessions is None
        self._queue = Queue(indices) if closed else None
        if isinstance(part.start, AtOnce):
            self.together = Together(self.workers)
        tasks: list[WorkerTask] = []
        for number, share in enumerate(part.share.split(self.workers)):
            order = None if self._queue is None else Shared(self._queue)
            start: RunStart = part.start if self.together is None else self.together.make_start(number)
            own = replace(options, part=PlanPart(share, order, start))
            job = make_job(plan, own, self.watch.rules)
            if not tasks:
                allow_files(job, options.transport)  # the first has the most slots; the limit is inherited
            decoder = make_decoder(plan, options, self.watch.tokenizer is not None)
            tasks.append(
                WorkerTask(
                    job,
                    options.transport,
                    decoder,
                    Counters(),
                    LiveTotals(),
                    self.journal.open_part(number),
                    options.cpus,
                    self.watch.rules.saturation is not None,
                )
            )
        return tasks

    def _fork(self, tasks: list[WorkerTask]) -> None:
        """Fork a worker for each task, each with a pipe, and add it to `runs`; raises OSError."""
        parent, pipes = os.getpid(), list[tuple[socket.socket, socket.socket]]()
        with FORKING:
            try:
                for _ in tasks:
                    pipes.append(socket.socketpair())
                for number, (task, (theirs, ours)) in enumerate(zip(tasks, pipes, strict=True)):
                    pid = fork_process()
                    if not pid:
                        for each in chain.from_iterable(pipes):
                            if each is not theirs:  # or others would not notice the end of this worker
                                each.close()
                        work(task, WorkerEnd(theirs), parent)
                    name = f"worker {number} of {self.workers}"
                    self.runs.append(WorkerRun(name, task, ours, pid))
            finally:
                for theirs, _ in pipes:
                    theirs.close()
                for _, ours in pipes[len(self.runs) :]:  # where one could not be forked
                    ours.close()
        set_scheduling("SCHED_BATCH")

    @property
    def counters(self) -> Totals:
        """Counts of requests sent and ended, and of reads, by all capturing processes."""
        several = [run.task.counters for run in self.runs]
        return Totals(
            sent=sum(each.sent for each in several),
            ended=sum(each.ended for each in several),
            reads=sum(each.reads for each in several),
        )

    @property
    def died(self) -> str:
        """Why all workers were lost; "" if not all were."""
        if not all(run.why_lost for run in self.runs):
            return ""
        return f"every worker was lost, the first: {self.runs[0].why_lost}"

    @property
    def health(self) -> Health:
        results = [run.result for run in self.runs]
        return join_health([result.health for result in results if result is not None and result.health])

    @property
    def tally(self) -> DecodedTally:
        """The sums of what the workers that have reported counted while decoding."""
        tallies = [run.result.tally for run in self.runs if run.result is not None]
        return DecodedTally(
            sum(tally.uncounted for tally in tallies),
            sum(tally.reasoned for tally in tallies),
            sum(tally.hidden for tally in tallies),
        )

    def turns(self, progress: Progress) -> Iterator[None]:
        """Lead the workers to their end, and yield four times a second, before the start more often.

        Meanwhile it reads messages, judges silence and sums totals; then it journals the requests of lost
        workers as failed, and finishes the journal.
        """
        self.journal.start_syncing()
        poll = select.poll()
        by_file = {run.sock.fileno(): run for run in self.runs}
        for file in by_file:
            poll.register(file, select.POLLIN)
        turn_ns = clock.now_ns()
        while by_file:
            now_ns = clock.now_ns()
            if self.together is None:
                started = self.options.part.start.begin_ns(now_ns) <= now_ns
            else:
                ended = {number for number, run in enumerate(self.runs) if not run.pid}
                started = self.together.release(now_ns, ended)
            ready = poll.poll((_TURN_S if started else _START_TURN_S) * 1000)
            for file, _ in ready:
                self._hear(by_file[file])
                if by_file[file].closed:
                    poll.unregister(file)
                    run = by_file.pop(file)
                    if (why := run.note_end()) and any(other.pid for other in self.runs):
                        _LOG.warning("%s was lost: %s; measuring continues with the others", run.name, why)
            now_ns = clock.now_ns()
            if not ready and now_ns - turn_ns < _TURN_S * 1e9:
                continue
            passed_s, turn_ns = min((now_ns - turn_ns) / 1e9, _LONGEST_TURN_S), now_ns
            self._judge_silence(list(by_file.values()), passed_s, started)
            self._note_totals(progress)
            yield
        self._note_totals(progress)
        self._journal_lost(progress)
        self.journal.finish()

    def _hear(self, run: WorkerRun) -> None:
        """Read a worker's messages; the first error of a journal is printed as a warning."""
        for message in run.messages():
            if isinstance(message, EndedRequests):
                for count, failure in message.rows:
                    self.watch.rules.note(failure, count)
                if self.watch.rules.saturation is not None:
                    self.watch.rules.saturation.note_several(message.begun)
            else:
                run.result = message
                run.task.journal.take(message.unwritten)
            if message.journal_error and not self._journal_error:
                self._journal_error = message.journal_error
                self.journal.warn(
                    f"cannot write the journal, measuring continues in memory: {message.journal_error}"
                )

    def _note_totals(self, progress: Progress) -> None:
        """Sum all workers' totals and counters, for the display and the journal."""
        totals = Totals.join(run.task.totals.read() for run in self.runs)
        progress.note_totals(totals)
        progress.counters = self.counters
        self.journal.requests = totals.decoded

    def _judge_silence(self, runs: list[WorkerRun], passed_s: float, started: bool) -> None:
        """Warn of a worker silent for 10 s; kill one silent for 30 s if no other shows life.

        The limit is 5 s once the run is to stop, and 120 s for a worker that is not ready to start.
        """
        silent_s = {run: run.measure_silent_s(passed_s) for run in runs}
        if not started:
            for number, run in enumerate(self.runs):
                ready = self.together is None or self.together.is_ready(number)
                if not ready and silent_s.get(run, 0.0) >= _SILENT_STARTING_S:
                    run.kill(f"silent for {_SILENT_STARTING_S:g} s before the first request")
            return
        limit_s = _SILENT_STOPPING_S if self.stopped else _SILENT_S
        waited_for = any(silent < _LIVELY_S for silent in silent_s.values())
        for run, silent in silent_s.items():
            if silent >= limit_s and not waited_for:
                run.kill(f"silent for {limit_s:g} s, and nothing else was waited for")
            elif silent >= _WARNED_S and not run.warned:
                run.warned = True
                _LOG.warning("%s shows no life (is it stopped?): measuring continues", run.name)

    def _journal_lost(self, progress: Progress) -> None:
        """Journal a failed record for each request lost with a worker; add a line to `lost` per worker."""
        duration_ns = self.watch.rules.duration_ns(self.plan.profile.duration_ns)
        for run in self.runs:
            if not run.why_lost:
                continue
            # The worker itself recorded these as lost with its capturing process.
            kept = () if run.result is None else run.task.journal.parts()
            failures = (failure for part in kept for failure in part.failures)
            sent = sum(failure is not None and failure.kind is FailureKind.LOST for failure in failures)
            now_ns, missing = clock.now_ns(), run.list_owed(self.stopped, duration_ns)
            for index in missing:
                slot = run.task.job.share.number_slot(0)
                record = self.decoder.decode(
                    Capture(index, slot, intended_ns=now_ns, sent_ns=0, end_ns=now_ns, failure=_LOST)
                )
                self.journal.add(record)
                progress.note(record)
            requests = f"{sent + len(missing)} requests are lost with it"
            self.lost += (f"{run.name} was lost: {run.why_lost}; {requests}",)

    def stop(self) -> None:
        """Ask all running workers to end what is in flight."""
        self.stopped = True
        for run in self.runs:
            if run.pid:
                run.stop()

    def kill(self) -> None:
        """Kill all running workers, wait for them 1 s at most, and close the shared queue."""
        under_way = [run for run in self.runs if run.pid]
        for run in under_way:
            run.kill()
        deadline_s = time.monotonic() + 1.0
        for run in under_way:
            run.wait_until_gone(deadline_s)
        if self._queue is not None:
            self._queue.close()


def join_health(several: Sequence[Health]) -> Health:
    """Join the reports of several capturing processes: sums, and the worst of what each did to itself.

    The worst (greatest) are the backlog, the time stopped, the clock's step and the busiest loop.
    """
    if not several:
        return NO_HEALTH
    return Health(
        started_ns=min(health.started_ns for health in several),
        ended_ns=max(health.ended_ns for health in several),
        cpu_ns=sum(health.cpu_ns for health in several),
        busiest_cpu_ns=max(health.cpu_ns for health in several),
        backlog_bytes=max(health.backlog_bytes for health in several),
        stopped_ns=max(health.stopped_ns for health in several),
        clock_step_ns=max(health.clock_step_ns for health in several),
        late_bodies=sum(health.late_bodies for health in several),
        segments=sum(health.segments for health in several),
        dropped_segments=sum(health.dropped_segments for health in several),
        fallen_back=sum(health.fallen_back for health in several),
        held_segments=sum(health.held_segments for health in several),
        reconnects=sum(health.reconnects for health in several),
        bodies_digest=join_digests(health.bodies_digest for health in several),
        instead=next((health.instead for health in several if health.instead), ""),
    )


class WorkerRun:
    """One running worker, as its parent sees it, whose end of the pipe never blocks."""

    def __init__(self, name: str, task: WorkerTask, sock: socket.socket, pid: int) -> None:
        sock.setblocking(False)
        self.name, self.task, self.sock, self.pid = name, task, sock, pid
        self.closed = False  # the worker and its capturing process have ended
        self.result: WorkerResult | None = None
        self.why_lost = ""
        self.warned = False  # that it is silent
        self._pulse = (0, 0)
        self._silent_s = [0.0, 0.0]
        self._buffer = bytearray()
        self._decoder = msgspec.msgpack.Decoder(WorkerMessage)

    def stop(self) -> None:
        """Ask the worker to end what is in flight; nothing happens if it has ended."""
        with contextlib.suppress(OSError):  # it has ended by itself
            self.sock.send(b"s")

    def messages(self) -> Iterator[WorkerMessage]:
        """Read once without blocking and yield the complete messages; a part of one is kept for later.

        `closed` is set once the worker's end is.
        """
        try:
            data = self.sock.recv(_PIECE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.closed = not data
        self._buffer += data
        begin = 0
        while len(self._buffer) - begin >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._buffer, begin)
            end = begin + LENGTH.size + length
            if len(self._buffer) < end:
                break
            with memoryview(self._buffer) as view:
                message = self._decoder.decode(view[begin + LENGTH.size : end])
            yield message
            begin = end
        del self._buffer[:begin]

    def measure_silent_s(self, passed_s: float) -> float:
        """Return for how many seconds the worker or its capturing process has shown no life, the longer time.

        `passed_s` is the time since the last call.
        """
        totals = self.task.totals
        # A capturing process that is done waits for its last responses to be decoded.
        pulse = (totals.beats, self.task.counters.beats + totals.read().decoded)
        for process, (before, now) in enumerate(zip(self._pulse, pulse, strict=True)):
            self._silent_s[process] = self._silent_s[process] + passed_s if before == now else 0.0
        self._pulse = pulse
        return max(self._silent_s)

    def note_end(self) -> str:
        """Wait for the worker's exit and close its pipe; return why it is lost, "" if it is not."""
        with contextlib.suppress(ChildProcessError):
            _, status = os.waitpid(self.pid, 0)
            code = os.waitstatus_to_exitcode(status)
            if self.result is None and not self.why_lost:
                self.why_lost = f"killed by signal {-code}" if code < 0 else f"ended with status {code}"
        self.pid = 0
        self.sock.close()
        if self.result is not None and self.result.died:
            self.why_lost = self.result.died
        return self.why_lost

    def kill(self, why: str = "") -> None:
        """Kill the worker, and by that its capturing process; `why` is its loss unless one is known."""
        self.why_lost = self.why_lost or why
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def wait_until_gone(self, deadline_s: float) -> None:
        """Wait until both processes have ended or `deadline_s` (monotonic) has passed, then note the end."""
        left_ms = max(0.0, deadline_s - time.monotonic()) * 1000
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        while not self.closed and poll.poll(left_ms):
            deque(self.messages(), maxlen=0)
            left_ms = max(0.0, deadline_s - time.monotonic()) * 1000
        self.note_end()

    def list_owed(self, only_sent: bool, duration_ns: int) -> list[int]:
        """List the plan indices of the requests that the worker has not delivered to the journal.

        Of those it sent (`only_sent`), else of all its own; `duration_ns` (0: none) limits their due times.
        """
        job, have = self.task.job, set[int]()
        for part in self.task.journal.parts():
            have.update(part.index.tolist())
        if only_sent:
            return list(job.order.list_unanswered(self.task.counters.sent, have))
        owed = job.order.list_claimed()
        if job.offsets_ns is not None and duration_ns:
            owed = job.order.list_taken(int(np.searchsorted(job.offsets_ns, duration_ns)))
        return [index for index in owed if index not in have]
