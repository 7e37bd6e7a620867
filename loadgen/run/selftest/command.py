"""`loadgen selftest`: this client against a null server, which logs when it really wrote each message."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from msgspec.structs import replace

from loadgen.base import clock
from loadgen.base.bounds import MOST_STREAMS, integer_between, number_between
from loadgen.base.errors import MeasureError
from loadgen.base.parsing import Parser, parse_arguments
from loadgen.base.text import format_count
from loadgen.report.printing import print_text
from loadgen.run.automatic_workers import usable_cpus
from loadgen.run.progress import display
from loadgen.run.selftest.capacity import calibrated, measure_client
from loadgen.run.selftest.load import USUAL_STREAMS, SelftestClient, SelftestLoad
from loadgen.run.selftest.modes import examined
from loadgen.run.selftest.tables import table, workers_table
from loadgen.run.transport_choice import runnable
from loadgen.verdict import calibration
from loadgen.verdict.calibration import Calibration

_CPUS_EACH = 3  # of a worker: it captures and decodes, and has a null server
_MOST_WORKERS = 256
_SECONDS, _MODES_S, _STEP_S = 14.0, 8.0, 8.0
_COUNT, _POSITIVE = integer_between(1, MOST_STREAMS), number_between(0.001, 10_000)  # of its flags


def main(argv: Sequence[str]) -> int:
    """Measure, print, keep; 1 where the client does not see what is sent. Raises MeasureError."""
    options = parse_arguments(_parser(), argv)
    transports, why_not = runnable()
    if options.transport in transports:
        transports = (options.transport,)
    elif why_not and options.transport != "httpx":
        print_text(f"ring is not measured: {why_not}", sys.stdout)
    load = SelftestLoad(options.streams, options.interval_ms, options.tokens_per_message, options.input_len)
    steps = len(_numbers(options.workers))
    seconds = options.seconds or (_SECONDS if steps == 1 else _MODES_S + _STEP_S * steps)
    deadline_ns = clock.now_ns() + int(seconds * 1e9)
    with display(quiet=False).waiting("what servers send: one mode after the other", forks=True):
        lines, well = examined(transports)
    print_text("\n".join([*lines, f"\n{load.words}, against the null server on this machine:\n"]), sys.stdout)
    if options.workers > 1:
        if options.transport is None:
            transports = ("ring",) if "ring" in transports else transports[:1]
        measured = _grown(load, options.workers, transports, deadline_ns)
    else:
        measured = _measured(load, transports, deadline_ns)
    if options.save and calibration.remember(measured):
        print_text(f"kept for later reports in {calibration.cache_path()}", sys.stdout)
    return 0 if well else MeasureError.exit_code


def _measured(load: SelftestLoad, transports: Sequence[str], deadline_ns: int) -> list[Calibration]:
    """Each transport in one worker, printed as it comes."""
    measured: dict[str, Calibration] = {}
    for transport in transports:
        left_s = (deadline_ns - clock.now_ns()) / 1e9 / (len(transports) - len(measured))
        with display(quiet=False).waiting(f"error and capacity of {transport}", left_s, forks=True):
            measured |= measure_client(load, (transport,), left_s)
        print_text("\n".join(table(measured[transport])), sys.stdout, end="\n\n")
    return list(measured.values())


def _numbers(workers: int) -> list[int]:
    """How many workers are measured in turn: 1, 2, 4 … N."""
    return sorted({*(1 << power for power in range(workers.bit_length())), workers})


def _grown(
    load: SelftestLoad, workers: int, transports: Sequence[str], deadline_ns: int
) -> list[Calibration]:
    """Each transport in 1, 2, 4 … workers, every one with the whole load; printed as it comes."""
    numbers, every = _numbers(workers), list[Calibration]()
    steps = [(transport, number) for transport in transports for number in numbers]
    cpus = usable_cpus()
    if _CPUS_EACH * workers > cpus:
        print_text(
            f"{workers} workers and their null servers need {_CPUS_EACH * workers} CPUs: they share {cpus} "
            "here,\nand hold less than on a machine that has them\n",
            sys.stdout,
        )
    for transport in transports:
        measured: list[Calibration] = []
        ended: list[str] = []
        for number in numbers:
            left_s = (deadline_ns - clock.now_ns()) / 1e9 / (len(steps) - len(every))
            title = f"error and capacity of {transport}, {format_count(number, 'worker')}"
            with display(quiet=False).waiting(title, left_s, forks=True):
                client, whole = (
                    SelftestClient(transport, number),
                    replace(load, streams=number * load.streams),
                )
                found, capacity = calibrated(whole, client, left_s)
            measured.append(found)
            every.append(found)
            ended.append(capacity.ended)
        print_text("\n".join((f"{transport}:", *workers_table(measured, ended))), sys.stdout, end="\n\n")
    return every


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="loadgen selftest",
        allow_abbrev=False,
        description="Measure this client against a null server with known timings: docs/selftest.md.",
    )
    add = parser.add_argument
    add("--streams", type=_COUNT, default=USUAL_STREAMS, metavar="N", help="default %(default)s")
    add("--interval-ms", type=_POSITIVE, default=20.0, metavar="MS", help="between messages (default 20)")
    add("--tokens-per-message", type=_COUNT, default=1, metavar="K", help="default 1")
    add("--input-len", type=_COUNT, default=64, metavar="N", help="prompt tokens (default 64)")
    add(
        "--transport",
        choices=("ring", "wire", "httpx", "all", "both"),
        help="all (default of one worker): each that runs here; else the one that bench takes by itself; "
        "both: earlier name of all",
    )
    add(
        "--workers",
        type=integer_between(1, _MOST_WORKERS),
        default=1,
        metavar="N",
        help="measure 1, 2, 4 … N workers, each with --streams of its own and a null server (default 1)",
    )
    add(
        "--seconds",
        type=_POSITIVE,
        metavar="S",
        help="for all of it (default 14; with --workers 8, and 8 for each number of them)",
    )
    add("--no-save", dest="save", action="store_false", help="do not keep the result for later reports")
    return parser
