"""`loadgen campaign`: checkpoints × servers × profiles from one file, each cell several times."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec

from loadgen.base import files
from loadgen.base.clock import read_wall_clock
from loadgen.base.errors import LoadgenError, MeasureError, UsageError
from loadgen.base.parsing import Parser, parse_arguments, suggest_name
from loadgen.base.passages import print_passages
from loadgen.base.printing import (
    add_json_flag,
    print_json,
    print_one_object,
    print_text,
    refuse_without_result,
)
from loadgen.base.secrecy import hide_secrets
from loadgen.base.text import align_cells, format_count, wrap_chain, wrap_text
from loadgen.features.sensors import sensor_discovery
from loadgen.plan.request_sources import Seed
from loadgen.run.command.credentials import read_api_key
from loadgen.run.live_display import choose_display
from loadgen.settings import table
from loadgen.settings.server_settings import KeyOptions
from loadgen.settings.setting import list_rows
from loadgen.study import compare_command
from loadgen.study.answer.answer import CheckpointAnswer, make_answer
from loadgen.study.answer.answer_settings import ANSWER, AnswerSettings, read_answer_flags
from loadgen.study.compare import limits, model
from loadgen.study.compare.comparability import check_equal_states
from loadgen.study.compare.limits import ComparedLimits
from loadgen.study.compare.model import ComparedLoad, ComparedRow, ComparisonOptions
from loadgen.study.importers import result_sources
from loadgen.study.series.campaign import arms, campaign_file, campaign_store
from loadgen.study.series.campaign.arms import Start, Trust, list_cells
from loadgen.study.series.campaign.campaign_file import CampaignFile, list_shipped, load_campaign
from loadgen.study.series.campaign.campaign_store import CampaignRecord, CampaignStore
from loadgen.study.series.campaign.execution import (
    Execution,
    MachineWatch,
    finish_series,
    is_measured_here,
)
from loadgen.study.series.campaign.steps import Arm, CampaignStep
from loadgen.study.series.series_store import FAILED, SeriesStore, print_progress, show_resume_command
from loadgen.study.series.time_estimate import Pace, format_duration


def main(argv: Sequence[str]) -> int:
    """Run `loadgen campaign` and return its exit code, 0 if any cell finished; raises LoadgenError.

    Without a file or a directory to resume it prints the shipped campaigns, with --dry-run a preview.
    """
    given = parse_arguments(campaign_parser(), argv)
    refuse_without_result(given.json, {"--example": given.example, "--dry-run": given.dry_run})
    if given.example:
        print_text(list_shipped()[campaign_file.EXAMPLE].read_text("utf-8"), sys.stdout, end="")
        return 0
    read_answer_flags(given, {})
    if given.file is None and given.resume in (None, campaign_store.LATEST):
        shipped = {name: load_campaign(path).description for name, path in list_shipped().items()}
        if given.json:
            print_json({"campaigns": [{"name": name, "description": shipped[name]} for name in shipped]})
            return 0
        for name, about in shipped.items():
            print_text(f"{name:<20} {about}", sys.stdout)
        own = "loadgen campaign FILE.toml"
        print_text(f"loadgen campaign NAME --dry-run shows one; a file of your own: {own}", sys.stdout)
        return 0
    if given.retry_failed and given.resume is None:
        raise UsageError("--retry-failed needs --resume: a new campaign has no failed cells")
    kept = campaign_store.find_store(given.resume, given.file, Path(given.run_dir))
    wanted = make_request(given, kept)
    if given.dry_run:
        print_text(preview_campaign(wanted, kept, given), sys.stdout)
        return 0
    kept = open_store(wanted, kept, Path(given.run_dir), wanted.file.name)
    with print_one_object(given.json) as results:
        resume = show_resume_command("campaign", argv, kept.directory)

        def prepare(execution: Execution) -> None:
            execution.steps = _begin_steps(wanted, kept, given)

        code = measure_cells(wanted, kept, given, resume, prepare)
        code = code or _report_end(wanted, kept, resume, given)
        if given.json and kept.list_finished():
            results.append(compare_command.encode_comparison(*_compare_cells(kept, given)))
        return code


def campaign_parser() -> argparse.ArgumentParser:
    """Make the parser of `loadgen campaign`."""
    parser = Parser(
        prog="loadgen campaign",
        allow_abbrev=False,
        description="Measure checkpoints on servers under workloads, each several times, from one file.",
        epilog="Without a file: the shipped campaigns. `loadgen campaign demo`: half a minute, no server.",
    )
    add = parser.add_argument
    add("file", nargs="?", metavar="FILE.toml|NAME", help="a campaign file, or the name of a shipped one")
    add("--run-dir", metavar="DIR", default="runs", help="parent of the campaign's directory (default: runs)")
    add("--resume", nargs="?", const=campaign_store.LATEST, metavar="DIR",
        help="resume a campaign: its directory, or the latest of this name in --run-dir")  # fmt: skip
    add("--retry-failed", action="store_true", help="measure failed cells again, with --resume")
    add("--repeats", type=int, metavar="N",
        help="repeats of each cell, instead of the file's; with --resume, more than before")  # fmt: skip
    add("--only", metavar="CHECKPOINT[,…]", help="measure only these checkpoints")
    add("--dry-run", action="store_true", help="show matrix, order, commands and time, then exit")
    add("--allow-launch", action="store_true",
        help="allow the file to start servers: it runs programs as you")  # fmt: skip
    add("--allow-env", action="append", default=[], metavar="NAME",
        help="allow the file to read this environment variable (repeatable)")  # fmt: skip
    table.add_flags(parser, list_rows(KeyOptions))
    add("--require-equal-state", action="store_true",
        help="refuse cells before which the machine is in another state than before the first")  # fmt: skip
    add("--quiet", action="store_true", help="print no progress; only failures and the comparison")
    add("--example", action="store_true", help="print a commented campaign file, then exit")
    add_json_flag(parser)
    table.add_groups(parser, [ANSWER], list_rows(AnswerSettings))
    return parser


class CampaignRequest(msgspec.Struct, frozen=True):
    """A campaign as the command line and its file have it."""

    path: Path
    trust: Trust
    file: CampaignFile
    every: tuple[Arm, ...]  # of the file
    arms: tuple[Arm, ...]  # those of --only
    starts: tuple[Start, ...]


def make_request(given: argparse.Namespace, kept: CampaignStore | None) -> CampaignRequest:
    """Read and check the campaign of FILE, or of the file in the record of `kept`, without starting anything.

    --repeats replaces the file's, --only selects the arms. Raises UsageError.
    """
    known = given.file is None and kept is not None
    path = Path(kept.record.file) if known and kept is not None else campaign_file.locate_campaign(given.file)
    if given.file is None and not path.is_file():
        raise UsageError(f"{path}, the file of this campaign, is gone: give its new path")
    campaign = load_campaign(path)
    if given.repeats is not None:
        if not 1 <= given.repeats <= 1000:
            raise UsageError(f"--repeats {given.repeats}: give 1 or more")
        campaign = campaign.model_copy(update={"repeats": given.repeats})
    only = [] if given.only is None else [name.strip() for name in given.only.split(",")]
    for name in given.allow_env:
        if not re.fullmatch(r"\w+", name):
            raise UsageError(f"--allow-env {name!r}: give the name of one variable")
    if given.api_key_env or given.api_key_file:
        read_api_key(given.api_key_env, given.api_key_file)
    trust = Trust(given.allow_launch, tuple(given.allow_env), given.api_key_env, given.api_key_file)
    trust = trust.apply_to(path)
    every = arms.make_arms(campaign, path, trust)
    names = list(dict.fromkeys(arm.checkpoint for arm in every))
    for name in only:
        if name not in names:
            raise UsageError(f"--only: no checkpoint {name!r} in {path}{suggest_name(name, names)}")
    chosen = tuple(arm for arm in every if not only or arm.checkpoint in only)
    return CampaignRequest(path, trust, campaign, every, chosen, arms.plan_starts(campaign, chosen))


def open_store(wanted: CampaignRequest, kept: CampaignStore | None, base: Path, name: str) -> CampaignStore:
    """Return `kept`, else a new store below `base`; raises UsageError of what the file may not do or lacks.

    The standard error gets a line on each host that the environment's key is not sent to.
    """
    if unset := sorted({name for arm in wanted.arms for name in arm.missing}):
        raise UsageError(f"{wanted.path}: {', '.join(unset)} not set in the environment: export {unset[0]}=…")
    arms.check_allowed(wanted.trust, wanted.path, wanted.arms)
    for line in arms.list_unsent_keys(wanted.trust, wanted.arms):
        print_text(f"loadgen: {line}", sys.stderr)
    return kept or CampaignStore(files.create_directory(base, name, read_wall_clock()))


def make_record(wanted: CampaignRequest, kept: CampaignStore, given: argparse.Namespace) -> CampaignRecord:
    """Make the record, dated now, of every cell in the file, also those that --only leaves out.

    With --resume it continues the stored one. Raises UsageError where that has other cells.
    """
    record = campaign_store.make_record(wanted.file, wanted.path, wanted.every, read_wall_clock())
    if given.resume is None:
        return record
    return campaign_store.continue_record(kept, record, wanted.path, given.retry_failed)


def _begin_steps(
    wanted: CampaignRequest, store: SeriesStore, given: argparse.Namespace
) -> tuple[CampaignStep, ...]:
    """Begin the steps that the file asks for, each where it stands in the store."""
    chosen, every, shown = wanted.arms, wanted.every, choose_display(given.quiet)
    tables = wanted.file.steps.values()
    return tuple(table.begin(store, chosen, every, given.retry_failed, shown) for table in tables)


def measure_cells(
    wanted: CampaignRequest,
    kept: CampaignStore,
    given: argparse.Namespace,
    resume: str,
    prepare: Callable[[Execution], None],
) -> int:
    """Lock the store, write the record, measure every cell that is left; return the code of a signal, else 0.

    With --resume the record continues the stored one; `prepare` may refuse the execution, or change it. This
    machine is watched if the file has `cool_down`, or an arm is measured here. On Ctrl-C or SIGTERM `resume`,
    the command that goes on, is printed; StoreError is raised with it if nothing can be written.
    """
    say, watch, cool = partial(print_progress, given.quiet), None, wanted.file.cool_down
    with kept.lock():
        campaign = make_record(wanted, kept, given)
        if cool is not None or any(is_measured_here(arm.options) for arm in wanted.arms):
            states = (kept.read_state_before(planned.id) for planned in list_cells(wanted.starts))
            first = next((state for state in states if state is not None), None)
            sensors, shown = sensor_discovery.find_sensors(), choose_display(given.quiet)
            watch = MachineWatch(cool, sensors, say, shown, first, given.require_equal_state)
        execution = Execution(
            store=kept,
            starts=wanted.starts,
            seed=Seed(campaign.seed, campaign.seed_chosen),
            done=campaign_store.list_done(kept, given.retry_failed),
            pace=arms.read_pace(kept, wanted.starts),
            say=say,
            quiet=given.quiet,
            watch=watch,
            limit=wanted.file.limit,
        )
        prepare(execution)
        kept.write_record(campaign)
        out = sys.stderr if given.json else sys.stdout
        return finish_series(execution, resume, given.resume is None, out)


def _report_end(wanted: CampaignRequest, kept: CampaignStore, resume: str, given: argparse.Namespace) -> int:
    """Print the comparison and how to go on, and return 0; raises MeasureError if no cell finished."""
    if not kept.list_finished():
        raise MeasureError(f"every cell failed; the reasons are in {kept.directory / FAILED}")
    print_text("", sys.stdout)
    rows = _print_comparison(kept, given)
    where = shlex.quote(str(kept.directory))
    print_text(f"\n{arms.describe_progress(kept, wanted.starts)}: {kept.directory}", sys.stdout)
    if kept.list_failed() or any(kept.directory.glob(f"*/{FAILED}/*.json")):  # of cells, or of a step
        print_text(f"retry the failed cells: {resume} --retry-failed", sys.stdout)
    print_text(f"again:   loadgen compare {where}\nto see:  loadgen report --html {where}", sys.stdout)
    if given.require_equal_state:
        check_equal_states(rows)
    return 0


def _print_comparison(kept: CampaignStore, given: argparse.Namespace) -> list[Sequence[ComparedRow]]:
    """Print the comparisons and return the rows of their tables; a LoadgenError is printed, too."""
    try:
        tables, searches, found = _compare_cells(kept, given)
        print_passages(compare_command.list_passages(tables, searches, found))
        return compare_command.list_table_rows(tables, searches)
    except LoadgenError as error:  # the runs are there all the same
        print_text(f"loadgen: {error}", sys.stderr)
        return []


def _compare_cells(
    kept: CampaignStore, given: argparse.Namespace
) -> tuple[list[ComparedLoad], list[ComparedLimits], CheckpointAnswer | None]:
    """Compare a campaign's runs; print on the standard error what could not be read."""
    places = [str(kept.directory)]
    read = result_sources.read_sources(places)
    compare_command.report_unread(read.errors)
    ask = ComparisonOptions(campaign=model.read_campaign_settings(places))
    tables, searches = compare_command.compare_sources(read, ask), limits.compare_limits(read.limits, ask)
    return tables, searches, make_answer(tables, searches, ask, read_answer_flags(given, ask.campaign.answer))


