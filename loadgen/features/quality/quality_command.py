"""`loadgen quality`: how far a served checkpoint's distribution is from a reference's."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from msgspec.structs import replace

from loadgen.base import signals
from loadgen.base.errors import MeasureError, UsageError, decide_exit_code
from loadgen.base.parsing import Parser
from loadgen.base.printing import print_text
from loadgen.base.signals import SIGNALS, Interrupts
from loadgen.base.text import clean_text, format_count
from loadgen.features.quality import quality_lines
from loadgen.features.quality.probability_server import ProbabilityServer, probe_server
from loadgen.features.quality.quality_run import QualityRun, record_reference
from loadgen.features.quality.quality_settings import QUALITY, QualityOptions
from loadgen.features.quality.quality_text import QualityPlan, read_text
from loadgen.features.quality.reference_file import ReferenceContents, read_reference
from loadgen.plan import profile
from loadgen.run.attach import attach, collect_settings
from loadgen.run.command import bench, progress
from loadgen.run.command.options import DEFAULT_URL, Launching, Options, add_unlisted_flags, parse
from loadgen.run.command.progress import Display
from loadgen.run.live_display import choose_display
from loadgen.settings import table
from loadgen.settings.setting import LAUNCH, OUTPUT, RUN, SERVER, make_option_struct
from loadgen.settings.table import TABLE

if TYPE_CHECKING:

    class _Request(QualityOptions, frozen=True):
        """The type of each of these rows, for checkers."""

else:
    _Request = make_option_struct("_Request", QualityOptions)

_NAMES = frozenset(row.name for row in QualityOptions.rows)
_OTHERS = {RUN: ("quiet",), OUTPUT: ("run_dir", "json")}  # the only flags of these groups that apply
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
    with ExitStack() as stack:
        sides = open_sides(options, request, stack)
        if sides.kept is not None and sides.kept.damage:
            why = f"what follows its whole lines is left out: {sides.kept.damage}"
            progress.warn(f"{request.reference}: {why}")
        if request.save is not None:
            kept, code = _save_reference(sides, Path(request.save), options.quiet)
            if code or sides.reference is None:
                return code
            sides = sides._replace(reference=None, kept=kept)
        shown = choose_display(options.quiet)
        return _measure(QualityRun(*sides, show=shown.draw), shown, request.margin, options.json)


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


class Sides(NamedTuple):
    """What is measured, and what a candidate is held to: a server that is up, or what a file has."""

    candidate: ProbabilityServer  # without a reference, what becomes one
    plan: QualityPlan
    reference: ProbabilityServer | None
    kept: ReferenceContents | None


def open_sides(
    options: Options, request: QualityRequest, stack: ExitStack, interrupts: Interrupts = SIGNALS
) -> Sides:
    """Read the text and the file of a request, and start or reach its servers, which end with `stack`.

    Raises LoadgenError for what cannot be read or reached, reports no log-probabilities, or cannot score
    what --save keeps.
    """
    text, kept = read_text(None if request.text is None else Path(request.text)), None
    plan = QualityPlan(text, request.tokens, request.answer_tokens, request.precision, request.chat)
    if request.reference is not None:
        kept = read_reference(Path(request.reference))
        plan = plan.follow_settings(kept.header.settings)
    candidate = open_server(options, stack, interrupts)
    reference = open_reference(options, request, stack, interrupts)
    if request.save is not None and reference is not None and not candidate.scores:
        raise UsageError(
            f"--save keeps a reference's answers, and {candidate.engine} cannot score them: leave out "
            "--save, and it samples itself"
        )
    return Sides(candidate, plan, reference, kept)


def open_server(options: Options, stack: ExitStack, interrupts: Interrupts = SIGNALS) -> ProbabilityServer:
    """Start or reach a server, and find out what it reports; it ends with `stack` if it was started here.

    Raises LoadgenError where it is not there, or reports no log-probabilities.
    """
    workload = profile.build({})
    session = attach(options, collect_settings(options, [workload]), workload, stack, interrupts)
    stack.enter_context(session.access.secrets.hide_in_errors())  # servers repeat what they are sent
    server = ProbabilityServer.of_session(session)
    with choose_display(options.quiet).waiting(f"trying {server.access.shown_url}"):
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
    except (UsageError, MeasureError) as error:
        error.args = (f"of --reference-url: {error.args[0]}", *error.args[1:])
        raise


def _save_reference(sides: Sides, path: Path, quiet: bool) -> tuple[ReferenceContents, int]:
    """Keep what the reference samples in a file, print what is in it, and return it with the exit code."""
    shown, signal = choose_display(quiet), 0
    try:
        record_reference(sides.reference or sides.candidate, sides.plan, path, shown.draw)
    except KeyboardInterrupt as stop:
        if not path.exists():
            raise
        signal = signals.read_number(stop)
    except MeasureError as error:
        if not _has_begun(path):
            raise
        raise MeasureError(f"{error}; what was measured is kept: the same command goes on with it") from None
    finally:
        shown.close()
    _warn_of_repeats(sides.reference or sides.candidate)
    kept = read_reference(path)
    print_text(clean_text("\n".join(quality_lines.list_reference_lines(kept, path))), sys.stderr)
    if signal:
        progress.warn("interrupted: the same command goes on with this file")
    return kept, decide_exit_code(signal=signal, measured=bool(kept.answers))


def _has_begun(path: Path) -> bool:
    """Whether a file has answers, or scores of the text, of a reference."""
    try:
        kept = read_reference(path)
    except UsageError:
        return False
    return bool(kept.answers or kept.segments)


def _warn_of_repeats(*servers: ProbabilityServer | None) -> None:
    """Warn of the requests that were sent again, by the server that did not answer them."""
    for server in servers:
        if server is not None and server.sent_again:
            why = Counter(server.sent_again).most_common(1)[0][0]
            count = format_count(len(server.sent_again), "request")
            progress.warn(
                server.access.secrets.hide(
                    f"{server.access.shown_url}: {count} sent again, mostly since {why}"
                )
            )


def _measure(run: QualityRun, shown: Display, margin: float, is_json: bool) -> int:
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
    if is_json:
        print_text(quality.model_dump_json(indent=2), sys.stdout)
    else:
        lines = quality_lines.list_quality_lines(quality, margin)
        print_text(clean_text("\n".join(lines)), sys.stdout)
    if signal:
        progress.warn(f"interrupted: the figures are of {format_count(len(run.answers.lines), 'answer')}")
    _warn_of_repeats(run.candidate, run.reference)
    if failed is not None:
        progress.warn(run.candidate.access.secrets.hide(str(failed)))
    measured = quality.kl is not None or quality.bits_per_byte is not None
    return decide_exit_code(signal=signal, measured=measured, whole=failed is None)
