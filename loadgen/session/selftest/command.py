"""`loadgen selftest`: this client against a null server, which logs when it really wrote each message."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from loadgen import clock
from loadgen.errors import MeasureError
from loadgen.results.printing import printed
from loadgen.session.progress import display
from loadgen.session.selftest.capacity import measure_client
from loadgen.session.selftest.load import USUAL_STREAMS, SelftestLoad
from loadgen.session.selftest.modes import examined
from loadgen.session.selftest.tables import table
from loadgen.session.transport_choice import runnable
from loadgen.spelling import Parser, arguments
from loadgen.validity import calibration
from loadgen.validity.calibration import Calibration
from loadgen.workload.bounds import MOST_STREAMS, real, whole

_COUNT, _POSITIVE = whole(1, MOST_STREAMS), real(0.001, 10_000)  # of its flags


def main(argv: Sequence[str]) -> int:
    """Measure, print, keep; 1 where the client does not see what is sent. Raises MeasureError."""
    options = arguments(_parser(), argv)
    transports, why_not = runnable()
    if options.transport in transports:
        transports = (options.transport,)
    elif why_not and options.transport != "httpx":
        printed(f"ring is not measured: {why_not}", sys.stdout)
    load = SelftestLoad(options.streams, options.interval_ms, options.tokens_per_message, options.input_len)
    deadline_ns = clock.now_ns() + int(options.seconds * 1e9)
    with display(quiet=False).waiting("what servers send: one mode after the other", forks=True):
        lines, well = examined(transports)
    printed("\n".join([*lines, f"\n{load.words}, against the null server on this machine:\n"]), sys.stdout)
    measured: dict[str, Calibration] = {}
    for transport in transports:
        left_s = (deadline_ns - clock.now_ns()) / 1e9 / (len(transports) - len(measured))
        with display(quiet=False).waiting(f"error and capacity of {transport}", left_s, forks=True):
            measured |= measure_client(load, (transport,), left_s)
        printed("\n".join(table(measured[transport])), sys.stdout, end="\n\n")
    if options.save and calibration.remember(measured.values()):
        printed(f"kept for later reports in {calibration.cache_path()}", sys.stdout)
    return 0 if well else MeasureError.exit_code


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
        default="all",
        help="all (default): each that runs here; both is its earlier name",
    )
    add("--seconds", type=_POSITIVE, default=14.0, metavar="S", help="for all of it (default 14)")
    add("--no-save", dest="save", action="store_false", help="do not keep the result for later reports")
    return parser
