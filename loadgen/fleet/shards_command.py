"""`loadgen shards`: what starts one plan's shards elsewhere: a Kubernetes Job, a Slurm script, MPI lines."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

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
_PLAIN = re.compile(r"[A-Za-z][\w/.-]*", re.ASCII)  # a key that YAML reads as a text
_SIGNS = '\\"'  # that a text in double quotes cannot hold as they are
_ESCAPED = re.compile(r"[^ !#-\[\]-~]")
_LAST_SHORT = 0xFFFF  # of characters that four digits name
_RUNS = "/runs"
_ENDING_S = 90  # after SIGTERM: requests are cut, and what was measured is written
_MEMORY = "1Gi"
_PORTS = "1024 65535"  # the kernel's default has 28,232
_OWN = {"--shard": "shard", "--start-at": "start_at", "--run-dir": "run_dir"}  # what is added for each shard
PROCESSES = 2  # of one worker: one captures, one decodes
_AUTO = ("--shard auto", '--start-at "$start"')


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
    add(
        "--shards",
        type=integer_between(1, shard_settings.MOST_SHARDS),
        required=True,
        metavar="N",
        help="number of shards",
    )
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
    plan = plan_launch(asked.shards, flags)
    if plan.headers:
        names = ", ".join(plan.headers)
        warn(
            f"--header is printed as it was given ({names}): a key goes in the environment, or --api-key-file"
        )
    for flag in plan.secret_flags:
        warn(f"{flag} is printed as it was given, and its value holds what seems to be a key or a password")
    print_text(_make_text(asked, plan, clocks), sys.stdout, end="")
    return ExitCode.FIGURES


def _make_text(asked: argparse.Namespace, plan: LaunchPlan, clocks: Clock) -> str:
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
        return job.render_yaml(plan, start_s, str(PlannedStart(start_s * SECOND_NS)))
    if given:
        raise UsageError(f"--{next(iter(given))} goes with --k8s")
    if not _NAME.fullmatch(asked.name):
        raise UsageError(
            f"--name {quote_value(asked.name)}: give letters, digits, '.', '_' and '-', 100 at most"
        )
    write = render_slurm_script if asked.slurm else render_mpi_lines
    return write(plan, asked.name, asked.start_in)


class KubernetesJob(msgspec.Struct, frozen=True):
    """The parts of a manifest that are not of the load; `claim` is a volume that outlives the pods."""

    image: str
    claim: str
    name: str = "loadgen"
    namespace: str | None = None
    secret: str | None = None  # NAME/KEY of the API key
    memory: str = _MEMORY

    def __post_init__(self) -> None:
        """Raise UsageError for a name, a size of memory or a secret that Kubernetes would refuse."""
        for flag, name in (("--name", self.name), ("--claim", self.claim)):
            if not _POD_NAME.fullmatch(name):
                raise UsageError(f"{flag} {name}: give lower-case letters, digits and -, 52 at most")
        if not _SIZE.fullmatch(self.memory):
            raise UsageError(f"--memory {self.memory}: give bytes, or a size as 512Mi or 2Gi")
        if self.secret is not None and self.secret.count("/") != 1:
            raise UsageError(f"--secret {self.secret}: give NAME/KEY, of a Secret that holds the API key")

    def make_manifest(self, plan: LaunchPlan, start_s: int) -> dict[str, Any]:
        """Return the Job as a table of Kubernetes' API; all shards begin at `start_s`, seconds since 1970."""
        labels = {"app.kubernetes.io/name": "loadgen", "app.kubernetes.io/instance": self.name}
        place = {} if self.namespace is None else {"namespace": self.namespace}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": self.name, **place, "labels": labels},
            "spec": {
                "completions": plan.shards,
                "parallelism": plan.shards,
                "completionMode": "Indexed",
                # A shard that failed is not started again: the others have begun, and go on.
                "backoffLimitPerIndex": 0,
                "maxFailedIndexes": plan.shards,
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "restartPolicy": "Never",
                        "terminationGracePeriodSeconds": _ENDING_S,
                        "automountServiceAccountToken": False,
                        "securityContext": {
                            "sysctls": [{"name": "net.ipv4.ip_local_port_range", "value": _PORTS}],
                            "seccompProfile": {"type": "RuntimeDefault"},
                        },
                        "topologySpreadConstraints": [
                            {
                                "maxSkew": 1,
                                "topologyKey": "kubernetes.io/hostname",
                                "whenUnsatisfiable": "ScheduleAnyway",
                                "labelSelector": {"matchLabels": labels},
                            }
                        ],
                        "containers": [self._make_container(plan, start_s)],
                        "volumes": [{"name": "runs", "persistentVolumeClaim": {"claimName": self.claim}}],
                    },
                },
            },
        }

    def name_directory(self, start_s: int) -> str:
        """Return the name, NAME-SECONDS, of the volume's directory for the shards' run directories."""
        return f"{self.name}-{start_s}"

    def _make_container(self, plan: LaunchPlan, start_s: int) -> dict[str, Any]:
        """Return the shard's container as a table: its command, key, resources and volume."""
        asked = {"cpu": str(plan.cpus), "memory": self.memory}
        words = plan.list_words(
            *("--shard", f"auto/{plan.shards}", "--start-at", str(start_s)),
            *("--run-dir", f"{_RUNS}/{self.name_directory(start_s)}", "--quiet"),
        )
        name, _, key = (self.secret or "").partition("/")
        variable = {"name": "OPENAI_API_KEY", "valueFrom": {"secretKeyRef": {"name": name, "key": key}}}
        return {
            "name": "shard",
            "image": self.image,
            "command": [word.replace("$", "$$") for word in words],  # $(NAME) would be a variable
            **({"env": [variable]} if self.secret else {}),
            # No limit on CPU: one that is reached stops the client for a while, in the middle of its times.
            "resources": {"requests": asked, "limits": {"memory": self.memory}},
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            "volumeMounts": [{"name": "runs", "mountPath": _RUNS}],
        }

    def render_yaml(self, plan: LaunchPlan, start_s: int, start: str) -> str:
        """Return the manifest in YAML after comments for its reader; `start` is `start_s` in words."""
        directory = self.name_directory(start_s)
        remarks = (
            f"{plan.shards} shards of one plan, which begin together at {start}: apply this at once.",
            "A shard that is not ready by then measures nothing, and its log says so.",
            f"The claim {self.claim} takes the run directories in {directory}/; on several nodes it must be",
            "ReadWriteMany. Where it is mounted afterwards:",
            f"  loadgen merge {directory}/*-shard-*",
            "A pod has its own addresses and ports; its limit on open files is the container runtime's",
            "(`ulimit -n` there): each request under way needs one.",
            "Kubernetes 1.29 or newer: a shard that failed leaves the others running (backoffLimitPerIndex).",
        )
        heading = "".join(f"# {line}\n" for line in remarks)
        return heading + "".join(
            f"{line}\n" for line in _render_yaml_lines(self.make_manifest(plan, start_s))
        )


