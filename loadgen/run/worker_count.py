"""Worker count: how many processes send a plan, by what one of them can measure here, and on which CPUs."""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from loadgen.base.errors import UsageError
from loadgen.base.text import format_count
from loadgen.facts.run_facts import HEADROOM, Calibration
from loadgen.features.selftest.capacity import measure_one_worker
from loadgen.figures.metrics import compute_metrics
from loadgen.figures.objectives import make_metric_options
from loadgen.host.environment import count_usable_cpus
from loadgen.plan.plan import Plan
from loadgen.records.record import Records
from loadgen.run.command.options import Options
from loadgen.run.command.progress import Display
from loadgen.run.firing import TransportOptions
from loadgen.settings.run_settings import AUTO

_LOG = logging.getLogger("loadgen")
_GUESSED_MS = 20.0  # between messages, where no warm-up showed the server's pace
_CPUS_EACH = 2  # of a worker: it captures in one process and decodes in another
_SYSTEM = Path("/sys/devices/system/cpu")
_LIST = "cpu{}/topology/thread_siblings_list"


def adjust_to_warmup(
    options: Options, made: Plan, sent: TransportOptions, warmed: Records, display: Display
) -> TransportOptions:
    """Return how a plan is sent, with the workers that `--workers auto` chooses, and why; others unchanged.

    One worker's self-test is read, or else made now.
    """
    if options.workers != AUTO:
        return sent

    def calibrate() -> Calibration:
        with display.waiting("self-test of one worker, once on this machine: --workers auto", forks=True):
            return measure_one_worker(made.profile, sent.transport, warmed)

    targets = max(len(sent.targets), 1)
    workers, why = choose_automatically(made, warmed, calibrate, sent.part.share.of, targets)
    return replace(spread_over_workers(sent, made, workers), why_workers=why)


def spread_over_workers(options: TransportOptions, plan: Plan, asked: int) -> TransportOptions:
    """Return the options for `asked` workers; fewer, with a warning, if the plan lacks slots or requests.

    The number is a multiple of the targets'. Several workers are pinned to CPUs that a server on this
    machine does not use, if there are enough. Raises UsageError for several workers on other platforms than
    Linux, and where the load has not one for each target.
    """
    targets = max(len(options.targets), 1)
    # AUTO: one for the warm-up, which shows what more are decided by.
    asked = math.ceil((asked or 1) / targets) * targets
    if asked > 1 and sys.platform != "linux":
        raise UsageError("--workers needs Linux: leave it out here")
    count = min(asked, count_usable(options, plan)) // targets * targets
    if not count:
        raise UsageError(
            f"{targets} --base-url need {targets} requests at once or more: raise --max-concurrency and "
            "--num-prompts"
        )
    if count < asked:
        limit = "--max-concurrency" if plan.divisible is None else plan.divisible[0]
        _LOG.warning("--workers %d: the load has room for %d (%s, requests)", asked, count, limit)
    if count == 1:
        return options
    cpus = find_spare_cpus(options.server_pids(), count)
    return replace(options, workers=count, cpus=cpus, cpu_words=format_cpu_list(cpus))


def count_usable(options: TransportOptions, plan: Plan) -> int:
    """Count the workers for which the options' share of a plan has slots and requests; 1 at least."""
    share, limit = options.part.share, plan.divisible
    requests = len(share.list_indices(len(plan), plan.sessions))
    return max(1, requests if limit is None else min(share.count_slots(limit[1]), requests))


def expect_load(made: Plan, warmed: Records, part_of: int = 1) -> tuple[float, str]:
    """Estimate the load of one of `part_of` equal shares of a plan, by its rate and its warm-up's pace.

    Returns messages per second, and what the estimate is based on.

    Requests may wait for a slot, so with a rate and slots the lower of both counts. Streams that share a
    server are slower than a warm-up's few: with slots alone this is the most there can be. Without a success
    in the warm-up the profile's output length and 20 ms between messages are assumed.
    """
    pace, streamed = compute_metrics(warmed, make_metric_options(made.profile)), made.profile.stream
    answers = int(warmed.ok.sum())
    per_answer, interval_ms = float(made.profile.output_len), _GUESSED_MS
    if answers:
        per_answer = pace.health.messages / answers if streamed else 1.0
        interval_ms = pace.itl.mean_ms if streamed and pace.itl.n else pace.e2el.mean_ms
    slots = made.streams if math.isinf(made.rate_per_s) else made.profile.max_concurrency
    by_slots = math.inf if slots is None else slots * 1e3 / max(interval_ms, 1e-3)
    by_rate = made.rate_per_s * per_answer
    if by_rate <= by_slots:
        source = f"{made.rate_per_s:g} requests/s of {per_answer:.3g} chunks"
    else:
        source = f"{format_count(int(slots or 0), 'stream')}, a chunk each {interval_ms:.3g} ms"
    if not answers:
        source += " (a guess: there was no warm-up)"
    return min(by_rate, by_slots) / part_of, source


