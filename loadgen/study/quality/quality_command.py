"""Quality command: `loadgen quality` and `loadgen.quality`: how far a checkpoint is from a reference."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Unpack, cast

from msgspec import Meta

from loadgen.base import signals
from loadgen.base.errors import MeasureError, UsageError, decide_exit_code
from loadgen.base.parsing import MOST_TOKENS, Parser, integer_between, number_between
from loadgen.base.passages import render_passage
from loadgen.base.printing import print_text
from loadgen.base.signals import Interrupts, StopRequest
from loadgen.base.structs import replace
from loadgen.base.text import clean_text, format_count
from loadgen.plan import profile
from loadgen.report.run import Place
from loadgen.run.attach import attach, collect_settings
from loadgen.run.command import bench, keywords, progress
from loadgen.run.command.api import BackgroundRun, Interrupted
from loadgen.run.command.options import DEFAULT_URL, Launching, Options, add_unlisted_flags, parse
from loadgen.run.command.progress import Display
from loadgen.run.live_display import choose_display
from loadgen.run.session import Session
from loadgen.settings import table
from loadgen.settings.keyword_types import BenchOptions
from loadgen.settings.setting import LAUNCH, OUTPUT, RUN, SERVER, Makes, Setting, list_rows
from loadgen.settings.table import TABLE
from loadgen.study.quality.arm_qualities import RowQuality, make_quality_passage
from loadgen.study.quality.probability_server import open_servers
from loadgen.study.quality.quality_record import MARGIN, Quality
from loadgen.study.quality.quality_run import QualityRun, record_reference
from loadgen.study.quality.quality_text import ANSWER_TOKENS, TOKENS, QualityPlan, read_text
from loadgen.study.quality.reference_file import GREEDY, ReferenceContents, read_reference

QUALITY = "the quality (docs/quality.md)"
_MOST_NATS = 100.0

_quality = partial(Setting, Makes.NOTHING, group=QUALITY)


@dataclass(frozen=True)
class QualityRequest:
    """The settings of a measurement of quality, as given."""

    # fmt: off
    reference_url: Annotated[str | None, _quality("address of the reference, a server that is up too and "
        "gets the same key and headers", metavar="URL")] = None
    reference_model: Annotated[str | None, _quality("model of the reference server (default: the first in "
        "/v1/models)", metavar="NAME")] = None
    reference: Annotated[str | None, _quality("file in which --save kept the reference",
        metavar="FILE")] = None
    save: Annotated[str | None, _quality("keep the responses and scores of a reference in this file; a file "
        "that is there goes on (with --reference-url: of that server)", metavar="FILE")] = None
    text: Annotated[str | None, _quality("text to score, in UTF-8 (default: the one that is shipped)",
        metavar="FILE")] = None
    tokens: Annotated[int, _quality(f"number of tokens to sample, in all responses (default {TOKENS})",
        read=integer_between(1, MOST_TOKENS), metavar="N")] = TOKENS
    answer_tokens: Annotated[int, _quality(f"most tokens of a response (default {ANSWER_TOKENS})",
        read=integer_between(1, MOST_TOKENS), metavar="N")] = ANSWER_TOKENS
    precision: Annotated[float | None, _quality("stop once KL is within ± NATS a token",
        read=number_between(1e-6, _MOST_NATS), metavar="NATS")] = None
    margin: Annotated[float, _quality(f"KL up to NATS a token counts as the same (default {MARGIN})",
        read=number_between(1e-6, _MOST_NATS), metavar="NATS")] = MARGIN
    chat: Annotated[bool, _quality("sample responses to chats with one message")] = False
    greedy: Annotated[bool, _quality("compare greedy responses, as without log-probabilities")] = False
    # fmt: on

    def check(self) -> None:
        """Raise UsageError for two references, for none without --save, and for --reference with --save."""
        sides = (self.reference_url, self.reference)
        if None not in sides:
            raise UsageError("--reference-url and --reference are two references: leave out one of them")
        if sides == (None, None) and self.save is None:
            raise UsageError(
                "nothing to compare with: pass --reference-url URL where the reference is up too, else keep "
                "it with --save FILE while it is served, and pass --reference FILE later"
            )
        if self.reference is not None and self.save is not None:
            raise UsageError("--save keeps a reference, and --reference has one: leave out --save")


_NAMES = frozenset(each.name for each in fields(QualityRequest))
_OTHERS = {RUN: ("quiet",), OUTPUT: ("run_dir", "json")}  # the only flags of these groups that apply
_OF_A_LOAD = ("backend", "endpoint", "preset")  # of the server's, those that do not


def main(argv: Sequence[str]) -> int:
    """Run `loadgen quality`, print what was measured, and return the exit code."""
    options, request = parse_quality(argv)
    asked = StopRequest()  # a signal ends what waits for a server in order, a second one all at once
    with ExitStack() as stack, signals.defer_stop(signals.SIGNALS, asked.request_stop):
        run, shown = open_run(options, request, stack, asked), choose_display(options.quiet)
        run.show = shown.draw
        if run.kept is not None and run.kept.damage:
            why = f"what follows its whole lines is left out: {run.kept.damage}"
            progress.warn(f"{request.reference}: {why}")
        if request.save is not None:
            kept, code = _save_reference(run, Path(request.save), shown)
            if code or run.reference is None:
                return code
            run = replace(run, reference=None, kept=kept)
        return _measure(run, shown, request.margin, options.json)


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
    table.add_flags(parser.add_argument_group(QUALITY), list_rows(QualityRequest))
    table.add_groups(parser, (SERVER, LAUNCH), [row for row in TABLE if row.name not in _OF_A_LOAD])
    for title, names in _OTHERS.items():
        rows = [row for row in table.list_flags(title, TABLE) if row.name in names]
        table.add_flags(parser.add_argument_group(title), rows)
    add_unlisted_flags(parser)
    return parser


def open_run(
    options: Options, request: QualityRequest, stack: ExitStack, interrupts: Interrupts
) -> QualityRun:
    """Read the text and the file of a request, and start or reach its servers, which end with `stack`.

    Without a reference the candidate becomes one. Raises LoadgenError for what cannot be read or reached, or
    cannot score what --save keeps.
    """
    text, kept = read_text(None if request.text is None else Path(request.text)), None
    plan = QualityPlan(text, request.tokens, request.answer_tokens, request.precision, request.chat)
    if request.reference is not None:
        kept = read_reference(Path(request.reference))
        plan = plan.follow_settings(kept.header.settings)
    sessions = [_open_session(options, stack, interrupts)]
    if request.reference_url is not None:
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
            sessions.append(_open_session(there, stack, interrupts))
        except (UsageError, MeasureError) as error:
            error.args = (f"of --reference-url: {error.args[0]}", *error.args[1:])
            raise
    greedy = request.greedy or (kept is not None and bool(kept.header.settings.get(GREEDY)))
    with choose_display(options.quiet).waiting(f"trying {sessions[0].access.shown_url}"):
        servers, why = open_servers(sessions, plan.chat, greedy)
    run = QualityRun(servers[0], plan, (*servers, None)[1], kept, why={"kl": why} if why else {})
    if request.save is not None and run.reference is not None and not run.candidate.scores:
        raise UsageError(
            f"--save keeps a reference's responses, and {run.candidate.engine} cannot score them: leave out "
            "--save, and it samples itself"
        )
    return run


def _open_session(options: Options, stack: ExitStack, interrupts: Interrupts) -> Session:
    workload = profile.build({})
    session = attach(options, collect_settings(options, [workload]), workload, stack, interrupts)
    stack.enter_context(session.access.secrets.hide_in_errors())  # servers repeat what they are sent
    return session


def _save_reference(run: QualityRun, path: Path, shown: Display) -> tuple[ReferenceContents, int]:
    """Record the reference in a file; return what the file then has, and the exit code, also after Ctrl-C."""
    signal = 0
    try:
        record_reference(run.reference or run.candidate, run.plan, path, run.show)
    except KeyboardInterrupt as stop:
        if not path.exists():
            raise
        signal = signals.read_number(stop)
    except MeasureError as error:
        if path.exists():
            kept = "what was measured is kept: the same command goes on with it"
            raise MeasureError(f"{error}; {kept}") from None
        raise
    finally:
        shown.close()
    _warn_of_resends(run)
    saved = read_reference(path)
    count = len(saved.answers or saved.greedy)
    kind = "greedy response" if saved.greedy else "response"
    print_text(clean_text(f"{path}: {format_count(count, kind)} of {saved.header.model}"), sys.stderr)
    if signal:
        progress.warn("interrupted: the same command goes on with this file")
    return saved, decide_exit_code(signal=signal, measured=count > 0)


def _warn_of_resends(run: QualityRun) -> None:
    for server in (run.candidate, run.reference):
        if server is not None and server.sent_again:
            why = Counter(server.sent_again).most_common(1)[0][0]
            count = format_count(len(server.sent_again), "request")
            progress.warn(
                server.access.secrets.hide(
                    f"{server.access.shown_url}: {count} sent again, mostly since {why}"
                )
            )


def _measure(run: QualityRun, shown: Display, margin: float, is_json: bool) -> int:
    """Measure and print the quality, of what was answered until Ctrl-C or a failure; return the exit code."""
    signal, failed = 0, None
    try:
        run.measure()
    except KeyboardInterrupt as stop:
        if not run.is_begun:
            raise
        signal = signals.read_number(stop)
        run.note_end("interrupted before two responses were scored")
    except MeasureError as error:
        if not run.is_begun:
            raise
        failed = error
        run.note_end("a server failed before two responses were scored")
    finally:
        shown.close()
    quality = run.judge()
    if is_json:
        print_text(quality.model_dump_json(indent=2), sys.stdout)
    else:
        passage = make_quality_passage([RowQuality(quality.candidate, quality, margin)])
        print_text(clean_text(render_passage(passage)), sys.stdout, end="")
    if signal:
        progress.warn(f"interrupted: the figures are of {format_count(run.answered, 'response')}")
    _warn_of_resends(run)
    if failed is not None:
        progress.warn(run.candidate.access.secrets.hide(str(failed)))
    measured = any((quality.kl, quality.bits_per_byte, quality.same_answers))
    return decide_exit_code(signal=signal, measured=measured, whole=failed is None)


class QualityKeywords(BenchOptions, total=False):
    """The options of `quality`: its own, and those of `bench` that are of the server."""

    reference_model: str  # by default the first in /v1/models
    save: str  # file that keeps what the reference samples, and goes on with it
    text: str  # file of the text to score
    tokens: Annotated[int, Meta(ge=1)]  # of all answers
    answer_tokens: Annotated[int, Meta(ge=1)]  # of one, at most
    precision: Annotated[float, Meta(gt=0)]  # of KL, in nats a token, at which to stop
    chat: bool
    greedy: bool  # answers, compared as where a server has no log-probabilities


@keywords.add_keyword_signature(QualityKeywords)
def quality(
    base_url: str | None = None, reference: Place | None = None, **options: Unpack[QualityKeywords]
) -> Quality | None:
    """Measure how far a served model's distribution is from a reference's; docs/quality.md has the figures.

    `reference` is the address of its server, or the file that `save` kept of it. Without one, `save` keeps
    what the server at `base_url` samples, as a reference for later, and None is returned. Nothing is printed.

    Raises LoadgenError where an option is wrong or a server does not answer, and Interrupted on Ctrl-C, which
    leaves what `save` has.
    """
    given = keywords.check_keywords(cast("Mapping[str, Any]", options), QualityKeywords, "quality()")
    own = {name: given.pop(name) for name in _NAMES if name in given}
    place = None if reference is None else os.fspath(reference)
    is_url = place is not None and place.startswith(("http://", "https://"))
    own |= {"reference_url" if is_url else "reference": place}
    request = QualityRequest(**own)
    request.check()
    asked = keywords.make_options(base_url or DEFAULT_URL, given)
    try:
        return BackgroundRun(lambda interrupts: _measure_silently(asked, request, interrupts)).wait()
    except KeyboardInterrupt:
        raise Interrupted(None) from None


def _measure_silently(options: Options, request: QualityRequest, interrupts: Interrupts) -> Quality | None:
    """Measure as `quality`; None where a reference was saved and nothing compared."""
    with ExitStack() as stack:
        run = open_run(options, request, stack, interrupts)
        if request.save is not None:
            record_reference(run.reference or run.candidate, run.plan, Path(request.save))
            if run.reference is None:
                return None
            run = replace(run, reference=None, kept=read_reference(Path(request.save)))
        run.measure()
        return run.judge()
