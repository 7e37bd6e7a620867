"""`loadgen campaign`: checkpoints × servers × profiles from one file, each cell several times."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from loadgen.base.errors import LoadgenError, MeasureError, UsageError
from loadgen.base.parsing import Parser, parse_arguments
from loadgen.base.text import clean_text
from loadgen.host import sensor_discovery
from loadgen.plan.plan_inputs import Seed
from loadgen.report import run_place
from loadgen.report.printing import printed
from loadgen.run import progress, signals
from loadgen.run.credentials import api_key
from loadgen.settings import table
from loadgen.settings.server import KeyOptions
from loadgen.study.series import arms, file, matrix, record, store
from loadgen.study.series.arms import Arm
from loadgen.study.series.cooling import Cooling
from loadgen.study.series.execution import Execution
from loadgen.study.series.file import File
from loadgen.study.series.kept_directory import StoreError
from loadgen.study.series.matrix import ONCE, Start
from loadgen.study.series.preview import Preview
from loadgen.study.series.store import Store
from loadgen.study.series.time_estimate import Pace
from loadgen.study.series.trust import Trust

_HERE = ""  # --resume without a directory: the latest


class CampaignRequest(msgspec.Struct, frozen=True):
    """A campaign as the command line and its file have it."""

    path: Path
    trust: Trust
    file: File
    arms: tuple[Arm, ...]
    starts: tuple[Start, ...]


def main(argv: Sequence[str]) -> int:
    """Run the command; 0 where any cell is finished."""
    given = parse_arguments(campaign_parser(), argv)
    if given.file is None and given.resume in (None, _HERE):
        for name, path in file.shipped().items():
            printed(f"{name:<20} {file.load(path).description}", sys.stdout)
        own = "loadgen campaign FILE.toml"
        printed(f"loadgen campaign NAME --dry-run shows one; a file of your own: {own}", sys.stdout)
        return 0
    if given.retry_failed and given.resume is None:
        raise UsageError("--retry-failed needs --resume: a new campaign has no failed cells")
    kept = _kept(given)
    wanted = _wanted(given, kept)
    if given.dry_run:
        printed(_preview(wanted, kept, given.retry_failed).render(), sys.stdout)
        return 0
    if unset := sorted({name for arm in wanted.arms for name in arm.missing}):
        raise UsageError(f"{wanted.path}: {', '.join(unset)} not set in the environment: export {unset[0]}=…")
    arms.check_allowed(wanted.trust, wanted.path, wanted.arms)
    for line in arms.key_lines(wanted.trust, wanted.arms):
        printed(f"loadgen: {line}", sys.stderr)
    if kept is None:
        name, now = wanted.file.name, run_place.now()
        kept = Store(run_place.create_directory(Path(given.run_dir), name, now))
    return _run(wanted, kept, given)


def campaign_parser() -> argparse.ArgumentParser:
    """The flags of `loadgen campaign`."""
    parser = Parser(
        prog="loadgen campaign",
        allow_abbrev=False,
        description="Measure checkpoints on servers under workloads, each several times, from one file.",
        epilog="Without a file: the shipped campaigns. `loadgen campaign demo`: half a minute, no server.",
    )
    add = parser.add_argument
    add("file", nargs="?", metavar="FILE.toml|NAME", help="a campaign file, or the name of a shipped one")
    add("--run-dir", metavar="DIR", default="runs", help="parent of its directory (default: runs)")
    add("--resume", nargs="?", const=_HERE, metavar="DIR",
        help="resume a campaign: its directory, or the latest of this name in --run-dir")  # fmt: skip
    add("--retry-failed", action="store_true", help="with --resume: measure failed cells again")
    add("--repeats", type=int, metavar="N", help="instead of the file's; with --resume, more than before")
    add("--only", metavar="CHECKPOINT[,…]", help="only these checkpoints")
    add("--dry-run", action="store_true", help="show matrix, order, commands and time, then exit")
    add("--allow-launch", action="store_true",
        help="allow the file to start servers: it runs programs as you")  # fmt: skip
    add("--allow-env", action="append", default=[], metavar="NAME",
        help="allow the file to read this environment variable (repeatable)")  # fmt: skip
    table.add_flags(parser, KeyOptions.rows)
    add("--quiet", action="store_true", help="no progress; only failures and the comparison")
    return parser


def _kept(given: argparse.Namespace) -> Store | None:
    """The directory of the campaign that goes on; None where one begins."""
    if given.resume is None:
        return None
    if given.resume == _HERE:
        return store.latest(Path(given.run_dir), file.load(file.locate(given.file)).name)
    if given.resume.endswith(".toml"):
        raise UsageError("--resume takes the campaign's directory: put the file before it")
    kept = Store(Path(given.resume))
    _ = kept.record  # raises where it is missing
    return kept


def _wanted(given: argparse.Namespace, kept: Store | None) -> CampaignRequest:
    """The campaign asked for, checked as far as can be without starting anything; raises UsageError."""
    path = Path(kept.record.file) if given.file is None and kept is not None else file.locate(given.file)
    if given.file is None and not path.is_file():
        raise UsageError(f"{path}, the file of this campaign, is gone: give its new path")
    campaign = file.load(path)
    if given.repeats is not None:
        if not 1 <= given.repeats <= 1000:
            raise UsageError(f"--repeats {given.repeats}: give 1 or more")
        campaign = campaign.model_copy(update={"repeats": given.repeats})
    only = [] if given.only is None else [name.strip() for name in given.only.split(",")]
    trust = _trust(given).of(path)
    chosen = arms.made(campaign, path, only, trust)
    return CampaignRequest(path, trust, campaign, chosen, _starts(campaign, chosen))


def _trust(given: argparse.Namespace) -> Trust:
    """What the command line lets the file do; raises UsageError where its key is not valid."""
    for name in given.allow_env:
        if not re.fullmatch(r"\w+", name):
            raise UsageError(f"--allow-env {name!r}: give the name of one variable")
    if given.api_key_env or given.api_key_file:
        api_key(given.api_key_env, given.api_key_file)
    return Trust(given.allow_launch, tuple(given.allow_env), given.api_key_env, given.api_key_file)


def _starts(campaign: File, chosen: tuple[Arm, ...]) -> tuple[Start, ...]:
    return matrix.starts(campaign.name, chosen, campaign.repeats, campaign.starts == ONCE)


def _done(kept: Store, retry_failed: bool) -> set[str]:
    """Cells that are not measured again."""
    return kept.finished() | (set() if retry_failed else kept.failed())


def _preview(wanted: CampaignRequest, kept: Store | None, retry_failed: bool) -> Preview:
    done, pace, seed = set[str](), Pace(), wanted.file.seed
    if kept is not None:
        done, pace, seed = _done(kept, retry_failed), Pace.of(kept), kept.record.seed
        _record(wanted, kept, retry_failed)
    return Preview(wanted.file, wanted.arms, wanted.starts, done, pace, seed, wanted.trust)


def _record(wanted: CampaignRequest, kept: Store | None, retry_failed: bool) -> record.CampaignRecord:
    """The campaign's record in the directory; raises UsageError where the file has changed since."""
    every = arms.made(wanted.file, wanted.path, trust=wanted.trust)
    asked = record.made(wanted.file, wanted.path, every, _starts(wanted.file, every), run_place.now())
    if kept is None:
        return asked
    if changed := list(record.differences(kept.record, asked, kept.ran(failed=not retry_failed))):
        raise UsageError(
            f"{wanted.path} has changed since {kept.directory} was run: {'; '.join(changed)}: "
            "restore it, or start another campaign"
        )
    return record.continued(kept.record, asked)


