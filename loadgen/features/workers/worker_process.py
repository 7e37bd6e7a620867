"""Worker process: sends, decodes and journals one part of a plan; its pipe to the process that forked it."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from loadgen.records.decode import Decoder
from loadgen.records.journal import Journal
from loadgen.records.record import Record
from loadgen.run.command.progress import LiveTotals, Progress
from loadgen.run.firing import DecodedTally, OneProcess
from loadgen.run.stop_rules import BegunRequest, StopRules, read_begin
from loadgen.transport.capture_process import CaptureRun, describe_fault, end_with_parent, start_capture
from loadgen.transport.failure import Failure
from loadgen.transport.sending.job import Counters, Health, Job

_LENGTH = struct.Struct("=Q")
_PIECE_BYTES = 1 << 18
_STOP = b"s"


class WorkerTask(msgspec.Struct, frozen=True):
    """The task of a worker, and where it leaves what comes of it: all of it is shared with its parent."""

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
        if self.saturation and (begun := read_begin(record)) is not None:
            self.begun.append(begun)

    def take(self, journal_error: str) -> EndedRequests:
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
            pipe.send(rows.take(task.journal.error))

    for _ in process.decode_all(note, pipe.sock.fileno()):
        publish()
        _obey(pipe, run)
    publish()
    tally: DecodedTally = process.tally
    return WorkerResult(run.health, run.died, tally, task.journal.unwritten, task.journal.error)


def _obey(pipe: WorkerEnd, run: CaptureRun) -> None:
    if pipe.stop_asked():
        run.stop()


class EndedRequests(msgspec.Struct, tag="ended", array_like=True):
    """How requests ended since the last message, in their order: how many in a row, and their failure."""

    rows: list[tuple[int, Failure | None]]
    begun: list[BegunRequest] = []  # of those that saturation is judged by
    journal_error: str = ""  # why the worker's journal cannot be written


class WorkerResult(msgspec.Struct, tag="result", array_like=True):
    """The result of a worker at its end, next to what is in its journal."""

    health: Health | None  # None: its capturing process died
    died: str = ""  # how
    tally: DecodedTally = DecodedTally()
    unwritten: list[tuple[bytes, bytes]] = []  # frames of its journal that are in no file
    journal_error: str = ""  # why


WorkerMessage = EndedRequests | WorkerResult


class WorkerEnd:
    """The worker's end; raises OSError where the other one is gone."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._encoder = msgspec.msgpack.Encoder()

    def send(self, message: WorkerMessage) -> None:
        """Deliver a message, however long that takes."""
        data = self._encoder.encode(message)
        self.sock.sendall(_LENGTH.pack(len(data)) + data)

    def stop_asked(self) -> bool:
        """Whether the worker is to stop; raises ConnectionError where no one is there to ask."""
        try:
            data = self.sock.recv(1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        if not data:
            raise ConnectionError("the process that forked this worker is gone")
        return True


class ParentEnd:
    """The end of the process that forked a worker: it never blocks."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.closed = False  # the worker and its capturing process have ended
        self._buffer = bytearray()
        self._decoder = msgspec.msgpack.Decoder(WorkerMessage)

    def stop(self) -> None:
        """Ask the worker to end what is under way."""
        with contextlib.suppress(OSError):  # it has ended by itself
            self.sock.send(_STOP)

    def skip(self) -> None:
        """Read once, and forget it; also in the midst of `messages`, where a signal came."""
        try:
            self.closed = not self.sock.recv(_PIECE_BYTES)
        except BlockingIOError:
            pass
        except OSError:
            self.closed = True

    def messages(self) -> Iterator[WorkerMessage]:
        """Read once and yield the messages that are complete."""
        try:
            data = self.sock.recv(_PIECE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.closed = not data
        self._buffer += data
        begin = 0
        while len(self._buffer) - begin >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, begin)
            end = begin + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            with memoryview(self._buffer) as view:
                message = self._decoder.decode(view[begin + _LENGTH.size : end])
            yield message
            begin = end
        del self._buffer[:begin]


def worker_pipe() -> tuple[WorkerEnd, ParentEnd]:
    """The two ends, to be divided between the processes after the fork."""
    ours, theirs = socket.socketpair()
    return WorkerEnd(ours), ParentEnd(theirs)
