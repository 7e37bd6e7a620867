"""The command: one verb a module, imported when it is asked for."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import import_module
from typing import NoReturn

from loadgen import __version__
from loadgen.base.errors import NO_MEMORY, ExitCode, LoadgenError, UsageError
from loadgen.base.parsing import suggest_name
from loadgen.base.text import clean_text, quote_value
from loadgen.report.printing import flush_stream, print_text, print_warnings
from loadgen.run import signals
from loadgen.run.verbs import importing

_HELP = f"""\
loadgen {__version__}: benchmark LLM servers; every figure was true of the server

  loadgen bench --base-url http://localhost:8000 --profile high-load
  loadgen bench --model NAME --profile low-load  port 8000, as vLLM's client
  loadgen bench --launch vllm --model DIR        start, measure, stop a server
  loadgen bench --profile low-load               no server: simulated

verbs:
  bench      run a workload and print the Serving Benchmark Result
  ladder     speed of one request at growing prompt lengths, as Qwen's tables
  data       show what a file of prompts, bodies or a trace would send
  profiles   list the shipped workloads, or show one: loadgen profiles high-load
  sweep      one workload at many loads, lengths or server settings
  report     render saved runs as text, HTML, pictures, Markdown or CSV
  campaign   checkpoints × servers × profiles from one file, cells repeated
  limit      the highest load that still meets --slo, with its interval
  compare    runs, campaigns, other clients' results: one table with verdicts
  audit      find impossible or mislabelled figures in published results
  shards     print a Kubernetes Job, Slurm or MPI script of one plan's shards
  merge      join the runs of one plan's shards: bench --shard I/N
  export     write a run's requests, one per row, as JSON lines, CSV or Parquet
  selftest   measure this client's own error against a null server
  engine     start the embedded engine by itself

Details: `loadgen VERB --help`. Exit codes:
  0  figures were produced
  1  nothing was measured, or the run was cut short
  2  the command is wrong
  3  the verdict is INVALID (with --strict)
  4  figures were produced, and not everything could be written
  129, 130, 143  ended by SIGHUP, Ctrl-C, SIGTERM
"""


def _bench(argv: Sequence[str]) -> int:
    """Read the flags, and start the embedded engine while what a run needs is imported."""
    with importing():
        from loadgen.run.options import bench_parser, parse

    if {"-h", "--help"} & set(argv):  # without the imports that a run needs
        bench_parser().print_help()
        return 0
    from loadgen.run import embedded_engine

    options = parse(argv)
    with ExitStack() as stack:
        begun = embedded_engine.begin_engine(options, stack)
        with importing():
            from loadgen.run import bench

        # Few profiles are shown as tables of speeds.
        return bench.run(options, stack, begun, lambda: import_module("loadgen.study.series.ladder_command"))


def _profiles(argv: Sequence[str]) -> int:
    with importing():
        from loadgen.plan import profile

    if {"-h", "--help"} & set(argv) or len(argv) > 1:
        print_text("loadgen profiles [NAME]: list the shipped workloads, or show one as TOML", sys.stdout)
        return 0 if len(argv) <= 1 else UsageError.exit_code
    if argv:
        profile.load(argv[0], {})
        print_text(profile.locate(argv[0]).read_text("utf-8"), sys.stdout, end="")
        return 0
    for name in profile.list_shipped():
        print_text(f"{name:<20} {profile.load(name, {}).description}", sys.stdout)
    return 0


def _main_of(module: str) -> Callable[[Sequence[str]], int]:
    """A verb that is all of a module."""

    def verb(argv: Sequence[str]) -> int:
        with importing():
            loaded = import_module(module)
        return int(loaded.main(argv))

    return verb


VERBS: dict[str, Callable[[Sequence[str]], int]] = {
    "bench": _bench,
    "ladder": _main_of("loadgen.study.series.ladder_command"),
    "data": _main_of("loadgen.features.data.data_command"),
    "profiles": _profiles,
    "report": _main_of("loadgen.study.pages.report_command"),
    "compare": _main_of("loadgen.study.compare.compare_command"),
    "audit": _main_of("loadgen.study.audit.audit_command"),
    "shards": _main_of("loadgen.fleet.shards_command"),
    "merge": _main_of("loadgen.features.shards.merge_command"),
    "export": _main_of("loadgen.report.request_rows"),
    "sweep": _main_of("loadgen.study.series.sweep.sweep_command"),
    "campaign": _main_of("loadgen.study.series.campaign.campaign_command"),
    "limit": _main_of("loadgen.study.series.limit.limit_command"),
    "selftest": _main_of("loadgen.run.selftest.command"),
    "engine": _main_of("loadgen_servers.engine.cli"),
}


def _readable(words: Sequence[str]) -> list[str]:
    """The arguments as UTF-8, whatever the locale made of them.

    Raises UsageError of one that is no UTF-8: it could neither be sent nor written down.
    """
    read = []
    for number, word in enumerate(words, 1):
        try:
            read.append(word.encode("utf-8", "surrogateescape").decode())
        except UnicodeError:
            text = quote_value(word.encode("utf-8", "surrogatepass").decode("utf-8", "replace"))
            raise UsageError(f"argument {number}, {text}, is not UTF-8: write it in UTF-8") from None
    return read


def run() -> NoReturn:
    """The process: one command, and no clearing up that the kernel does faster."""
    gc.disable()  # start-up makes a hundred thousand objects and no garbage
    with signals.SIGNALS.caught(signals.stop):
        try:
            code = main()
        except SystemExit as ended:  # argparse has printed its help, not all of which may be written
            code = int(ended.code or 0)
        if not (flush_stream(sys.stdout) and flush_stream(sys.stderr)):  # a full disk
            code = code or ExitCode.UNWRITTEN
    os._exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb; every fault of the tool ends in one line and its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    verb = words[0] if words else "--help"
    if verb in ("-h", "--help", "help"):
        print_text(_HELP, sys.stdout, end="")
        return 0
    if verb in ("-V", "--version"):
        print_text(f"loadgen {__version__}", sys.stdout)
        return 0
    try:
        verb, *arguments = _readable(words)
        if verb not in VERBS:
            raise UsageError(
                f"no verb {quote_value(verb)}{suggest_name(verb, VERBS)}; there are {', '.join(VERBS)}"
            )
        with print_warnings():
            return VERBS[verb](arguments)
    except LoadgenError as error:
        print_text(f"loadgen: {clean_text(str(error))}", sys.stderr)
        return error.exit_code
    except KeyboardInterrupt as stop:
        number = signals.read_number(stop)
        print_text(f"loadgen: interrupted by {signals.NAMES[number]}", sys.stderr)
        return signals.exit_code(number)
    except MemoryError:
        print_text(f"loadgen: {NO_MEMORY}", sys.stderr)
        return ExitCode.NOTHING
    except BrokenPipeError:
        return ExitCode.FIGURES  # the reader of our output has closed it
