"""The command: one verb a module, imported when it is asked for."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, NoReturn

from loadgen import __version__
from loadgen.base import files, signals
from loadgen.base.errors import NO_MEMORY, ExitCode, LoadgenError, UsageError, decide_exit_code
from loadgen.base.parsing import suggest_name
from loadgen.base.printing import flush_standard_streams, print_json, print_text, print_warnings
from loadgen.base.text import clean_text, quote_value
from loadgen.run.verbs import find_verbs, importing, list_questions

if TYPE_CHECKING:
    from loadgen.run.command.bench import RunTables

_HEAD = f"""\
loadgen {__version__}
Benchmark LLM servers; every figure describes the server

  loadgen bench --base-url http://localhost:8000 --profile high-load
  loadgen bench --model NAME --profile low-load  port 8000, as vLLM's client
  loadgen bench --launch vllm --model DIR        start, measure, stop a server
  loadgen bench --profile low-load               no server: simulated

The verb for each question:
"""
_TAIL = "\nDetails: `loadgen VERB --help`. Exit codes:\n"


def render_help() -> str:
    """Return the text of `loadgen --help`: the question that each verb answers, and the exit codes."""
    lines = []
    for group, questions in list_questions().items():
        lines += [f" {group}:", *(f"  {name:<13} {question}" for name, question in questions.items())]
    codes = [f"  {code:>3}  {code.meaning}" for code in ExitCode]
    return _HEAD + "\n".join(lines) + "\n" + _TAIL + "\n".join(codes) + "\n"


def run_bench(argv: Sequence[str]) -> int:
    """Run `loadgen bench`, starting the embedded engine, if it answers, while modules are imported.

    Prints help alone if that is requested; returns the exit code, and raises LoadgenError.
    """
    with importing():
        from loadgen.run.command.options import parse, render_help

    if (text := render_help(argv)) is not None:  # without the imports that a run needs
        print_text(text, sys.stdout, end="")
        return 0
    options = parse(argv)
    with ExitStack() as stack:
        begun = None
        if options.embedded:
            from loadgen.run import embedded_engine  # where another server answers, it is not needed

            begun = embedded_engine.begin_engine(options, stack)
        with importing():
            from loadgen.run.command import bench

        return bench.run(options, stack, begun, _import_tables)


def _import_tables() -> RunTables:
    from loadgen.study.series import bench_series  # few commands make several runs

    return bench_series


def list_profiles(argv: Sequence[str]) -> int:
    """Run `loadgen profiles`: list the shipped profiles, or print one; raises UsageError for a wrong name."""
    with importing():
        from loadgen.plan import profile

    names, is_json = [word for word in argv if word != "--json"], "--json" in argv
    if {"-h", "--help"} & set(argv) or len(names) > 1:
        print_text("loadgen profiles [NAME] [--json]: list the shipped workloads, or show one", sys.stdout)
        return ExitCode.FIGURES if len(names) <= 1 else ExitCode.USAGE
    text = ""
    if names:
        profile.load(names[0], {})
        text = profile.locate(names[0]).read_text("utf-8")
    shipped = {} if names else {name: profile.load(name, {}).description for name in profile.list_shipped()}
    if is_json:
        from tomllib import loads  # for this alone

        listed = [{"name": name, "description": about} for name, about in shipped.items()]
        print_json({"name": names[0], **loads(text)} if names else {"profiles": listed})
        return 0
    print_text(
        text or "".join(f"{name:<20} {about}\n" for name, about in shipped.items()), sys.stdout, end=""
    )
    return 0


def _decode_words(words: Sequence[str]) -> list[str]:
    """Return the arguments as valid UTF-8, whatever the locale; raises UsageError if one is not UTF-8."""
    read = []
    for number, word in enumerate(words, 1):
        try:
            read.append(word.encode("utf-8", "surrogateescape").decode())
        except UnicodeError:
            text = quote_value(word.encode("utf-8", "surrogatepass").decode("utf-8", "replace"))
            raise UsageError(f"argument {number}, {text}, is not UTF-8: write it in UTF-8") from None
    return read


def run() -> NoReturn:
    """Run the command and exit the process at once, without the interpreter's clean-up.

    The first signal ends the command; a standard stream that cannot be written fails a command that did not.
    """
    gc.disable()  # start-up makes a hundred thousand objects and no garbage; see Verb.run
    sys.unraisablehook = signals.send_dropped_again
    with signals.SIGNALS.catch(signals.stop):
        try:
            code = main()
        except SystemExit as ended:  # argparse has printed its help, not all of which may be written
            code = _read_exit(ended)
        files.remove_temporary_directories()
        if not flush_standard_streams():  # a full disk
            code = code or ExitCode.UNWRITTEN
    os._exit(code)


def _read_exit(ended: SystemExit) -> int:
    """Return the exit code of an interpreter's exit; a text, as a library gives one, is printed and is 1."""
    if ended.code is None or isinstance(ended.code, int):
        return ended.code or 0
    print_text(f"loadgen: {clean_text(str(ended.code))}", sys.stderr)
    return ExitCode.NOTHING


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb, or print help or the version; return the exit code. Without a word the help is an error.

    An error of the tool, an interrupt and a lack of memory are printed in one line each, a closed pipe is
    not.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if not words:  # in a pipeline a command that was lost is no success
        print_text(render_help(), sys.stderr, end="")
        return ExitCode.USAGE
    verb = words[0]
    if verb in ("-h", "--help", "help"):
        print_text(render_help(), sys.stdout, end="")
        return 0
    if verb in ("-V", "--version"):
        print_text(f"loadgen {__version__}", sys.stdout)
        return 0
    try:
        verb, *arguments = _decode_words(words)
        with print_warnings():
            if verb == "bench":  # without a search for others
                return run_bench(arguments)
            verbs = find_verbs()
            if verb not in verbs:
                raise UsageError(
                    f"no verb {quote_value(verb)}{suggest_name(verb, verbs)}; there are {', '.join(verbs)}"
                )
            return verbs[verb].run(arguments)
    except LoadgenError as error:
        print_text(f"loadgen: {clean_text(str(error))}", sys.stderr)
        return error.exit_code
    except KeyboardInterrupt as stop:
        number = signals.read_number(stop)
        print_text(f"loadgen: interrupted by {signals.NAMES[number]}", sys.stderr)
        return decide_exit_code(signal=number)
    except MemoryError:
        print_text(f"loadgen: {NO_MEMORY}", sys.stderr)
        return ExitCode.NOTHING
    except BrokenPipeError:
        return ExitCode.FIGURES  # the reader of our output has closed it
