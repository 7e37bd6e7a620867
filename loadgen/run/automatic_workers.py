"""How many workers a load needs, by what one of them was able to measure on this machine."""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import msgspec

from loadgen.base.text import format_count
from loadgen.figures.metrics import compute
from loadgen.figures.record import Records
from loadgen.plan.plan import Plan
from loadgen.verdict.calibration import Calibration
from loadgen.verdict.client_checks import HEADROOM
from loadgen.verdict.requested_metrics import metric_options

_GUESSED_MS = 20.0  # between messages, where no warm-up showed the server's pace
_CPUS_EACH = 2  # of a worker: it captures in one process and decodes in another


class WorkerChoice(msgspec.Struct, frozen=True):
    """How many workers send a plan, and why; "" where they were asked for."""

    workers: int
    why: str = ""


class ExpectedLoad(msgspec.Struct, frozen=True):
    """The messages per second of a run to come, and by what they are expected."""

    messages_per_s: float
    source: str


def expected(made: Plan, warmed: Records, part_of: int = 1) -> ExpectedLoad:
    """The load of one of `part_of` equal parts of a plan, from its rate and the pace of its warm-up.

    Requests may wait for a slot, so with a rate and slots the lower of both counts. Streams that share a
    server are slower than a warm-up's few: with slots alone this is the most there can be.
    """
    pace, streamed = compute(warmed, metric_options(made.profile)), made.profile.stream
    answers = int(warmed.ok.sum())
    per_answer, interval_ms = float(made.profile.output_len), _GUESSED_MS
    if answers:
        per_answer = pace.health.messages / answers if streamed else 1.0
        interval_ms = pace.itl.mean_ms if streamed and pace.itl.n else pace.e2el.mean_ms
    slots = made.streams if math.isinf(made.rate_per_s) else made.profile.max_concurrency
    by_slots = math.inf if slots is None else slots * 1e3 / max(interval_ms, 1e-3)
    by_rate = made.rate_per_s * per_answer
    if by_rate <= by_slots:
        source = f"{made.rate_per_s:g} requests/s of {per_answer:.3g} messages"
    else:
        source = f"{format_count(int(slots or 0), 'stream')}, a message each {interval_ms:.3g} ms"
    if not answers:
        source += " (a guess: there was no warm-up)"
    return ExpectedLoad(min(by_rate, by_slots) / part_of, source)


def usable_cpus() -> int:
    """How many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def most_workers() -> int:
    """How many workers this process may give two CPUs each; at least one."""
    return max(1, usable_cpus() // _CPUS_EACH)


def choose(load: ExpectedLoad, measured: Calibration, most: int, targets: int = 1) -> WorkerChoice:
    """As many workers as hold HEADROOM times the load, at most `most`; a multiple of the targets."""
    each = measured.capacity_of(1)
    wanted = HEADROOM * load.messages_per_s / each if each else math.inf
    needed = most if wanted > most else max(1, math.ceil(wanted))
    workers = min(math.ceil(needed / targets), max(most // targets, 1)) * targets
    if not each:
        held = "no load of the self-test was held by one worker"
    else:
        least = "" if measured.capacity_bounded else "at least "
        held = f"one worker holds {least}{each:,.0f}"
    why = f"auto: {load.messages_per_s:,.0f} messages/s expected, {load.source}; {held}"
    if wanted > most:
        why += f"; more than {most} would need more CPUs"
    return WorkerChoice(workers, why)


def automatic(
    made: Plan,
    warmed: Records,
    calibrated: Callable[[], Calibration],
    part_of: int = 1,
    targets: int = 1,
) -> WorkerChoice:
    """The workers of `--workers auto`; `calibrated` gives one worker's self-test, measured if need be.

    One worker is never measured for a machine that has no CPUs for a second.
    """
    most = most_workers()
    if most == 1 and targets == 1:
        return WorkerChoice(1, f"auto: a second needs {2 * _CPUS_EACH} CPUs")
    return choose(expected(made, warmed, part_of), calibrated(), most, targets)