_NOTHING = "nothing was started or written (--dry-run)"
_NOT_BEGUN = ".not-begun"  # a directory that is not there


def preview_campaign(wanted: CampaignRequest, kept: CampaignStore | None, given: argparse.Namespace) -> str:
    """Render what a campaign, or the rest of `kept`, does: matrix, order, commands (not wrapped) and time."""
    done, pace, seed = set[str](), Pace(), wanted.file.seed
    if kept is not None:
        seed = make_record(wanted, kept, given).seed
        done, pace = campaign_store.list_done(kept, given.retry_failed), arms.read_pace(kept, wanted.starts)
    store = kept or CampaignStore(Path(given.run_dir) / _NOT_BEGUN)
    steps = _begin_steps(wanted, store, given)
    left = [line for step in steps for line in wrap_text(f"{step.name}: {step.describe_left()}")]
    parts = (
        _list_arms(wanted, done),
        _list_order(wanted),
        _list_commands(wanted, seed),
        (*_list_access(wanted), *_list_time(wanted, done, pace), *left, _NOTHING),
    )
    return "\n\n".join("\n".join(lines) for lines in parts)


def _list_arms(wanted: CampaignRequest, done: set[str]) -> Iterator[str]:
    """Yield lines on the matrix: counts, each arm with its profiles, missing models and variables."""
    file, cells = wanted.file, list_cells(wanted.starts)
    yield from wrap_text(f"{file.name}: {file.description}" if file.description else file.name)
    count, repeats = format_count(len(wanted.arms), "arm"), format_count(file.repeats, "repeat")
    starts = format_count(sum(not start.arm.attached for start in wanted.starts), "start")
    yield (
        f"{count} (checkpoint on server), {repeats}: {format_count(len(cells), 'cell')}, {starts} of a server"
    )
    if (limit := file.limit) is not None:
        budget = f"at most {format_count(limit.max_runs, 'run')} and {format_duration(limit.budget_s)}"
        yield from wrap_text(f"each cell is a search for the highest load at {limit.slo}: {budget}")
    if over := sum(planned.id in done for planned in cells):
        yield f"{over} are done, {len(cells) - over} are left"
    widths = (-max(len(arm.name) for arm in wanted.arms) - 4, -1)
    for arm in wanted.arms:
        yield align_cells((f"  {arm.name}", ", ".join(workload.name for workload in arm.profiles)), widths)
        model = arm.options.model or ""
        is_path = arm.options.launching.wanted and model.startswith(("/", "./", "../"))
        if is_path and not os.path.exists(model):
            yield f"    {model} does not exist: its cells would fail"
    if unset := sorted({name for arm in wanted.arms for name in arm.missing}):
        yield f"environment variables to set first: {', '.join(unset)}"


