"""`loadgen ladder`: the speed of one request at ever longer prompts, in the tables of the Qwen pages."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from msgspec.structs import replace

from loadgen.errors import LoadgenError, MeasureError, UsageError
from loadgen.results.printing import printed
from loadgen.results.speed_formulas import FORMULAS, TOTAL
from loadgen.session import ladder_run
from loadgen.session.asked_settings import settings
from loadgen.session.attach import attach
from loadgen.session.bench import check, seeded
from loadgen.session.ladder_run import Climb
from loadgen.session.options import Options, bench_parser, parse
from loadgen.session.progress import warn
from loadgen.validity import run_metadata
from loadgen.workload import data_files, profile
from loadgen.workload.profile import Profile
from loadgen.workload.server_settings import ServerSettings

DEFAULT_PROFILE = "qwen-speed"


def main(argv: Sequence[str]) -> int:
    """Run the command; 0 where any rung was measured."""
    options = parse(argv, ladder_parser())
    _refuse(options)
    workload = _workload(options)
    check(options)
    asked = settings(options, [workload])
    if options.launching.engine == "sglang" and asked.skip_tokenizer is None:
        asked = asked.model_copy(update={"skip_tokenizer": True})
    if options.launching.dry_run:
        from loadgen.session.launched_server import dry_run

        printed(dry_run(options, asked), sys.stdout)
        return 0
    ladder = ladder_run.begin(workload, options.run_dir, options.formula)
    return ladder_run.exit_code(ladder, lambda: _climb(ladder, options, asked))


def ladder_parser() -> argparse.ArgumentParser:
    """The flags of `bench`, and which of the pages' two formulas is meant."""
    parser = bench_parser()
    parser.prog = "loadgen ladder"
    parser.description = "Measure one request at a time at ever longer prompts, as the Qwen pages do."
    parser.epilog = f"Without --profile: {DEFAULT_PROFILE}. The other flags are those of `loadgen bench`."
    formula = f"of the speed (default {TOTAL}, Qwen3's; the other is Qwen2's)"
    parser.add_argument("--formula", choices=tuple(FORMULAS), help=formula)
    return parser


def _refuse(options: Options) -> None:
    """Flags of `bench` that a ladder would not heed."""
    advice = {
        "--input-len": ("input_len" in options.overrides, "the profile's `ladder` has the lengths"),
        "--repeat": (options.repeat > 1, "--num-prompts sets the repeats of each length"),
        "--save-result": (options.saves, "ladder.json and the run directories have every figure"),
        "--export-requests": (options.export_requests is not None, "`loadgen bench` writes one plan"),
        "--shard": (options.shard is not None, "`loadgen bench` sends one plan from several commands"),
        "--start-at": (options.start_at is not None, "`loadgen bench` begins one run at an instant"),
        "--expect-plan": (options.expect_plan is not None, "it has a plan for each length"),
        "--base-url": (bool(options.more_urls), "one request at a time has one server: give it once"),
        "--cluster": (options.cluster is not None, "one process is enough for one request at a time"),
        "--print-request": (options.print_request, "`loadgen bench` shows one"),
    }
    for flag, (given, what_to_do) in advice.items():
        if given:
            raise UsageError(f"{flag} does not apply to a ladder: {what_to_do}")


def _workload(options: Options) -> Profile:
    names = options.profiles or (DEFAULT_PROFILE,)
    if len(names) > 1:
        raise UsageError("--profile: one ladder at a time")
    workload = profile.load(names[0], options.overrides, flags=True)
    if workload.ladder is None:
        raise UsageError(f"--profile {names[0]} has no ladder of input lengths: run it with `loadgen bench`")
    run_metadata.check(workload)
    data_files.check(workload)
    return _native(workload, options, options.launching.engine or "")


def _climb(ladder: Climb, options: Options, asked: ServerSettings) -> None:
    """Measure every length; a server that dies of one is started again for the next."""
    seed, inside = seeded(options), replace(options, run_dir=str(ladder.directory))
    while ladder.left:
        with ExitStack() as stack:
            try:
                session = attach(inside, asked, ladder.workload, stack)
            except LoadgenError as error:
                if not ladder.rows:
                    raise
                warn(str(error))
                ladder.give_up("the server did not start again")
                return
            ladder.workload = _native(ladder.workload, options, session.served.engine.name)
            try:
                ladder.on(session, seed)
            except MeasureError as error:
                warn(str(error))


def _native(workload: Profile, options: Options, engine: str) -> Profile:
    """The workload in the engine's own API where that suits it better, unless the user chose."""
    if engine.lower() != "sglang" or "backend" in options.overrides or options.endpoint is not None:
        return workload
    return workload.model_copy(update={"backend": "sglang"})  # which takes ids and needs no tokenizer
