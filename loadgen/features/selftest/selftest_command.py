"""`loadgen selftest`: this client against a null server, which logs when it really wrote each message."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from loadgen.base import clock
from loadgen.base.errors import decide_exit_code
from loadgen.base.parsing import MOST_STREAMS, Parser, integer_between, number_between, parse_arguments
from loadgen.base.passages import Passage, print_passages
from loadgen.base.printing import add_json_flag, print_one_object, print_text
from loadgen.base.tables import make_table
from loadgen.base.text import format_count
from loadgen.facts.run_facts import Calibration
from loadgen.features.selftest import kept_selftests
from loadgen.features.selftest.capacity import (
    USUAL_STREAMS,
    Seen,
    SelftestClient,
    SelftestLoad,
    calibrate,
    compare,
    fire,
    make_transport_passage,
    make_workers_passage,
    null_servers,
    plan_load,
)
from loadgen.host.environment import count_usable_cpus
from loadgen.run.live_display import choose_display
from loadgen.run.transport_choice import choose_transport
from loadgen.server.exchange import ServerAddress
from loadgen.transport.capture_process import TRANSPORTS

_CPUS_EACH = 3  # of a worker: it captures and decodes, and has a null server
_MOST_WORKERS = 256
_HERE = "http://127.0.0.1"  # where null servers are
_SECONDS, _MODES_S, _STEP_S = 14.0, 8.0, 8.0
_COUNT, _POSITIVE = integer_between(1, MOST_STREAMS), number_between(0.001, 10_000)  # of its flags


def main(argv: Sequence[str]) -> int:
    """Run `loadgen selftest`, print and cache its results, and return the exit code.

    It is 1 if the client does not see what is sent. Raises MeasureError.
    """
    options = parse_arguments(selftest_parser(), argv)
    with print_one_object(options.json) as results:
        refusals = {name: why for name, kind in TRANSPORTS.items() if (why := kind.explain_missing_right())}
        transports = tuple(name for name in TRANSPORTS if name not in refusals)
        if options.transport in transports:
            transports = (options.transport,)
        else:
            for name, why in refusals.items():
                print_text(f"{name} is not measured: {why}", sys.stdout)
        load = SelftestLoad(
            options.streams, options.interval_ms, options.tokens_per_message, options.input_len
        )
        steps = len(_list_steps(options.workers))
        seconds = options.seconds or (_SECONDS if steps == 1 else _MODES_S + _STEP_S * steps)
        deadline_ns = clock.now_ns() + int(seconds * 1e9)
        with choose_display(quiet=False).waiting("what servers send: one mode after the other", forks=True):
            modes = {mode.words: examine(mode, transports) for mode in MODES}
        print_passages([make_mode_passage(modes, transports)])
        print_text(f"\n{load.words}, against the null server on this machine:\n", sys.stdout)
        if options.workers > 1 and options.transport is None:
            transports = (choose_transport(None, ServerAddress(_HERE).target("/"), load.streams).name,)
        measured = _measure_each(load, options.workers, transports, deadline_ns)
        if options.save and kept_selftests.remember(measured):
            print_text(f"kept for later reports in {kept_selftests.cache_path()}", sys.stdout)
        results.append({"modes": modes, "selftests": [each.model_dump(mode="json") for each in measured]})
        well = all(outcome == "ok" for by_transport in modes.values() for outcome in by_transport.values())
        return decide_exit_code(measured=well)


def _list_steps(workers: int) -> list[int]:
    """List the numbers of workers to measure in turn: powers of two up to N, and N."""
    return sorted({*(1 << power for power in range(workers.bit_length())), workers})


def _measure_each(
    load: SelftestLoad, workers: int, transports: Sequence[str], deadline_ns: int
) -> list[Calibration]:
    """Run each transport's self-test in 1, 2, 4 … workers, with the load's streams for each worker.

    Prints each transport's result, of several numbers as a table, and a remark if there are too few CPUs.
    """
    numbers, every, cpus = _list_steps(workers), list[Calibration](), count_usable_cpus()
    if workers > 1 and _CPUS_EACH * workers > cpus:
        print_text(
            f"{workers} workers and their null servers need {_CPUS_EACH * workers} CPUs: they share {cpus} "
            "here,\nand hold less than on a machine that has them\n",
            sys.stdout,
        )
    for transport in transports:
        ended: list[str] = []
        for number in numbers:
            left_s = (deadline_ns - clock.now_ns()) / 1e9 / (len(transports) * len(numbers) - len(every))
            whose = f"{transport}, {format_count(number, 'worker')}" if workers > 1 else transport
            with choose_display(quiet=False).waiting(f"error and capacity of {whose}", left_s, forks=True):
                client, whole = SelftestClient(transport, number), number * load.streams
                found, capacity = calibrate(replace(load, streams=whole), client, left_s)
            every.append(found)
            ended.append(capacity.ended)
        passage = make_transport_passage(every[-1], transport)
        if workers > 1:
            passage = make_workers_passage(every[-len(numbers) :], ended, transport)
        print_passages([passage])
        print_text("", sys.stdout)
    return every


def selftest_parser() -> argparse.ArgumentParser:
    """Make the parser of `loadgen selftest`."""
    parser = Parser(
        prog="loadgen selftest",
        allow_abbrev=False,
        description="Measure this client against a null server with known timings: docs/selftest.md.",
    )
    add = parser.add_argument
    add("--streams", type=_COUNT, default=USUAL_STREAMS, metavar="N", help="streams (default %(default)s)")
    add("--interval-ms", type=_POSITIVE, default=20.0, metavar="MS", help="ms between chunks (default 20)")
    add("--tokens-per-message", type=_COUNT, default=1, metavar="K", help="tokens per chunk (default 1)")
    add("--input-len", type=_COUNT, default=64, metavar="N", help="prompt tokens (default 64)")
    add(
        "--transport",
        choices=(*TRANSPORTS, "all"),
        help="transport to measure. all (default of one worker): each that runs here; else the one that "
        "bench takes by itself",
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
        help="seconds of the whole test (default 14; with --workers 8, and 8 for each number of workers)",
    )
    add("--no-save", dest="save", action="store_false", help="do not keep the result for later reports")
    add_json_flag(parser)
    return parser


class Mode(msgspec.Struct, frozen=True):
    """One behaviour of servers to test, and the null server's flags for it."""

    words: str
    shape: tuple[str, ...] = ()
    chat: bool = False


