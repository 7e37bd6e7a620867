"""Shard process: measures one part of a plan, as its driver asks: `python -m … DIRECTORY`.

What it is to do comes through standard input, the instant at which it begins too; what happens goes into a
file of the directory, a line each.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, cast

import msgspec
from msgspec.structs import replace

from loadgen.base import signals
from loadgen.base.clock import SECOND_NS, SYSTEM_CLOCK
from loadgen.base.errors import LoadgenError, MeasureError
from loadgen.base.files import open_refusing_link
from loadgen.base.signals import SIGNALS
from loadgen.features.shards.shard_sender import ShardSender, compute_lead_s, start_punctually
from loadgen.fleet.shard_actor import EVENTS, LENGTH_BYTES, RUNS, TOTALS, ShardOrder
from loadgen.plan.plan import Plan
from loadgen.plan.profile import Profile
from loadgen.run.attach import attach, collect_settings
from loadgen.run.command.options import Options
from loadgen.run.firing import Outcome, TransportOptions, Watch
from loadgen.run.measurement import measure
from loadgen.settings.validation import validate_table
from loadgen.transport.capture_process import end_with_parent

_PIECE_BYTES = 1 << 16
_LATEST_S = 3600  # until the common start
_POLL_S = 0.01


class DriverLine:
    """The pipe from the actor that started this process, and the file of events to it.

    Reading raises MeasureError if the actor is gone.
    """

    def __init__(self, place: Path, stdin: BinaryIO) -> None:
        self.place, self._stdin = place, stdin

    def order(self) -> ShardOrder:
        """Read the order of a driver of this version from standard input."""
        size = int.from_bytes(self._read(LENGTH_BYTES), "little")
        return msgspec.msgpack.decode(self._read(size), type=ShardOrder)

    def report(self, event: str, text: str = "") -> None:
        """Append an event, its name and its text on one line, to the file that the actor reads."""
        line = f"{event} {' '.join(text.split())}\n".encode("utf-8", "backslashreplace")
        events = open_refusing_link(self.place / EVENTS, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(events, line)
        finally:
            os.close(events)

    def start(self) -> int:
        """Report that all is ready, wait for the driver's start, and return it (ns of CLOCK_MONOTONIC).

        Raises MeasureError if it is more than an hour away.
        """
        self.report("ready")
        instant_ns = int.from_bytes(self._read(LENGTH_BYTES), "little")
        if instant_ns > SYSTEM_CLOCK.now_ns() + _LATEST_S * SECOND_NS:
            raise MeasureError(f"the driver's start is more than {_LATEST_S} s from now")
        return instant_ns

    def _read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            more = self._stdin.read(min(count - len(data), _PIECE_BYTES))
            if not more:
                raise MeasureError("the driver is gone")
            data += more
        return bytes(data)


class DrivenSender(ShardSender):
    """Sends a shard's part from the instant that its driver gives."""

    def __init__(self, line: DriverLine, options: Options) -> None:
        super().__init__(options, SIGNALS)
        self.line = line

    def send(self, made: Plan, options: TransportOptions, watch: Watch) -> Outcome:
        """Wait for the driver's start, measure the shard's part of the plan, and report that it ended.

        Raises MeasureError if the shard was not ready by then.
        """
        instant_ns = self.line.start()
        while SYSTEM_CLOCK.now_ns() < instant_ns - int(compute_lead_s(made.streams) * SECOND_NS):
            time.sleep(_POLL_S)  # a signal ends it
        outcome = measure(made, start_punctually(options, instant_ns, "the common start"), watch)
        self.line.report("measured")
        return outcome


def run_shard(line: DriverLine) -> None:
    """Read the order, measure its part, write the run directory, and report `done`; raises LoadgenError."""
    order = line.order()
    workload = validate_table(Profile, order.profile, "the driver's order")
    options = order.options(str(line.place / RUNS), str(line.place / TOTALS))
    with ExitStack() as stack:
        session = attach(options, collect_settings(options, [workload]), workload, stack)
        sender = DrivenSender(line, session.options)
        shard = replace(session, sender=sender, accepted=order.adaptation)
        shard.word_counts.update(order.word_counts)
        result, directory = shard.run(workload, order.seed)
        errors = shard.keep(result, directory).errors
        if errors:
            raise MeasureError("; ".join(errors))
        line.report("done", result.facts.stop_rule)


def main() -> None:
    """Run the shard of the directory in argv, and end the process with code 0; it is killed with its actor.

    A LoadgenError or a signal is reported as the event `failed`.
    """
    end_with_parent(os.getppid())
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # Ray's processes block some
    line = DriverLine(Path(sys.argv[1]), cast(BinaryIO, os.fdopen(0, "rb", buffering=0)))
    try:
        with SIGNALS.catch(signals.stop):
            run_shard(line)
    except LoadgenError as error:
        line.report("failed", str(error))
    except KeyboardInterrupt as stop:
        line.report("failed", signals.explain_stop(signals.read_number(stop)))
    os._exit(0)


if __name__ == "__main__":
    main()
