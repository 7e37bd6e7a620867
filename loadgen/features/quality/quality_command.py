"""`loadgen quality`: how far a served checkpoint's distribution is from a reference's."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from loadgen.base import signals
from loadgen.base.errors import MeasureError, UsageError, decide_exit_code
from loadgen.base.parsing import Parser
from loadgen.base.printing import print_text
from loadgen.base.signals import SIGNALS, Interrupts
from loadgen.base.text import clean_text, format_count
from loadgen.features.quality import quality_lines, quality_run
from loadgen.features.quality.probability_server import ProbabilityServer, probe_server
from loadgen.features.quality.quality_run import QualityRun
from loadgen.features.quality.quality_settings import QUALITY, QualityOptions
from loadgen.features.quality.quality_text import QualityPlan, read_text
from loadgen.features.quality.reference_file import ReferenceContents, read_reference
from loadgen.plan import profile
from loadgen.run.attach import attach, collect_settings
from loadgen.run.command import bench, progress
from loadgen.run.command.options import DEFAULT_URL, TABLE, Launching, Options, add_unlisted_flags, parse
from loadgen.run.command.progress import Display
from loadgen.settings import table
from loadgen.settings.setting import LAUNCH, OUTPUT, RUN, SERVER, make_option_struct

if TYPE_CHECKING:

    class _Request(QualityOptions, frozen=True):
        """The type of each of these rows, for checkers."""

else:
    _Request = make_option_struct("_Request", QualityOptions)

_NAMES = frozenset(row.name for row in QualityOptions.rows)
_OTHERS = {RUN: ("quiet",), OUTPUT: ("run_dir",)}  # the only flags of these groups that apply
_OF_A_LOAD = ("backend", "endpoint", "preset")  # of the server's, those that do not


class QualityRequest(_Request, frozen=True):
    """The settings of a measurement of quality, as given."""

    def check(self) -> None:
        """Raise UsageError for two references, none without a file to keep one in, and one to keep again."""
        sides = (self.reference_url, self.reference)
        if None not in sides:
            raise UsageError("--reference-url and --reference are two references: leave out one of them")
        if sides == (None, None) and self.save is None:
            raise UsageError(
                "nothing to compare with: pass --reference-url URL where the reference is up too, else keep "
                "it with --save FILE while it is served, and pass --reference FILE later"
            )
        if self.reference is not None and self.save is not None:
            raise UsageError("--save keeps a reference's answers, and --reference has them: leave out --save")


def main(argv: Sequence[str]) -> int:
    """Run `loadgen quality`, print what was measured, and return the exit code.

    What a signal or the server's end cuts short is printed as far as it was measured.
    """
    options, request = parse_quality(argv)
    plan = make_plan(request)
    kept = None
    if request.reference is not None:
        kept = read_reference(Path(request.reference))
        plan = plan.follow_settings(kept.header.settings)
        if kept.damage:
            progress.warn(f"{request.reference}: what follows its whole lines is left out: {kept.damage}")
    with ExitStack() as stack:
        server = open_server(options, stack)
        reference = open_reference(options, request, stack)
        if request.save is not None:
            sampler = reference or server
            _check_scoring(server if reference is not None else None)
            kept, code = _save_reference(sampler, plan, Path(request.save), options.quiet)
            if code or reference is None:
                return code
            reference = None
        shown = progress.display(options.quiet)
        run = QualityRun(server, plan, reference, kept, show=shown.draw)
        return _measure(run, shown, request)


def parse_quality(argv: Sequence[str]) -> tuple[Options, QualityRequest]:
    """Parse the command line into the options of the server and those of the quality; raises UsageError."""
    options = parse(argv, quality_parser())
    own: dict[str, Any] = {name: value for name, value in options.overrides.items() if name in _NAMES}
    request = QualityRequest(**own)
    rest = {name: value for name, value in options.overrides.items() if name not in _NAMES}
    options = replace(options, overrides=cast(Any, rest))
    if options.more_urls:
        raise UsageError(
            "--base-url: one candidate at a time; --reference-url is the server that it is held to"
        )
    if options.embedded:
        options = replace(options, base_url=DEFAULT_URL)
    request.check()
    bench.check(options)
    return options, request


def quality_parser() -> argparse.ArgumentParser:
    """Make the parser of `loadgen quality`; flags that are not given are absent from its result."""
    parser = Parser(
        prog="loadgen quality",
        usage="%(prog)s --base-url URL --reference-url URL [FLAG ...]",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        description="Measure how far a served checkpoint's distribution is from a reference's: KL "
        "divergence, agreement, perplexity and bits per byte, with 95 % intervals: docs/quality.md.",
        epilog=f"Without an address the candidate is at {DEFAULT_URL}.",
    )
    table.add_flags(parser.add_argument_group(QUALITY), QualityOptions.rows)
    table.add_groups(parser, (SERVER, LAUNCH), [row for row in TABLE if row.name not in _OF_A_LOAD])
    for title, names in _OTHERS.items():
        rows = [row for row in table.list_flags(title, TABLE) if row.name in names]
        table.add_flags(parser.add_argument_group(title), rows)
    add_unlisted_flags(parser)
    return parser


def make_plan(request: QualityRequest) -> QualityPlan:
    """Make the plan of what is measured; raises UsageError for a text that cannot be read."""
    return QualityPlan(
        read_text(None if request.text is None else Path(request.text)),
        request.tokens,
        request.answer_tokens,
        request.precision,
        request.chat,
    )


def open_server(options: Options, stack: ExitStack, interrupts: Interrupts = SIGNALS) -> ProbabilityServer:
    """Start or reach a server, and find out what it reports; it ends with `stack` if it was started here.

    Raises LoadgenError where it is not there, or reports no log-probabilities.
    """
    workload = profile.build({})
    session = attach(options, collect_settings(options, [workload]), workload, stack, interrupts)
    stack.enter_context(session.access.secrets.hide_in_errors())  # servers repeat what they are sent
    server = ProbabilityServer.of_session(session)
    with progress.display(options.quiet).waiting(f"trying {server.access.shown_url}"):
        return probe_server(server)


def open_reference(
    options: Options, request: QualityRequest, stack: ExitStack, interrupts: Interrupts = SIGNALS
) -> ProbabilityServer | None:
    """Open the server of --reference-url; None without one. Errors are as of `open_server`, and name it."""
    if request.reference_url is None:
        return None
    there = replace(
        options,
        base_url=request.reference_url,
        default_url=False,
        default_port=False,
        launching=Launching(),
        model=request.reference_model,
        served_model_name=None,
    )
    try:
        return open_server(there, stack, interrupts)
    except UsageError as error:
        raise UsageError(f"of --reference-url: {error}") from None


def _check_scoring(candidate: ProbabilityServer | None) -> None:
    """Raise UsageError for a candidate that cannot score what --save keeps."""
    if candidate is not None and not candidate.scores:
        raise UsageError(
            f"--save keeps a reference's answers, and {candidate.engine} cannot score them: leave out "
            "--save, and it samples itself"
        )


def _save_reference(
    server: ProbabilityServer, plan: QualityPlan, path: Path, quiet: bool
) -> tuple[ReferenceContents, int]:
    """Keep what a server samples in a file, print what is in it, and return it with the exit code."""
    shown, signal = progress.display(quiet), 0
    try:
        quality_run.record_reference(server, plan, path, shown.draw)
    except KeyboardInterrupt as stop:
        if not path.exists():
            raise
        signal = signals.read_number(stop)
    finally:
        shown.close()
    kept = read_reference(path)
    print_text(clean_text("\n".join(quality_lines.list_reference_lines(kept, path))), sys.stderr)
    if signal:
        progress.warn("interrupted: the same command goes on with this file")
    return kept, decide_exit_code(signal=signal, measured=bool(kept.answers))


def _measure(run: QualityRun, shown: Display, request: QualityRequest) -> int:
    """Measure a candidate, print its quality, and return the exit code."""
    signal, failed = 0, None
    try:
        run.measure()
    except KeyboardInterrupt as stop:
        if not run.is_begun:
            raise
        signal = signals.read_number(stop)
        run.note_end("interrupted before two answers were scored")
    except MeasureError as error:
        if not run.is_begun:
            raise
        failed = error
        run.note_end("a server failed before two answers were scored")
    finally:
        shown.close()
    quality = run.judge()
    if request.json:
        print_text(quality.model_dump_json(indent=2), sys.stdout)
    else:
        lines = quality_lines.list_quality_lines(quality, request.margin)
        print_text(clean_text("\n".join(lines)), sys.stdout)
    if signal:
        progress.warn(f"interrupted: the figures are of {format_count(len(run.answers.lines), 'answer')}")
    if failed is not None:
        progress.warn(run.candidate.access.secrets.hide(str(failed)))
    measured = quality.kl is not None or quality.bits_per_byte is not None
    return decide_exit_code(signal=signal, measured=measured, whole=failed is None)
