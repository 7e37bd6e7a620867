"""Worker run: a worker as the process that forked it sees it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time

import numpy as np

from loadgen.run.workers.worker_pipe import ParentEnd, WorkerResult
from loadgen.run.workers.worker_process import WorkerTask


class WorkerRun:
    """One worker under way."""

    def __init__(self, name: str, task: WorkerTask, pipe: ParentEnd, pid: int) -> None:
        self.name, self.task, self.pipe, self.pid = name, task, pipe, pid
        self.result: WorkerResult | None = None
        self.why_lost = ""
        self.warned = False  # that it is silent
        self._pulse = (0, 0)
        self._silent_s = [0.0, 0.0]

    def silent_s(self, passed_s: float) -> float:
        """For how long one of its two processes has shown no life, `passed_s` after this was last asked."""
        totals = self.task.totals
        # A capturing process that is done waits for its last responses to be decoded.
        pulse = (totals.beats, self.task.counters.beats + totals.read().decoded)
        for process, (before, now) in enumerate(zip(self._pulse, pulse, strict=True)):
            self._silent_s[process] = self._silent_s[process] + passed_s if before == now else 0.0
        self._pulse = pulse
        return max(self._silent_s)

    def ended(self) -> str:
        """Take note of its end; why it is lost, "" where it is not."""
        with contextlib.suppress(ChildProcessError):
            _, status = os.waitpid(self.pid, 0)
            code = os.waitstatus_to_exitcode(status)
            if self.result is None and not self.why_lost:
                self.why_lost = f"killed by signal {-code}" if code < 0 else f"ended with status {code}"
        self.pid = 0
        self.pipe.sock.close()
        if self.result is not None and self.result.died:
            self.why_lost = self.result.died
        return self.why_lost

    def kill(self, why: str = "") -> None:
        """End it and its capturing process at once."""
        self.why_lost = self.why_lost or why
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def gone(self, deadline_s: float) -> None:
        """Wait for the end of both its processes, until that time (monotonic, seconds) at most."""
        left_ms = max(0.0, deadline_s - time.monotonic()) * 1000
        poll = select.poll()
        poll.register(self.pipe.sock, select.POLLIN)
        while not self.pipe.closed and poll.poll(left_ms):
            self.pipe.skip()
            left_ms = max(0.0, deadline_s - time.monotonic()) * 1000
        self.ended()

    def owed(self, only_sent: bool, duration_ns: int) -> list[int]:
        """The plan indices of what it was to deliver and did not; `only_sent`: the run was stopped."""
        job, have = self.task.job, set[int]()
        for part in self.task.journal.parts():
            have.update(part.index.tolist())
        if only_sent:
            return list(job.order.list_unanswered(self.task.counters.sent, have))
        owed = job.order.list_claimed()
        if job.offsets_ns is not None and duration_ns:
            owed = job.order.list_taken(int(np.searchsorted(job.offsets_ns, duration_ns)))
        return [index for index in owed if index not in have]
