"""`loadgen ladder`: the speed of one request at ever longer prompts, or after ever more cached tokens."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from loadgen.base import parsing, untrusted
from loadgen.base.errors import UsageError
from loadgen.base.printing import print_one_object, print_text, refuse_without_result
from loadgen.base.structs import replace
from loadgen.base.text import quote_value
from loadgen.engines.engines import find_by_name
from loadgen.figures import objectives
from loadgen.plan import profile
from loadgen.plan.profile import Profile
from loadgen.run.attach import collect_settings
from loadgen.run.command import progress
from loadgen.run.command.bench import check, make_seed
from loadgen.run.command.options import Options, bench_parser, parse
from loadgen.settings.validation import ServerSettings
from loadgen.study.series.climb import BATCHES, BatchClimb, Climb, DepthClimb, LadderClimb
from loadgen.study.series.point_runs import PointServers
from loadgen.study.series.series_store import refuse_flags
from loadgen.study.speed.speed_rows import FORMULAS, TOTAL

DEFAULT_PROFILE = "qwen-speed"
_PROMPT, _ANSWER, _REPEATS = 2048, 128, 5
_USUAL = {"input_len": _PROMPT, "output_len": _ANSWER, "num_prompts": _REPEATS}  # with --depth alone
_TOKENS = "tokens, none of them twice: 0,4096"
_LEVELS = "concurrencies, none of them twice: 1,2,5,10"


def main(argv: Sequence[str]) -> int:
    """Run `loadgen ladder`, with --depth speed at depth; return the exit code, 0 if any rung was measured.

    --dry-run only prints the command that would start the server.
    """
    options = parse(argv, ladder_parser())
    _refuse_flags(options)
    workload = _load_workload(options)
    check(options)
    asked = collect_settings(options, [workload])
    if options.launching.engine == "sglang" and asked.skip_tokenizer is None:
        asked = asked.model_copy(update={"skip_tokenizer": True})
    refuse_without_result(options.json, {"--dry-run": options.launching.dry_run})
    if options.launching.dry_run:
        from loadgen.run.launched_server import dry_run

        print_text(dry_run(options, asked), sys.stdout)
        return 0
    kind: type[Climb[Any, Any]] = LadderClimb if options.depth is None else DepthClimb
    if options.batch_sizes is not None:
        kind = BatchClimb
    with print_one_object(options.json) as results:
        climb = kind.begin(workload, options)
        code = climb.finish(lambda ladder: _climb(ladder, options, asked))
        results += [climb.encode_rows()] if climb.rows else []
        return code


def ladder_parser() -> argparse.ArgumentParser:
    """Make the parser of `bench`, with the flags of the formula and of speed at depth."""
    parser = bench_parser()
    parser.prog = "loadgen ladder"
    parser.description = "Measure one request at a time at ever longer prompts, as the Qwen pages do."
    parser.epilog = f"Without --profile: {DEFAULT_PROFILE}. The other flags are those of `loadgen bench`."
    formula = f"formula of the speed (default {TOTAL}, Qwen3's; the other is Qwen2's)"
    parser.add_argument("--formula", choices=tuple(FORMULAS), help=formula)
    depth = parser.add_argument_group("speed at depth, as llama-bench has it (docs/ladder.md)")
    add = depth.add_argument
    tokens = partial(_parse_counts, least=0, most=parsing.MOST_TOKENS, of=_TOKENS)
    add("-d", "--depth", type=tokens, metavar="N[,N…]",
        help="measure prompt and generation speed after N cached tokens, instead of the ladder")  # fmt: skip
    levels = partial(_parse_counts, least=1, most=parsing.MOST_REQUESTS, of=_LEVELS)
    add("--concurrency", dest="batch_sizes", type=levels, metavar="N[,N…]",
        help="batches of N requests at once at each --depth, as llama-benchy has them; --num-prompts of them "
        f"(default {BATCHES})")  # fmt: skip
    add("-p", "--n-prompt", dest="input_len", type=int, metavar="N", help=f"new tokens (default {_PROMPT})")
    add("-n", "--n-gen", dest="output_len", type=int, metavar="N", help=f"output tokens (default {_ANSWER})")
    return parser


def _parse_counts(text: str, least: int, most: int, of: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    found = (untrusted.read_digits(word) for word in words)
    counts = [value for value in found if value is not None and least <= value <= most]
    if len(set(counts)) < len(words):
        raise argparse.ArgumentTypeError(f"{quote_value(text)} is not a list of {of}")
    return tuple(counts)


def _refuse_flags(options: Options) -> None:
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
        "--concurrency": (
            options.batch_sizes is not None and options.depth is None,
            "it is of --depth; pass --depth 0 for no context",
        ),
        "--max-concurrency": (
            options.batch_sizes is not None and "max_concurrency" in options.overrides,
            "--concurrency has the requests at once",
        ),
        "--repeat": (options.repeat > 1, "--num-prompts sets the repeats of each length"),
        "--save-result": (options.saves, "ladder.json and the run directories have every figure"),
        "--base-url": (bool(options.more_urls), "one request at a time has one server: give it once"),
        "--cluster": (options.cluster is not None, "one process is enough for one request at a time"),
    }
    refuse_flags(options, "a ladder", advice, heeded=("--live-totals", "--selftest"))


def _load_workload(options: Options) -> Profile:
    """Load the one profile of a ladder, else the default one, with the native API where it suits better."""
    names = options.profiles or (DEFAULT_PROFILE,)
    if len(names) > 1:
        raise UsageError("--profile: one ladder at a time")
    usual = {} if options.profiles or options.depth is None else _USUAL
    if usual and options.batch_sizes is not None:
        usual = {**usual, "num_prompts": BATCHES}
    workload = profile.load(names[0], {**usual, **options.overrides}, flags=True)
    if workload.ladder is None and options.depth is None:
        raise UsageError(f"--profile {names[0]} has no ladder of input lengths: run it with `loadgen bench`")
    objectives.check_workload(workload)
    return _prefer_native_api(workload, options, options.launching.engine or "")


def _climb(ladder: Climb[Any, Any], options: Options, asked: ServerSettings) -> None:
    """Measure every rung on one server, which is started again for the next where it dies of one."""
    inside = replace(options, run_dir=str(ladder.directory))
    with PointServers(inside, asked, ladder.directory, progress.warn) as servers:
        session = servers.session(ladder.workload)
        ladder.workload = _prefer_native_api(ladder.workload, options, session.served.engine.name)
        ladder.climb_on(servers, make_seed(options))


def _prefer_native_api(workload: Profile, options: Options, engine: str) -> Profile:
    backend = find_by_name(engine).native_backend  # takes ids and needs no tokenizer
    if not backend or "backend" in options.overrides or options.endpoint is not None:
        return workload
    return workload.model_copy(update={"backend": backend})
