"""`loadgen shards`: what starts one plan's shards elsewhere: a Kubernetes Job, a Slurm script, MPI lines."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence

from loadgen.base.bounds import integer_between
from loadgen.base.clock import SECOND_NS, SYSTEM_CLOCK, Clock
from loadgen.base.errors import ExitCode, UsageError
from loadgen.base.parsing import Parser, parse_arguments
from loadgen.base.text import quote_value
from loadgen.features.shards import ranks
from loadgen.features.shards.start_at import MOST_AHEAD_S, PlannedStart
from loadgen.fleet import schedulers
from loadgen.fleet.kubernetes import KubernetesJob
from loadgen.fleet.launch_plan import LaunchPlan, launch_plan
from loadgen.report.printing import print_text
from loadgen.run.progress import warn

_START_IN_S = 120
_NAME = re.compile(r"\w[\w.-]{0,99}", re.ASCII)  # stands in a script without quotes


def shards_parser() -> argparse.ArgumentParser:
    """The parser of `loadgen shards`, but for what follows `--`."""
    parser = Parser(
        prog="loadgen shards",
        usage="%(prog)s --k8s|--slurm|--mpi --shards N [FLAG ...] -- FLAGS",
        allow_abbrev=False,
        description="Print what starts one plan's shards elsewhere; nothing is started here. FLAGS are "
        "those of `loadgen bench`; a seed is drawn where they have none.",
        epilog="`loadgen merge` joins what the shards leave (docs/shards.md).",
    )
    add = parser.add_argument
    ways = parser.add_mutually_exclusive_group(required=True)
    ways.add_argument("--k8s", action="store_true", help="the manifest of a Kubernetes Indexed Job")
    ways.add_argument("--slurm", action="store_true", help="a script for sbatch")
    ways.add_argument("--mpi", action="store_true", help="lines for mpirun")
    add("--shards", type=integer_between(1, ranks.MOST_SHARDS), required=True, metavar="N", help="how many")
    add("--start-in", type=integer_between(1, MOST_AHEAD_S), default=_START_IN_S, metavar="S",
        help=f"all begin S seconds from now, or from when the job begins (default {_START_IN_S}): enough for "
        "the last to be ready")  # fmt: skip
    add("--name", default="loadgen", help="of the job, and of the directory of its runs (default loadgen)")
    job = parser.add_argument_group("with --k8s")
    job.add_argument("--image", help="that has loadgen")
    job.add_argument("--claim", metavar="PVC", help="PersistentVolumeClaim that takes the run directories")
    job.add_argument("--namespace", metavar="NAME", help="default: kubectl's own")
    job.add_argument("--secret", metavar="NAME/KEY", help="of the API key, as a Secret")
    job.add_argument("--memory", default=None, metavar="SIZE", help="of each shard (default 1Gi)")
    return parser


def main(argv: Sequence[str], clocks: Clock = SYSTEM_CLOCK) -> int:
    """Run the command."""
    words = list(argv)
    split = words.index("--") if "--" in words else len(words)
    own, flags = words[:split], words[split + 1 :]
    parser = shards_parser()
    if not own or {"-h", "--help"} & set(own):
        parser.print_help()
        return ExitCode.FIGURES if own else ExitCode.USAGE
    asked = parse_arguments(parser, own)
    plan = launch_plan(asked.shards, flags)
    if plan.headers:
        names = ", ".join(plan.headers)
        warn(
            f"--header is printed as it was given ({names}): a key goes in the environment, or --api-key-file"
        )
    for flag in plan.secret_flags:
        warn(f"{flag} is printed as it was given, and its value holds what seems to be a key or a password")
    print_text(_text(asked, plan, clocks), sys.stdout, end="")
    return ExitCode.FIGURES


def _text(asked: argparse.Namespace, plan: LaunchPlan, clocks: Clock) -> str:
    """What was asked for; raises UsageError where a flag is missing or has no effect."""
    of_job = {name: getattr(asked, name) for name in ("image", "claim", "namespace", "secret", "memory")}
    given = {name: value for name, value in of_job.items() if value is not None}
    if asked.k8s:
        if asked.image is None:
            raise UsageError("--k8s needs --image, a container image that has loadgen")
        if asked.claim is None:
            raise UsageError(
                "--k8s needs --claim, a PersistentVolumeClaim for the run directories: what a pod keeps to "
                "itself is gone with it"
            )
        start_s = clocks.wall_ns() // SECOND_NS + asked.start_in
        job = KubernetesJob(name=asked.name, **given)
        return job.text(plan, start_s, str(PlannedStart(start_s * SECOND_NS)))
    if given:
        raise UsageError(f"--{next(iter(given))} goes with --k8s")
    if not _NAME.fullmatch(asked.name):
        raise UsageError(
            f"--name {quote_value(asked.name)}: give letters, digits, '.', '_' and '-', 100 at most"
        )
    write = schedulers.slurm if asked.slurm else schedulers.mpi
    return write(plan, asked.name, asked.start_in)
