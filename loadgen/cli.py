"""The command: one verb a module, imported when it is asked for."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import import_module
from typing import NamedTuple, NoReturn

from loadgen import __version__
from loadgen.base import files, signals
from loadgen.base.errors import NO_MEMORY, ExitCode, LoadgenError, UsageError, decide_exit_code
from loadgen.base.imports import importing
from loadgen.base.parsing import suggest_name
from loadgen.base.printing import (
    flush_standard_streams,
    print_json,
    print_one_object,
    print_text,
    print_warnings,
)
from loadgen.base.text import clean_text, quote_value

MEASURE, READ, PREPARE = "measure", "saved runs, and results that were published", "prepare and check"


class Verb(NamedTuple):
    """A verb of the command, or a word of `loadgen data` that does something else than show a file."""

    group: str  # of --help
    question: str  # that it answers
    place: str  # of its function, which takes the arguments: MODULE, for its `main`, or MODULE:FUNCTION

    def load(self) -> Callable[[Sequence[str]], int]:
        """Import the verb's module and return its function, with the collector on if it measures nothing."""
        module, _, function = self.place.partition(":")
        with importing():
            loaded = import_module(module)
        if self.group != MEASURE:  # there a signal that comes in a callback of the collector would be lost
            gc.enable()
        command: Callable[[Sequence[str]], int] = getattr(loaded, function or "main")
        return command


VERBS = {
    "bench": Verb(MEASURE, "How fast is a server under a given load?", "loadgen.cli:run_bench"),
    "profiles": Verb(
        PREPARE, "Which workloads are shipped, and what does one send?", "loadgen.cli:list_profiles"
    ),
    "completion": Verb(
        PREPARE, "How does my shell complete commands and flags?", "loadgen.cli:write_completion"
    ),
    "engine": Verb(PREPARE, "How do I try this without a server?", "loadgen_servers.engine.cli"),
    "quality": Verb(
        MEASURE,
        "Is a checkpoint still the same model as its reference?",
        "loadgen.study.quality.quality_command",
    ),
    "selftest": Verb(
        PREPARE,
        "How large is this client's own error on this machine?",
        "loadgen.features.selftest.selftest_command",
    ),
    "data": Verb(PREPARE, "What would a file of prompts, bodies or a trace send?", "loadgen.cli:run_data"),
    "explain": Verb(
        READ, "Why are TTFT and ITL of a run what they are?", "loadgen.features.attribution.explain_command"
    ),
    "export": Verb(
        READ,
        "How do I get a run into a table, llm-d or InferenceX?",
        "loadgen.features.export.export_command",
    ),
    "merge": Verb(READ, "What did the shards of one plan measure together?", "loadgen.features.shards.merge"),
    "shards": Verb(
        PREPARE, "How do I send one plan from Kubernetes, Slurm or MPI?", "loadgen.fleet.shards_command"
    ),
    "ladder": Verb(
        MEASURE, "How fast is one request at growing prompt lengths?", "loadgen.study.series.ladder_command"
    ),
    "sweep": Verb(
        MEASURE, "How do figures change with load, length or settings?", "loadgen.study.series.sweep_command"
    ),
    "limit": Verb(
        MEASURE,
        "What is the highest load that still meets --slo?",
        "loadgen.study.series.limit.limit_command",
    ),
    "campaign": Verb(
        MEASURE,
        "Which of several checkpoints or servers should I take?",
        "loadgen.study.series.campaign.campaign_command",
    ),
    "report": Verb(
        READ, "What did saved runs measure, as a page or as text?", "loadgen.study.pages.report_command"
    ),
    "compare": Verb(READ, "Which checkpoint is faster, and by how much?", "loadgen.study.compare_command"),
    "gate": Verb(READ, "Is a build slower than its base?", "loadgen.study.gate.gate_command"),
    "history": Verb(
        READ, "When did the figures of a load change, over months?", "loadgen.study.history.history_command"
    ),
    "audit": Verb(
        READ, "Which published figures are impossible or mislabelled?", "loadgen.study.audit.audit_command"
    ),
    "bundle": Verb(READ, "How do I send runs so that others can check them?", "loadgen.study.bundle_command"),
    "verify": Verb(
        READ, "Do the figures of a bundle or run follow from its data?", "loadgen.study.verify.verify_command"
    ),
}
DATA_VERBS = {
    "learn": Verb(
        PREPARE,
        "How do I make a workload of a log, without its texts?",
        "loadgen.features.traces.learn.learn_command",
    ),
    "describe": Verb(
        READ,
        "What are a workload's arrivals, lengths and reuse like?",
        "loadgen.study.describe_command",
    ),
}

