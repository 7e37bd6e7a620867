"""`loadgen shards`: what starts one plan's shards elsewhere: a Kubernetes Job, a Slurm script, MPI lines.

The templates of docs/launching are filled, which may be filled by hand, too.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from loadgen.base.clock import SECOND_NS, SYSTEM_CLOCK, Clock
from loadgen.base.errors import ExitCode, UsageError
from loadgen.base.parsing import Parser, integer_between, parse_arguments
from loadgen.base.printing import print_text
from loadgen.base.secrecy import Secrets, hide_argument_secrets
from loadgen.base.text import quote_value
from loadgen.figures import objectives
from loadgen.plan import profile
from loadgen.plan.request_sources import Seed
from loadgen.run.command import bench
from loadgen.run.command.options import Options, parse
from loadgen.run.command.progress import warn
from loadgen.settings import shard_settings
from loadgen.settings.shard_settings import MOST_AHEAD_S, PlannedStart

_START_IN_S = 120
_NAME = re.compile(r"\w[\w.-]{0,99}", re.ASCII)  # stands in a script without quotes
_POD_NAME = re.compile(r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?", re.ASCII)  # with the index it names a pod
_SIZE = re.compile(r"\d{1,6}(\.\d{1,3})?([KMGT]i|[kMGT])?", re.ASCII)
_PLACE = re.compile("@([A-Z]+)@")
_MEMORY = "1Gi"
_OWN = {"--shard": "shard", "--start-at": "start_at", "--run-dir": "run_dir"}  # what is added for each shard
_CPUS = 2  # of one worker: one captures, one decodes


def shards_parser() -> argparse.ArgumentParser:
    """Make the parser of `loadgen shards`, but for what follows `--`."""
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
    ways.add_argument("--k8s", action="store_true", help="print the manifest of a Kubernetes Indexed Job")
    ways.add_argument("--slurm", action="store_true", help="print a script for sbatch")
    ways.add_argument("--mpi", action="store_true", help="print lines for mpirun")
    add("--shards", type=integer_between(1, shard_settings.MOST_SHARDS), required=True, metavar="N",
        help="number of shards")  # fmt: skip
    add("--start-in", type=integer_between(1, MOST_AHEAD_S), default=_START_IN_S, metavar="S",
        help="seconds from now, or from the job's begin, to the first request: enough for all shards to be "
        f"ready (default {_START_IN_S})")  # fmt: skip
    add("--name", default="loadgen", help="name of the job and of its directory of runs (default loadgen)")
    job = parser.add_argument_group("with --k8s")
    job.add_argument("--image", help="container image with loadgen installed")
    job.add_argument("--claim", metavar="PVC", help="PersistentVolumeClaim that takes the run directories")
    job.add_argument("--namespace", metavar="NAME", help="Kubernetes namespace (default: kubectl's own)")
    job.add_argument("--secret", metavar="NAME/KEY", help="Kubernetes Secret that holds the API key")
    job.add_argument("--memory", default=None, metavar="SIZE", help="memory of each shard (default 1Gi)")
    return parser


def main(argv: Sequence[str], clocks: Clock = SYSTEM_CLOCK) -> int:
    """Print the script or manifest of `loadgen shards`, and return the exit code, 2 without arguments.

    A header or a flag that seems to contain a secret is a warning. Raises UsageError.
    """
    words = list(argv)
    split = words.index("--") if "--" in words else len(words)
    own, flags = words[:split], words[split + 1 :]
    parser = shards_parser()
    if not own or {"-h", "--help"} & set(own):
        parser.print_help()
        return ExitCode.FIGURES if own else ExitCode.USAGE
    asked = parse_arguments(parser, own)
    words, cpus, warnings = plan_launch(asked.shards, flags)
    for line in warnings:
        warn(line)
    print_text(_make_text(asked, words, cpus, clocks), sys.stdout, end="")
    return ExitCode.FIGURES


def _make_text(asked: argparse.Namespace, words: Sequence[str], cpus: int, clocks: Clock) -> str:
    """Fill the template that was asked for; raises UsageError for flags that do not go with it."""
    texts = {
        "SHARDS": str(asked.shards),
        "CPUS": str(cpus),
        "NAME": asked.name,
        "AHEAD": str(asked.start_in),
        "COMMAND": shlex.join(words),
    }
    if asked.k8s:
        start_s = clocks.wall_ns() // SECOND_NS + asked.start_in
        return _fill("kubernetes.yaml", texts | _describe_job(asked, words, start_s))
    of_job = {name: getattr(asked, name) for name in ("image", "claim", "namespace", "secret", "memory")}
    if given := [name for name, value in of_job.items() if value is not None]:
        raise UsageError(f"--{given[0]} goes with --k8s")
    if not _NAME.fullmatch(asked.name):
        raise UsageError(
            f"--name {quote_value(asked.name)}: give letters, digits, '.', '_' and '-', 100 at most"
        )
    return _fill("slurm.sh" if asked.slurm else "mpi.sh", texts)


def _describe_job(asked: argparse.Namespace, words: Sequence[str], start_s: int) -> dict[str, str]:
    """Return what a Job has, in YAML; raises UsageError for what Kubernetes would refuse."""
    if asked.image is None:
        raise UsageError("--k8s needs --image, a container image that has loadgen")
    if asked.claim is None:
        raise UsageError(
            "--k8s needs --claim, a PersistentVolumeClaim for the run directories: what a pod keeps to "
            "itself is gone with it"
        )
    for flag, name in (("--name", asked.name), ("--claim", asked.claim)):
        if not _POD_NAME.fullmatch(name):
            raise UsageError(f"{flag} {name}: give lower-case letters, digits and -, 52 at most")
    if asked.memory is not None and not _SIZE.fullmatch(asked.memory):
        raise UsageError(f"--memory {asked.memory}: give bytes, or a size as 512Mi or 2Gi")
    secret, slash, key = (asked.secret or "").partition("/")
    if asked.secret is not None and (not slash or "/" in key):
        raise UsageError(f"--secret {asked.secret}: give NAME/KEY, of a Secret that holds the API key")
    directory = f"{asked.name}-{start_s}"
    shard = ("--shard", f"auto/{asked.shards}", "--start-at", str(start_s))
    words = [*words, *shard, "--run-dir", f"/runs/{directory}", "--quiet"]
    return {
        "NAME": _quote(asked.name),
        "IMAGE": _quote(asked.image),
        "CLAIM": _quote(asked.claim),
        "MEMORY": _quote(asked.memory or _MEMORY),
        "INSTANT": str(PlannedStart(start_s * SECOND_NS)),
        "DIRECTORY": directory,
        "COMMAND": _quote([word.replace("$", "$$") for word in words]),
        "NAMESPACE": "" if asked.namespace is None else _quote(asked.namespace),
        "SECRET": "" if asked.secret is None else _quote(secret),
        "KEY": "" if asked.secret is None else _quote(key),
    }


def _quote(value: str | Sequence[str]) -> str:
    """Return a text or a list of texts as JSON that is YAML too: printable ASCII, without surrogates."""
    return re.sub("[^ -~]", lambda sign: f"\\U{ord(sign[0]):08x}", json.dumps(value, ensure_ascii=False))


def _fill(name: str, texts: Mapping[str, str]) -> str:
    """Fill the places of a template, as @NAME@; a line with one whose text is empty is left out."""
    package = Path(__file__).parents[1]
    inside = package / "launching"
    template = (inside if inside.is_dir() else package.parent / "docs/launching") / name
    lines = template.read_text("utf-8").splitlines(keepends=True)
    kept = (line for line in lines if all(texts[place] for place in _PLACE.findall(line)))
    return _PLACE.sub(lambda place: texts[place[1]], "".join(kept))


def plan_launch(shards: int, flags: Sequence[str]) -> tuple[list[str], int, list[str]]:
    """Return the command of every shard, of flags of `loadgen bench`; a seed is drawn where they have none.

    With it are the CPUs that a shard keeps busy at most, and warnings of values that are printed, and hold
    what seems to be a key. `--workers auto` counts as one. Raises UsageError where the flags could not be
    those of a shard.
    """
    words = list(flags[1:] if flags[:1] == ["bench"] else flags)
    options = parse(words)
    for flag, name in _OWN.items():
        if getattr(options, name) is not None:
            raise UsageError(f"leave out {flag}: each shard is given its own")
    _check(options, shards)
    seed = [] if options.seed is not None else ["--seed", str(Seed.draw().value)]
    workers = max(options.workers, 1)  # of `auto` it is known only where the shards run
    warnings = list(_list_secret_warnings(words, options))
    if options.headers:
        names = ", ".join(options.headers)
        where = "a key goes in the environment, or --api-key-file"
        warnings.append(f"--header is printed as it was given ({names}): {where}")
    return ["loadgen", "bench", *words, *seed], _CPUS * workers, warnings


def _check(options: Options, shards: int) -> None:
    """Raise UsageError if the flags are not of one run on a running server, with a slot for every shard."""
    if options.base_url is None:
        raise UsageError(
            "the shards send parts of one load to a running server: pass its --base-url after --"
        )
    bench.check_command(options)
    names, shipped = options.profiles, profile.list_shipped()
    if options.repeat > 1 or len(options.profiles) > 1:
        raise UsageError("all shards begin one run together: leave out --repeat, and name one profile")
    if not set(names) <= set(shipped):
        return  # a file, which may be only where the shards run
    workload = profile.load(names[0], options.overrides) if names else profile.build(options.overrides)
    objectives.check_profile(workload)
    most = workload.max_concurrency
    if most is not None and shards > most:
        raise UsageError(f"--shards {shards}: --max-concurrency {most} has slots for no more than {most}")


def _list_secret_warnings(words: Sequence[str], options: Options) -> Iterator[str]:
    """Yield a warning of each flag, except --header, whose value is secret by name or form."""
    known = Secrets.collect(
        tables=(options.overrides, options.launching.settings), url=options.endpoint or ""
    )
    flags, flag = dict[str, None](), ""
    for word, shown in zip(words, hide_argument_secrets(words), strict=True):
        flag = word.partition("=")[0] if word.startswith("-") else flag
        if flag != "--header" and (shown != word or known.conceal(word) != word):
            flags[flag] = None
    for flag in flags:
        yield f"{flag} is printed as it was given, and its value holds what seems to be a key or a password"