def _render_yaml_lines(value: Mapping[str, Any] | Sequence[Any], indent: str = "") -> Iterator[str]:
    """Yield a table or a list as lines of YAML; every text that is not a plain key is quoted."""
    rows: list[tuple[str, Any]] = (
        [(f"{key if _PLAIN.fullmatch(key) else _quote(key)}:", of) for key, of in value.items()]
        if isinstance(value, Mapping)
        else [("-", of) for of in value]
    )
    for head, of in rows:
        if not isinstance(of, Mapping | list) or not of:
            yield f"{indent}{head} {_quote(of) if isinstance(of, str) else json.dumps(of)}"
        elif head == "-":
            first, *rest = _render_yaml_lines(of, f"{indent}  ")
            yield f"{indent}- {first.lstrip()}"
            yield from rest
        else:
            yield f"{indent}{head}"
            yield from _render_yaml_lines(of, f"{indent}  ")


def _quote(text: str) -> str:
    """Return a text in YAML's double quotes; what is not printable ASCII is escaped by its number."""
    return f'"{_ESCAPED.sub(_escape, text)}"'


def _escape(match: re.Match[str]) -> str:
    """Return the matched sign after a backslash if it is a quote or one, else its number as \\u or \\U.

    One number even above U+FFFF, since YAML refuses two surrogates.
    """
    sign, number = match[0], ord(match[0])
    if sign in _SIGNS:
        return f"\\{sign}"
    return f"\\u{number:04x}" if number <= _LAST_SHORT else f"\\U{number:08x}"


