"""Capture process: forked to send and capture while its parent decodes, so that neither delays the other."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import signal
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from loadgen.base import clock
from loadgen.base.errors import NO_MEMORY, describe_exception
from loadgen.base.printing import flush_standard_streams
from loadgen.features.ring.ring_choice import RING
from loadgen.transport.capture import Capture, CaptureFault, Counters, Health, Inbox, Outbox, open_pair
from loadgen.transport.failure import Failure, FailureKind
from loadgen.transport.sending.job import Job, Order, Transport, TransportKind

Build = Callable[[Job, Outbox, Counters], Transport]
_WIRE, _HTTPX = TransportKind("wire"), TransportKind("httpx", needs_epoll=False, uses_httpx=True)
TRANSPORTS = {kind.name: kind for kind in (_WIRE, RING, _HTTPX)}
# The first that runs on this platform.
DEFAULT_TRANSPORT = next(
    name for name, kind in TRANSPORTS.items() if hasattr(select, "epoll") or not kind.needs_epoll
)
_LOOK_S = 0.25
_CAPABILITY_VERSION = 0x20080522
_LOST = Failure(FailureKind.LOST, "the capturing process died while this request was under way")
# The parent decides what these mean and sends a stop; where it dies of one, the pipe's end shows it.
_PARENTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# If two runs are in one program, no child may get the other one's end of a pipe: its end would not be
# noticed. A process that was forked while it is held forks again: the thread is the same.
FORKING = threading.RLock()
_PDEATHSIG = 1  # of prctl
# Pids of those that have reported all: the kernel takes 20 ms and more to close the packet ring of one.
_ENDING: list[int] = []


@dataclass
class CaptureRun:
    """A capturing process that sends a job's requests, as the parent process sees it."""

    pid: int
    inbox: Inbox
    counters: Counters
    order: Order  # whose requests it sends
    delivered: bytearray = field(default_factory=bytearray)  # by plan index, whether each came back
    health: Health | None = None  # reported at its end
    died: str = ""  # how it ended where there was none
    lost: int = 0  # requests that were sent and never came back, because it died

    def captures(self, also: int = -1) -> Iterator[Capture | None]:
        """Yield captures as they finish, and None a few times a second; ends when the run has.

        What a process that died had sent and not delivered comes last, each as lost. At the end `health` is
        set, and the process left to `reap_ended`, or `died`. None comes at once where the file descriptor
        `also` (-1: none) can be read.
        """
        fault = ""
        poll = select.poll()
        poll.register(self.inbox.sock, select.POLLIN)
        if also >= 0:
            poll.register(also, select.POLLIN)
        while not self.inbox.closed:
            if self.inbox.sock.fileno() not in (fd for fd, _ in poll.poll(_LOOK_S * 1000)):
                yield None
                continue
            for message in self.inbox.messages():
                if isinstance(message, Health):
                    self.health = message
                elif isinstance(message, CaptureFault):
                    fault = f": {message.reason}"
                else:
                    if message.index >= len(self.delivered):
                        self.delivered.extend(bytes(message.index + 1))
                    self.delivered[message.index] = True
                    yield message
            yield None
        self.inbox.sock.close()
        pid, self.pid = self.pid, 0
        if self.health is None:
            _, status = os.waitpid(pid, 0)
            self.died = f"the capturing process died (status {os.waitstatus_to_exitcode(status)}){fault}"
            now_ns = clock.now_ns()
            have = {index for index, came in enumerate(self.delivered) if came}
            for index in self.order.list_unanswered(self.counters.sent, have):
                self.lost += 1
                yield Capture(
                    index=index, slot=0, intended_ns=now_ns, sent_ns=0, end_ns=now_ns, failure=_LOST
                )
        else:
            _ENDING.append(pid)

    def stop(self) -> None:
        """Ask the process to end what is in flight; finished captures still come."""
        self.inbox.stop()

    def kill(self) -> None:
        """Kill the capturing process, if it is not reaped, and close the pipe."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):  # reaped just now
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
            self.pid = 0
        self.inbox.sock.close()


def reap_ended() -> None:
    """Wait until the processes that have reported all have exited."""
    while _ENDING:
        with contextlib.suppress(ChildProcessError):  # of the process that forked this one
            os.waitpid(_ENDING.pop(), 0)


def _import_transport(name: str) -> Build:
    """Import what sends by a transport, epoll's for a name of no other; a run imports one."""
    if name == RING.name:
        from loadgen.features.ring.ring_transport import RingTransport

        return RingTransport
    if name == _HTTPX.name:
        from loadgen.transport.httpx_transport import HttpxTransport

        return HttpxTransport
    from loadgen.transport.epoll_transport import EpollTransport

    return EpollTransport