MODES = (
    Mode("a token a chunk"),
    Mode("a token a chunk, chat", chat=True),
    Mode("4 tokens a chunk", ("--tokens-per-message", "4")),
    Mode("4 chunks a write", ("--messages-per-write", "4")),
    Mode("a chunk in 3 writes", ("--pieces", "3")),
    Mode("chunks with a role alone", ("--extra", "role"), chat=True),
    Mode("chunks with usage alone", ("--extra", "usage")),
    Mode("comments (pings)", ("--extra", "ping")),
    Mode("empty texts", ("--extra", "empty")),
    Mode("a stall of 100 ms", ("--stall-ms", "100")),
)


def examine(mode: Mode, transports: Sequence[str]) -> dict[str, str]:
    """Send requests to a null server in a mode, and return by transport what is wrong, or `ok`."""
    load = SelftestLoad(streams=2, interval_ms=2.0, chat=mode.chat)
    requests, tokens = 2 * load.streams, 18
    with null_servers(1, load.interval_ms, load.interval_ms, *mode.shape) as (null,):
        records = {
            transport: fire(
                plan_load(load, requests, tokens),
                SelftestClient(transport),
                [null.base_url],
                f"{transport}-",
            ).records
            for transport in transports
        }
        return {
            transport: find_fault(compare(received, null.read_sent(f"{transport}-")), requests * tokens)
            for transport, received in records.items()
        }


def find_fault(seen: Seen, tokens: int) -> str:
    """Return what is wrong with a run of `tokens` requested tokens: failures, messages, tokens; else `ok`."""
    if seen.failed:
        return f"{seen.failed} of {seen.requests} failed, the first with {seen.first_error}"
    if seen.unlike:
        return f"{seen.unlike} of {seen.requests} responses with more or fewer chunks than were sent"
    return "ok" if seen.tokens == tokens else f"{seen.tokens} tokens of {tokens}"


def make_mode_passage(outcomes: Mapping[str, Mapping[str, str]], transports: Sequence[str]) -> Passage:
    """Make the passage of modes: a row each, what a transport saw of it; remarks have the faults."""
    body = [
        (words, *("ok" if outcome == "ok" else "wrong" for outcome in by_transport.values()))
        for words, by_transport in outcomes.items()
    ]
    faults = (
        f"{words}, {name}: {wrong}"
        for words, by_transport in outcomes.items()
        for name, wrong in by_transport.items()
        if wrong != "ok"
    )
    table = make_table(("null server", *transports), body)
    return Passage("", table=table, remarks=tuple(faults))
