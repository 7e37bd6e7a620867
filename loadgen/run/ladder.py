"""`loadgen ladder`: the speed of one request at ever longer prompts, in the tables of the Qwen pages."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from msgspec.structs import replace

from loadgen.base import bounds, untrusted
from loadgen.base.errors import LoadgenError, MeasureError, UsageError
from loadgen.base.text import quote_value
from loadgen.features.data import data_files
from loadgen.plan import profile
from loadgen.plan.profile import Profile
from loadgen.plan.server_settings import ServerSettings
from loadgen.report.printing import printed
from loadgen.report.speed_formulas import FORMULAS, TOTAL
from loadgen.run import climb, depth_run, ladder_run
from loadgen.run.asked_settings import settings
from loadgen.run.attach import attach
from loadgen.run.bench import check, seeded
from loadgen.run.climb import Climb
from loadgen.run.options import Options, bench_parser, parse
from loadgen.run.progress import warn
from loadgen.verdict import requested_metrics

DEFAULT_PROFILE = "qwen-speed"
_PROMPT, _ANSWER, _REPEATS = 2048, 128, 5
_USUAL = {"input_len": _PROMPT, "output_len": _ANSWER, "num_prompts": _REPEATS}  # with --depth alone


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
        from loadgen.run.launched_server import dry_run

        printed(dry_run(options, asked), sys.stdout)
        return 0
    ladder: Climb[Any, Any]
    if options.depth is None:
        ladder = ladder_run.begin(workload, options.run_dir, options.formula)
    else:
        ladder = depth_run.begin(workload, options.run_dir, options.depth)
    return climb.exit_code(ladder, lambda: _climb(ladder, options, asked))


def ladder_parser() -> argparse.ArgumentParser:
    """The flags of `bench`, and which of the pages' two formulas is meant."""
    parser = bench_parser()
    parser.prog = "loadgen ladder"
    parser.description = "Measure one request at a time at ever longer prompts, as the Qwen pages do."
    parser.epilog = f"Without --profile: {DEFAULT_PROFILE}. The other flags are those of `loadgen bench`."
    formula = f"of the speed (default {TOTAL}, Qwen3's; the other is Qwen2's)"
    parser.add_argument("--formula", choices=tuple(FORMULAS), help=formula)
    depth = parser.add_argument_group("speed at depth, as llama-bench has it (docs/ladder.md)")
    add = depth.add_argument
    add(
        "-d",
        "--depth",
        type=_depths,
        metavar="N[,N…]",
        help="instead of the ladder: prompt and generation speed after N tokens that are cached",
    )
    add("-p", "--n-prompt", dest="input_len", type=int, metavar="N", help=f"new tokens (default {_PROMPT})")
    add("-n", "--n-gen", dest="output_len", type=int, metavar="N", help=f"generated (default {_ANSWER})")
    return parser


def _depths(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    depths = [value for word in words if (value := untrusted.read_digits(word)) is not None]
    if len(depths) < len(words) or max(depths) > bounds.MOST_TOKENS or len(set(depths)) < len(depths):
        raise argparse.ArgumentTypeError(
            f"{quote_value(text)} is not a list of tokens, none of them twice: 0,4096"
        )
    return tuple(depths)


def _refuse(options: Options) -> None:
    """Flags of `bench` that a ladder would not heed."""
    advice = {
        "--input-len": (
            "input_len" in options.overrides and options.depth is None,
            "the profile's `ladder` has the lengths; with --depth it is that of the new tokens",
        ),
        "--formula": (options.formula is not None and options.depth is not None, "with --depth"),
        "--random-prefix-len": (
            "prefix_len" in options.overrides and options.depth is not None,
            "--depth has the lengths of what comes before",
        ),
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
    usual = {} if options.profiles or options.depth is None else _USUAL
    workload = profile.load(names[0], {**usual, **options.overrides}, flags=True)
    if workload.ladder is None and options.depth is None:
        raise UsageError(f"--profile {names[0]} has no ladder of input lengths: run it with `loadgen bench`")
    requested_metrics.check_profile(workload)
    data_files.check(workload)
    return _native(workload, options, options.launching.engine or "")


def _climb(ladder: Climb[Any, Any], options: Options, asked: ServerSettings) -> None:
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