class LaunchPlan(msgspec.Struct, frozen=True):
    """A command that several processes are to run: `bench` with these flags, and one seed for all."""

    shards: int
    flags: tuple[str, ...]
    workers: int = 1  # in each
    headers: tuple[str, ...] = ()  # names of those that stand in the flags, with their values
    secret_flags: tuple[str, ...] = ()  # other flags whose values hold what seems to be a key

    @property
    def cpus(self) -> int:
        """The CPUs that a shard keeps busy at most: two per worker."""
        return PROCESSES * self.workers

    def list_words(self, *added: str) -> list[str]:
        """Return the words of `loadgen bench` with the flags, and with what is `added`."""
        return ["loadgen", "bench", *self.flags, *added]

    def render_line(self, *added: str) -> str:
        """Return the command quoted for a shell; what is `added` follows unquoted."""
        return " ".join([shlex.join(self.list_words()), *added])


def plan_launch(shards: int, flags: Sequence[str]) -> LaunchPlan:
    """Plan a launch of shards with flags of `loadgen bench`; a seed is drawn where they have none.

    Raises UsageError where they could not be those of a shard. `--workers auto` counts as one.
    """
    words = list(flags[1:] if flags[:1] == ["bench"] else flags)
    options = parse(words)
    for flag, name in _OWN.items():
        if getattr(options, name) is not None:
            raise UsageError(f"leave out {flag}: each shard is given its own")
    _check(options, shards)
    seed = [] if options.seed is not None else ["--seed", str(Seed.draw().value)]
    workers = max(options.workers, 1)  # of `auto` it is known only where the shards run
    secret = tuple(_list_secret_flags(words, options))
    return LaunchPlan(shards, (*words, *seed), workers, tuple(options.headers), secret)


def _check(options: Options, shards: int) -> None:
    """Raise UsageError if the flags are not of one run on a running server, with a slot for every shard.

    Slots are only checked if no profile is given, or a shipped one.
    """
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


def render_slurm_script(plan: LaunchPlan, name: str, start_in_s: int) -> str:
    """Return a script for sbatch, in which all shards start `start_in_s` seconds after the job begins."""
    command = plan.render_line(*_AUTO, '--run-dir "$runs"', "--quiet")
    return f"""#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --ntasks={plan.shards}
#SBATCH --cpus-per-task={plan.cpus}
#SBATCH --distribution=cyclic
# The run directories come to lie in the directory from which this is submitted: all nodes must have it.
runs={name}-$SLURM_JOB_ID
start=$(( $(date +%s) + {start_in_s} ))
# A shard that fails leaves the others running.
srun --kill-on-bad-exit=0 --cpus-per-task={plan.cpus} {command}
loadgen merge --output "$runs/merged" "$runs"/*-shard-*
"""


def render_mpi_lines(plan: LaunchPlan, name: str, start_in_s: int) -> str:
    """Return lines for a shell that start the shards as ranks of mpirun, and merge their runs."""
    command = plan.render_line(*_AUTO, '--run-dir "$runs"', "--quiet")
    return f"""start=$(( $(date +%s) + {start_in_s} )); runs={name}-$start
mpirun -n {plan.shards} {command}
loadgen merge --output "$runs/merged" "$runs"/*-shard-*
"""


def _list_secret_flags(words: Sequence[str], options: Options) -> list[str]:
    """List a command's flags, except --header, whose values are secret by name or form."""
    known = Secrets.collect(
        tables=(options.overrides, options.launching.settings), url=options.endpoint or ""
    )
    flags: dict[str, None] = {}
    flag = ""
    for word, shown in zip(words, hide_argument_secrets(words), strict=True):
        flag = word.partition("=")[0] if word.startswith("-") else flag
        if flag != "--header" and (shown != word or known.conceal(word) != word):
            flags[flag] = None
    return list(flags)