def _run(wanted: CampaignRequest, kept: Store, given: argparse.Namespace) -> int:
    def say(line: str) -> None:
        if not given.quiet:
            printed(clean_text(line), sys.stdout)

    again = [str(wanted.path), "--resume", str(kept.directory), *wanted.trust.words]
    resume = shlex.join(["loadgen", "campaign", *again])
    with kept.locked():
        campaign = _record(wanted, None if given.resume is None else kept, given.retry_failed)
        kept.clear()
        kept.write(campaign)
        cool, shown = wanted.file.cool_down, progress.display(given.quiet)
        execution = Execution(
            store=kept,
            starts=wanted.starts,
            seed=Seed(campaign.seed, campaign.seed_chosen),
            done=_done(kept, given.retry_failed),
            pace=Pace.of(kept),
            say=say,
            quiet=given.quiet,
            cooling=None if cool is None else Cooling(cool, sensor_discovery.find_sensors(), say, shown),
            limit=wanted.file.limit,
        )
        try:
            execution.run()
        except KeyboardInterrupt as stop:
            printed(f"\ninterrupted: {_state(wanted, kept)}\nresume with: {resume}", sys.stdout)
            return signals.exit_code(signals.number_of(stop))
        except StoreError as error:
            raise StoreError(f"{error}; {_state(wanted, kept)}; when it can be written: {resume}") from None
        finally:
            kept.drop()
    return _end(wanted, kept, resume)


def _state(wanted: CampaignRequest, kept: Store) -> str:
    every = {planned.id for planned in matrix.cells_of(wanted.starts)}
    failed = f", {count} failed" if (count := len(every & kept.failed())) else ""
    return f"{len(every & kept.finished())} of {len(every)} cells are finished{failed}"


def _end(wanted: CampaignRequest, kept: Store, resume: str) -> int:
    """What came of it: the comparison, and where everything is."""
    if not kept.finished():
        raise MeasureError(f"every cell failed; the reasons are in {kept.directory / store.FAILED}")
    printed("", sys.stdout)
    _compare(kept)
    where = shlex.quote(str(kept.directory))
    printed(f"\n{_state(wanted, kept)}: {kept.directory}", sys.stdout)
    if kept.failed():
        printed(f"retry the failed cells: {resume} --retry-failed", sys.stdout)
    printed(f"again:   loadgen compare {where}\nto see:  loadgen report --html {where}", sys.stdout)
    return 0


def _compare(kept: Store) -> None:
    from loadgen.study.compare import compare_command, comparison_report, limits, model
    from loadgen.study.compare.model import ComparisonOptions
    from loadgen.study.importers import result_sources

    places = [str(kept.directory)]
    try:
        read = result_sources.read_sources(places)
        compare_command.report_unread(read.errors)
        ask = ComparisonOptions(campaign=model.read_campaign_settings(places))
        if read.limits:
            printed(
                clean_text(compare_command.render_text((), limits.compare_limits(read.limits, ask))),
                sys.stdout,
            )
        if tables := compare_command.compare_sources(read, ask):
            printed(clean_text(comparison_report.render_text(tables)), sys.stdout, end="")
    except LoadgenError as error:  # the runs are there all the same
        printed(f"loadgen: {error}", sys.stderr)