def _list_order(wanted: CampaignRequest) -> Iterator[str]:
    """Yield lines on the order in which servers are started, the repeats of one order together."""
    turns: dict[str, list[str]] = {}
    is_one_server = len({arm.server for arm in wanted.arms}) == 1
    names = [start.arm.checkpoint if is_one_server else start.arm.name for start in wanted.starts]
    if wanted.file.starts == arms.ONCE:
        yield "order: each server is started once, for all its repeats"
        turns["all"] = names
    else:
        yield "order: each repeat starts every server again, in the reverse order of the repeat before"
        by_repeat: dict[int, list[str]] = {}
        for start, name in zip(wanted.starts, names, strict=True):
            by_repeat.setdefault(start.planned[0].number, []).append(name)
        for first in list(by_repeat)[:2]:
            turns[", ".join(f"r{repeat}" for repeat in list(by_repeat)[first::2])] = by_repeat[first]
    for label, order in turns.items():
        yield from wrap_chain(f"  {label}:", order, "    ")


def _list_commands(wanted: CampaignRequest, seed: int | None) -> Iterator[str]:
    """Yield each arm's `loadgen` command for the same, and what starts its server, if it is started."""
    limit = wanted.file.limit
    yield f"commands that would measure the same with `loadgen {'bench' if limit is None else 'limit'}`:"
    for arm in wanted.arms:
        yield f"  {arm.name}"
        yield f"    {arms.render_command(arm, wanted.file.repeats, seed, limit)}"
        if arm.options.launching.wanted and not (arm.missing or arm.barred):
            # Finding out what is installed runs the interpreter that the file names.
            yield f"    {arms.show_program(arm.options, arm.settings, asks=wanted.trust.may_start)}"


