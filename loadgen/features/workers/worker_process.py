"""Worker process: sends, decodes and journals one part of a plan, and what it shares with other processes.

These are a pipe with its parent, and with other workers the queue of a closed loop and the common start.
"""

from __future__ import annotations

import gc
import mmap
import os
import socket
import struct
from collections.abc import Collection, Iterator
from contextlib import suppress

import msgspec
import numpy as np

from loadgen.base.arrays import Int64
from loadgen.records.decode import Decoder
from loadgen.records.journal import Journal
from loadgen.records.record import Record
from loadgen.run.command.progress import LiveTotals, Progress
from loadgen.run.firing import DecodedTally, OneProcess
from loadgen.run.saturation_rule import BegunRequest
from loadgen.run.stop_rules import StopRules, read_begin
from loadgen.transport.capture import Counters, Health
from loadgen.transport.capture_process import describe_fault, end_with_parent, reap_ended, start_capture
from loadgen.transport.failure import Failure
from loadgen.transport.sending.job import Job

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
