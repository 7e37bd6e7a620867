"""Launch plan: the command line of `loadgen bench` that every shard gets, checked before any begins."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import msgspec

from loadgen.base.errors import UsageError
from loadgen.plan import profile
from loadgen.plan.plan_inputs import Seed
from loadgen.run import bench
from loadgen.run.credentials import flags_with_secrets
from loadgen.run.options import Options, parse
from loadgen.verdict import requested_metrics

_OWN = {"--shard": "shard", "--start-at": "start_at", "--run-dir": "run_dir"}  # what is added for each shard
PROCESSES = 2  # of one worker: one captures, one decodes


class LaunchPlan(msgspec.Struct, frozen=True):
    """What several processes are to run: `bench` with these flags, of which all have the same seed."""

    shards: int
    flags: tuple[str, ...]
    workers: int = 1  # in each
    headers: tuple[str, ...] = ()  # names of those that stand in the flags, with their values
    secret_flags: tuple[str, ...] = ()  # other flags whose values hold what seems to be a key

    @property
    def cpus(self) -> int:
        """How many CPUs a shard keeps busy at most."""
        return PROCESSES * self.workers

    def words(self, *added: str) -> list[str]:
        """The command, with what is added for one way to start it."""
        return ["loadgen", "bench", *self.flags, *added]

    def line(self, *added: str) -> str:
        """The same for a shell; what is added is in its language already."""
        return " ".join([shlex.join(self.words()), *added])


def launch_plan(shards: int, flags: Sequence[str]) -> LaunchPlan:
    """The plan of flags as `loadgen bench` takes them; a seed is drawn where they have none.

    Raises UsageError where they could not be those of a shard.
    """
    words = list(flags[1:] if flags[:1] == ["bench"] else flags)
    options = parse(words)
    for flag, name in _OWN.items():
        if getattr(options, name) is not None:
            raise UsageError(f"leave out {flag}: each shard is given its own")
    _check(options, shards)
    seed = [] if options.seed is not None else ["--seed", str(Seed.drawn().value)]
    workers = max(options.workers, 1)  # of `auto` it is known only where the shards run
    secret = tuple(flags_with_secrets(words, options))
    return LaunchPlan(shards, (*words, *seed), workers, tuple(options.headers), secret)


def _check(options: Options, shards: int) -> None:
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
    requested_metrics.check_profile(workload)
    most = workload.max_concurrency
    if most is not None and shards > most:
        raise UsageError(f"--shards {shards}: --max-concurrency {most} has slots for no more than {most}")