def count_affordable() -> int:
    """Count the workers for which this process has two CPUs each; at least one."""
    return max(1, count_usable_cpus() // _CPUS_EACH)


def choose_workers(
    load: tuple[float, str], measured: Calibration, most: int, targets: int = 1
) -> tuple[int, str]:
    """Choose how many workers hold HEADROOM times the load, at most `most`, by one worker's self-test.

    `load` is as `expect_load` returns it. Returns the number, a multiple of `targets` and at least one for
    each, and why; `most` if one worker held no load.
    """
    each = measured.capacity_of(1)
    messages_per_s, source = load
    wanted = HEADROOM * messages_per_s / each if each else math.inf
    needed = most if wanted > most else max(1, math.ceil(wanted))
    workers = min(math.ceil(needed / targets), max(most // targets, 1)) * targets
    if not each:
        held = "no load of the self-test was held by one worker"
    else:
        least = "" if measured.capacity_bounded else "at least "
        held = f"one worker holds {least}{each:,.0f}"
    why = f"auto: {messages_per_s:,.0f} chunks/s expected, {source}; {held}"
    if wanted > most:
        why += f"; more than {most} would need more CPUs"
    return workers, why


def choose_automatically(
    made: Plan,
    warmed: Records,
    calibrated: Callable[[], Calibration],
    part_of: int = 1,
    targets: int = 1,
) -> tuple[int, str]:
    """Choose the workers of `--workers auto`, and say why; `calibrated` returns one worker's self-test.

    It is not called on a machine without CPUs for a second worker, which has one, if there is one target.
    """
    most = count_affordable()
    if most == 1 and targets == 1:
        return 1, f"auto: a second needs {2 * _CPUS_EACH} CPUs"
    return choose_workers(expect_load(made, warmed, part_of), calibrated(), most, targets)


def find_spare_cpus(
    pids: Collection[int],
    workers: int,
    affinity: Callable[[int], set[int]] = os.sched_getaffinity,
    system: Path = _SYSTEM,
) -> tuple[int, ...]:
    """Find CPUs for workers that none of the processes `pids` may use; whole cores if they are enough.

    () where the server may run anywhere, too few CPUs are left for two to a worker, or this process may use
    none of the server's.
    """
    allowed = affinity(0)
    taken = set().union(*(read_affinities(pid, affinity) for pid in pids))
    if not taken & allowed:
        return ()
    near = {cpu: read_siblings(cpu, system) for cpu in allowed - taken}
    return choose_cpus(near, taken, _CPUS_EACH * workers)


def choose_cpus(near: Mapping[int, set[int]], taken: set[int], least: int) -> tuple[int, ...]:
    """Return all CPUs of wholly free cores if they are `least` or more, else all free ones; () if too few.

    `near` has each free CPU's core, `taken` the CPUs of the server.
    """
    apart = [cpu for cpu, core in near.items() if not core & taken]
    for cpus in (apart, list(near)):
        if len(cpus) >= least:
            return tuple(sorted(cpus))
    return ()


def read_affinities(pid: int, affinity: Callable[[int], set[int]]) -> set[int]:
    """Return the CPUs that any thread of a process may run on; none if it has ended."""
    cpus: set[int] = set()
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            cpus |= affinity(int(thread))
    return cpus


def read_siblings(cpu: int, system: Path = _SYSTEM) -> set[int]:
    """Return the CPUs of the same core, `cpu` itself included; `cpu` alone if that is not known."""
    with suppress(OSError, ValueError):
        return set(parse_cpu_list((system / _LIST.format(cpu)).read_text("ascii")))
    return {cpu}


def parse_cpu_list(text: str) -> Iterator[int]:
    """Parse a list of CPUs in the kernel's form, 0-3,8, and yield each; raises ValueError."""
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def format_cpu_list(cpus: Iterable[int]) -> str:
    """Format CPUs in the kernel's form of a list, 0-3,8."""
    spans: list[list[int]] = []
    for cpu in sorted(cpus):
        if spans and cpu == spans[-1][1] + 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in spans)
