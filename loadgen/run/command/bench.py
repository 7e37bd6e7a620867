"""Bench: from flags to the result block, against a running server or the embedded engine.

What only results need is imported once there are some.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.base import files
from loadgen.base.errors import SIGNALLED, UsageError, decide_exit_code
from loadgen.base.parsing import parse_metadata
from loadgen.base.printing import print_text, refuse_without_result
from loadgen.base.structs import replace
from loadgen.base.text import describe_install
from loadgen.base.urls import parse_base_url
from loadgen.features.roofline.roofline_settings import Flags
from loadgen.figures import objectives
from loadgen.plan import profile
from loadgen.plan.model_files import NOT_HERE, locate_tokenizer
from loadgen.plan.profile import Profile
from loadgen.plan.request_sources import Seed
from loadgen.report import result_block
from loadgen.run import assembly, stop_rules, transport_choice
from loadgen.run.attach import attach, collect_settings
from loadgen.run.command import progress
from loadgen.run.command.credentials import check_key_flags
from loadgen.run.command.options import Options
from loadgen.run.session import Session
from loadgen.server.exchange import ServerAddress
from loadgen.settings import vllm_flags
from loadgen.settings.data_settings import list_unheeded
from loadgen.settings.setting import list_rows
from loadgen.settings.table import PROFILE_KEYS
from loadgen_servers.process.embedded import Embedded

if TYPE_CHECKING:
    from loadgen.report.run_directory import Result

_LOG = logging.getLogger(__name__)


def prepare(options: Options) -> list[Profile]:
    """Load and check the profiles, and all else that can be without a server; raises UsageError, or warns."""
    names, overrides = options.profiles, options.overrides
    profiles = [profile.load(name, overrides, flags=True) for name in names] or [profile.build(overrides)]
    if options.fail_on:
        from loadgen.report.run import check_fail_on  # few runs need it

        check_fail_on(options.fail_on, profiles)
    for workload in profiles:
        objectives.check_workload(workload)
        if options.http2 and workload.cancel_rate:
            raise UsageError("--cancel-rate closes connections, and --http2 shares one: leave out --http2")
        if flags := list_unheeded(list_rows(*PROFILE_KEYS), workload.__dict__, overrides):
            _LOG.warning("no effect here: %s: the data set of this run has none of it", ", ".join(flags))
        if options.stop_when_saturated and not stop_rules.has_one_rate(workload):
            why = "it judges an open loop of one --request-rate"
            _LOG.warning("no effect here: --stop-when-saturated: %s", why)
        if workload.ladder is not None and options.repeat > 1:
            raise UsageError(
                "--repeat does not apply to a ladder: its num_prompts sets the repeats of each length"
            )
    check(options)
    if options.resume and (len(profiles) * options.repeat == 1 or any(each.ladder for each in profiles)):
        raise UsageError("--resume goes on with several runs: give their --repeat; `ladder` has its own")
    of_one_run = {
        "--export-requests writes one plan": options.export_requests,
        "--start-at is of one run": options.start_at,
        "--expect-plan is of one run": options.expect_plan,
    }
    for why, value in of_one_run.items():
        if value is not None and len(profiles) * options.repeat > 1:
            raise UsageError(f"{why}: leave out --repeat, and name one profile")
    return profiles


def begin(
    options: Options, profiles: Sequence[Profile], stack: ExitStack, begun: Embedded | None
) -> Session | None:
    """Reach or start the server of `loadgen bench`, whose embedded engine has `begun` if it needs one.

    With --dry-run or --print-request it prints that and returns None. Raises LoadgenError.
    """
    asked = collect_settings(options, profiles)
    if options.json:
        flags = {"--dry-run": options.launching.dry_run, "--print-request": bool(options.print_request)}
        refuse_without_result(True, flags)
        if any(each.ladder for each in profiles):
            raise UsageError("a ladder's object is printed by `loadgen ladder --json`")
    if options.launching.dry_run:
        from loadgen.run import launched_server  # few commands start a server

        print_text(launched_server.dry_run(options, asked), sys.stdout)
        return None
    if options.print_request and options.launching.wanted:
        options = _use_temporary_directory(options, stack)
    session = attach(options, asked, profiles[0], stack, begun=begun)
    if not options.print_request:
        return session
    print_text(session.show_first(profiles[0], make_seed(options)), sys.stdout)
    return None


def run_once(
    session: Session, workload: Profile, seed: Seed, results: list[Mapping[str, Any]]
) -> tuple[int, Result, Path]:
    """Measure a run, write and print what came of it; return the exit code, the run and its directory.

    With --json its object is added to `results`. Raises ServerDied if the server has ended, unless a signal
    ended the run.
    """
    run, directory = session.run(workload, seed)
    code = finish(session, run, directory)
    if session.options.json:
        from loadgen.report import run_writer

        results.append(run_writer.encode_run(run, session.options.save_detailed))
    if code not in SIGNALLED:
        session.check_alive(failed=bool(run.records.failed))
    return code, run, directory


def _use_temporary_directory(options: Options, stack: ExitStack) -> Options:
    """Return the options with a temporary run directory, which is removed when `stack` ends without error."""
    import shutil  # few commands need them
    import tempfile

    directory = tempfile.mkdtemp(prefix="loadgen-")

    def remove(error: object, *_: object) -> None:
        if error is None:
            shutil.rmtree(directory, ignore_errors=True)

    stack.push(remove)
    return replace(options, run_dir=directory)


def make_seed(options: Options) -> Seed:
    """Return the seed given by --seed, or a random one."""
    return Seed(options.seed, chosen=True) if options.seed is not None else Seed.draw()


def check_command(options: Options) -> None:
    """Raise UsageError for wrong or contradictory options or a missing extra; warn of useless flags."""
    parse_metadata(options.metadata)
    if options.layout is not None:
        result_block.find_layout(options.layout)
    if options.preset is not None and (options.base_url is not None or options.launching.wanted):
        raise UsageError(
            "--preset is the embedded engine's timing: leave out --base-url, --host, --port and --launch"
        )
    places = [url.strip().rstrip("/") for url in options.urls]
    for url, place in zip(options.urls, places, strict=True):
        if "${" not in url:  # of a campaign, with a variable that is not set
            ServerAddress(parse_base_url(url, options.endpoint).base_url)
        if places.count(place) > 1:
            raise UsageError(f"--base-url {url} is given twice: it would get a double share of the requests")
    check_key_flags(options)
    Flags.read(options).check()
    assembly.check_options(options)
    if options.no_effect:
        _LOG.warning("no effect here: %s", vllm_flags.explain_no_effects(options.no_effect))
    if options.http2:
        if options.transport != "httpx":
            raise UsageError("--http2 goes with --transport httpx")
        if not options.urls or not all(url.startswith("https") for url in options.urls):
            raise UsageError("--http2 is negotiated over TLS: it needs an https base URL")


def check(options: Options) -> None:
    """Check, before anything starts, that the run can be finished and written; raises UsageError, or warns.

    Creates the file of --live-totals and the directory of --result-dir.
    """
    check_command(options)
    # A campaign's may have a variable that is not set.
    given = options.tokenizer
    if given is not None and "${" not in given and locate_tokenizer(given) is None:
        without = "prompts of token ids, the default where the API takes them, are drawn without it"
        _LOG.warning("warning: --tokenizer %s is not here (%s): %s", given, NOT_HERE, without)
    if instead := transport_choice.check_transport(options.transport):
        _LOG.warning("%s", instead)
    if options.http2 and find_spec("h2") is None:
        raise UsageError(f"--http2 needs the http2 extra: {describe_install('http2')}")
    progress.open_live_totals(options.live_totals)
    if options.saves and not options.print_request:
        files.create_place(Path(options.result_dir or "."), "--result-dir")


def finish(session: Session, run: Result, directory: Path) -> int:
    """Write the run's files, print the report and the errors, and return the exit code.

    A shard without requests counts as measured.
    """
    from loadgen.report import report, run_writer
    from loadgen.report.result_file import write_result

    options = session.options
    kept = session.keep(run, directory, options.explain, options.layout)
    shown = report.render_for_stdout(run, directory, options.explain, options.layout)
    lines, errors = [shown, f"run directory: {directory}"], list(kept.errors)
    if options.saves:
        path = Path(options.result_dir or ".") / (options.result_filename or run.filename())
        try:
            write_result(path, run_writer.encode_run(run, options.save_detailed), options.append_result)
            lines.append(f"result file: {path}")
        except UsageError as failed:
            errors.append(str(failed))
    for line in lines:
        print_text(line, sys.stdout)
    for error in errors:
        progress.warn(error)
    signal = run.facts.signal or kept.signal
    is_empty = run.facts.shard is not None and run.facts.shard.requests == 0
    measured = is_empty or bool(run.records.ok.any())
    if is_empty and not signal:
        progress.warn(f"shard {options.share.name} has none of the plan's {run.facts.requests} requests")
    elif not measured and not signal:
        progress.warn(report.explain_unmeasured(run))
    failing = set[str]()
    if options.failing:
        from loadgen.report.run import find_failing  # few runs need it

        failing = find_failing(run, options.failing)
    return decide_exit_code(
        signal=signal,
        measured=measured,
        whole=not (run.facts.partial or run.facts.lost),
        failed_on=failing,
        written=not errors,
    )