def _list_access(wanted: CampaignRequest) -> Iterator[str]:
    """Yield lines on programs run, hosts sent to, variables read, and the flags that allow these."""
    starting = [arm.name for arm in wanted.arms if arm.options.launching.wanted]
    if starting and not wanted.trust.may_start:
        yield f"runs programs: {', '.join(starting)}; needs --allow-launch"
    hosts = dict.fromkeys(url for arm in wanted.arms for url in arm.options.urls)
    if hosts:
        yield f"sends to: {', '.join(map(hide_secrets, hosts))}"
    if wanted.trust.variables:
        yield f"may read from the environment: {', '.join(wanted.trust.variables)}"
    if barred := sorted({name for arm in wanted.arms for name in arm.barred}):
        yield f"reads from the environment: {', '.join(barred)}; needs --allow-env NAME for each"
    yield from arms.list_unsent_keys(wanted.trust, wanted.arms)


def _list_time(wanted: CampaignRequest, done: set[str], pace: Pace) -> Iterator[str]:
    """Yield the estimated time of what is left; of searches for a limit at most their budgets."""
    if (limit := wanted.file.limit) is None:
        left = arms.estimate_left(pace, wanted.starts, done)
        words = "unknown until the first cells are done" if left.unknown else left.words
        yield f"estimated time: {words}"
    else:
        cells = sum(planned.id not in done for planned in list_cells(wanted.starts))
        most = format_duration(cells * limit.budget_s)
        yield f"estimated time: at most {most} of searches; starts of servers come on top"
