"""The runner: captures in a process of their own, decoding in this one, so neither delays the other."""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from loadgen.capture import Capture
from loadgen.channel import Inbox, Outbox, pair
from loadgen.job import Counters, Health, Job, Transport

Build = Callable[[Job, Outbox, Counters], Transport]
DEFAULT_TRANSPORT = "wire" if hasattr(select, "epoll") else "httpx"
_LOOK_S = 0.25


@dataclass
class Run:
    """A job under way in its own process."""

    pid: int
    inbox: Inbox
    counters: Counters
    health: Health | None = None  # its last word
    died: str = ""  # how it ended where there was none

    def captures(self) -> Iterator[Capture | None]:
        """Captures as they finish, and None a few times a second; ends when the run has."""
        poll = select.poll()
        poll.register(self.inbox.sock, select.POLLIN)
        while not self.inbox.closed:
            if not poll.poll(_LOOK_S * 1000):
                yield None
                continue
            for message in self.inbox.messages():
                if isinstance(message, Health):
                    self.health = message
                else:
                    yield message
            yield None
        self.inbox.sock.close()
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        if self.health is None:
            self.died = f"the capturing process died (status {os.waitstatus_to_exitcode(status)})"

    def stop(self) -> None:
        """End what is under way; what has finished still comes."""
        self.inbox.stop()

    def kill(self) -> None:
        """End the capturing process at once."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):  # reaped just now
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
            self.pid = 0
        self.inbox.sock.close()


def start(job: Job, transport: str) -> Run:
    """Begin to send a job's requests from a process of their own."""
    outbox, inbox = pair()
    counters = Counters()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        outbox.sock.close()
        _yield_to_others()
        return Run(pid, inbox, counters)
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
        inbox.sock.close()
        gc.freeze()
        gc.disable()
        _share_cores_evenly()
        health = TRANSPORTS[transport]()(job, outbox, counters).run()
        outbox.finish(health)
        code = 0
    except (BrokenPipeError, ConnectionResetError):
        pass  # the parent is gone: nobody to tell
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _wire() -> Build:
    from loadgen.wire import Wire  # needs epoll, so Linux

    return Wire


def _portable() -> Build:
    from loadgen.portable import Portable

    return Portable


TRANSPORTS: dict[str, Callable[[], Build]] = {"wire": _wire, "httpx": _portable}


def _share_cores_evenly() -> None:
    """Undo what an earlier run's `_yield_to_others` left to this process's parent."""
    if hasattr(os, "SCHED_OTHER"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _yield_to_others() -> None:
    """Let the capturing process and a server on this machine run first when cores are short."""
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