def start_capture(
    job: Job, transport: str, counters: Counters | None = None, with_parent: bool = False
) -> CaptureRun:
    """Fork a process that sends a job's requests and captures the responses; may be called in any thread.

    `with_parent`: the kernel ends that process with this one, even where it is stopped. This process gets
    SCHED_BATCH, so that a server and the child run first.
    """
    # The import happens here: a child that imports would wait for whatever other threads import.
    build = _import_transport(transport)
    counters = counters or Counters()
    reap_ended()  # what an earlier one holds open is not to overlap
    flush_standard_streams()  # else the child writes their buffers again
    parent = os.getpid()
    with FORKING:
        outbox, inbox = open_pair()
        pid = fork_process()
        if pid:
            outbox.sock.close()
    if pid:
        # A server on this machine and the child run first where cores are short.
        set_scheduling("SCHED_BATCH")
        return CaptureRun(pid, inbox, counters, job.order)
    code = 1
    try:
        if with_parent:
            end_with_parent(parent)
        inbox.sock.close()
        gc.freeze()
        gc.disable()
        set_scheduling("SCHED_OTHER")  # an earlier run left the parent another one
        ready = build(job, outbox, counters)
        if TRANSPORTS[transport].privileged:
            with contextlib.suppress(AttributeError, OSError):  # no Linux: there are none
                # Every capability of this thread, for good: what needed one is open.
                ctypes.CDLL(None).capset(struct.pack("Ii", _CAPABILITY_VERSION, 0), bytes(6 * 4))
        health = ready.run()
        outbox.finish(health)
        code = 0
    except (BrokenPipeError, ConnectionResetError):
        pass  # the parent is gone: no one reads this
    except BaseException as error:
        outbox.finish(CaptureFault(describe_fault(error)))  # after what has finished
    finally:
        os._exit(code)


def fork_process() -> int:
    """Fork; return the child's pid, 0 in the child, which ignores signals; the parent gets any afterwards.

    Python drops what a handler raises within the functions that it calls at a fork: the signal would be lost.
    """
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _PARENTS)
    try:
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)  # of the program's event loop
            for number in _PARENTS:
                signal.signal(number, signal.SIG_IGN)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return pid


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent `parent` ends (Linux); exit now if that has ended."""
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it has ended by now
        os._exit(1)


def describe_fault(error: BaseException) -> str:
    """Describe the exception that ends a forked process in one line; the traceback goes to standard error.

    A traceback shows no values: no request, no key. Where memory has run out none says more than that.
    """
    cause = error
    while isinstance(cause, BaseExceptionGroup):  # of asyncio's tasks
        cause = cause.exceptions[0]
    if isinstance(cause, MemoryError):
        return NO_MEMORY
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            traceback.print_exception(error)
            sys.stderr.flush()
    return describe_exception(cause)


def set_scheduling(policy: str) -> None:
    """Set this process's scheduling policy (`SCHED_BATCH`, …) if the kernel has and permits it."""
    if hasattr(os, policy):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, getattr(os, policy), os.sched_param(0))