_HEAD = f"""\
loadgen {__version__}
Benchmark LLM servers; every figure describes the server

  loadgen bench --base-url http://localhost:8000 --profile high-load
  loadgen bench --model NAME --profile low-load  port 8000, as vLLM's client
  loadgen bench --launch vllm --model DIR        start, measure, stop a server
  loadgen bench --profile low-load               no server: simulated

The command for each question:
"""
_TAIL = "\nDetails: `loadgen COMMAND --help`. Exit codes:\n"


def list_questions() -> dict[str, dict[str, str]]:
    """Return, by group of --help, each verb and word of `data` with the question that it answers."""
    verbs = {**VERBS, **{f"data {name}": verb for name, verb in DATA_VERBS.items()}}
    return {
        group: {name: verb.question for name, verb in verbs.items() if verb.group == group}
        for group in (MEASURE, READ, PREPARE)
    }


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

        profiles = bench.prepare(options)
        session = bench.begin(options, profiles, stack, begun)
        if session is None:  # what was to be shown is printed
            return 0
        seed = bench.make_seed(options)
        with print_one_object(options.json) as results:
            first = profiles[0]
            if len(profiles) * options.repeat > 1 or first.ladder is not None or first.table is not None:
                from loadgen.study.series import bench_series  # few commands make several runs

                return bench_series.run_all(session, profiles, seed, results, argv)
            return bench.run_once(session, first, seed, results)[0]


def write_completion(argv: Sequence[str]) -> int:
    """Run `loadgen completion SHELL`; returns the exit code, raises UsageError for another shell."""
    with importing():
        from loadgen.run.command import completion

    return completion.main(argv, {name: verb.question for name, verb in VERBS.items()}, main)


def run_data(argv: Sequence[str]) -> int:
    """Run `loadgen data`, or the verb that its first word is; a file of this name is `./NAME`."""
    if argv and argv[0] in DATA_VERBS:
        return DATA_VERBS[argv[0]].load()(argv[1:])
    with importing():
        from loadgen.features.data import data_command

    return data_command.main(argv, {name: verb.question for name, verb in DATA_VERBS.items()})


def list_profiles(argv: Sequence[str]) -> int:
    """Run `loadgen profiles`: list the shipped profiles, or print one; returns the exit code, 2 for several.

    Raises UsageError for a wrong name.
    """
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
    gc.disable()  # start-up makes a hundred thousand objects and no garbage; see Verb.load
    sys.unraisablehook = signals.send_dropped_again
    with signals.SIGNALS.catch(signals.stop):
        try:
            code = main()
        except SystemExit as ended:  # argparse has printed its help, not all of which may be written
            # A text, as a library gives one, is printed.
            if ended.code is None or isinstance(ended.code, int):
                code = ended.code or 0
            else:
                print_text(f"loadgen: {clean_text(str(ended.code))}", sys.stderr)
                code = ExitCode.NOTHING
        files.remove_temporary_directories()
        if not flush_standard_streams():  # a full disk
            code = code or ExitCode.UNWRITTEN
    os._exit(code)


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
            if verb not in VERBS:
                raise UsageError(
                    f"no command {quote_value(verb)}{suggest_name(verb, VERBS)}; there are {', '.join(VERBS)}"
                )
            command = VERBS[verb].load()
            return int(command(arguments))
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
