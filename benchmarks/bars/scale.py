"""Scale: one worker and several on the same load, each run compared with the logs of its servers."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.bars import replay
from benchmarks.bars.streams import UNPACED, WIDE
from benchmarks.clients.adapters import Installed, Load
from benchmarks.harness import truth
from benchmarks.harness.page import Bar, Section, markdown, spread
from benchmarks.harness.process import Command, CouldNotRun, checkout_env, run
from loadgen.host.environment import count_usable_cpus
from loadgen.report import run_directory
from loadgen.verdict.evidence import RunEvidence

_WIDER = Load("wider", streams=20_000, requests=20_000, output_tokens=8, interval_ms=2000, ttft_ms=2000)
_HELD = Load("held", streams=200, requests=1200, output_tokens=32, interval_ms=40, ttft_ms=40)
_HOLDERS = (1, 2, 3, 7)
_MOST_OFF, _MOST_UNHELD, _MOST_RATE_OFF, _MOST_LATE_MS = 0.01, 0.01, 0.005, 1.0
_LEAST_TIMES, _CPUS_OF_TWO = 1.8, 4
_NO_DEARER = 1.1  # the CPU of a token in two workers, as a multiple of that in one
_RATE_PER_S, _RATE_S = 2000, 10


@dataclass(frozen=True)
class Spread:
    """A load on N null servers, sent by W workers."""

    load: Load
    workers: int
    servers: int = 1

    @property
    def words(self) -> str:
        servers = f", {self.servers} servers" if self.servers > 1 else ""
        return f"{self.load.name}, {self.workers} worker{'s' * (self.workers > 1)}{servers}"


@dataclass(frozen=True)
class Shown:
    """What one run shows: the servers' figures and the client's."""

    true: truth.Truth
    ttft_error: float  # relative
    itl_error: float
    missing: int  # messages that the servers wrote and the client has not
    coalesced: float  # share of messages that were coalesced
    tokens_per_s: float
    held: float  # concurrency between ramp and drain
    cpu_us: float  # of the whole client, a token
    capture_us: float  # of its capturing processes
    peak_mib: float  # of the largest process
    verdict: str


def trial(spread_over: Spread) -> Shown:
    """One run of this checkout against null servers of its own; raises CouldNotRun."""
    load = spread_over.load
    with tempfile.TemporaryDirectory() as name:
        out = Path(name)
        logs = [out / f"truth-{number}.jsonl" for number in range(spread_over.servers)]
        with ExitStack() as stack:
            servers = [
                stack.enter_context(truth.null_server(log, load.ttft_ms, load.interval_ms)) for log in logs
            ]
            cost = run(_command(spread_over, [server.base_url for server in servers], out))
        true = truth.read(*logs)
        if true.requests != load.requests:
            raise CouldNotRun(f"the servers answered {true.requests} requests of {load.requests}")
        (written,) = (path.parent for path in out.glob("*/result.json"))
        figures = json.loads((written / "result.json").read_text("utf-8"))
        result = run_directory.load(written)
    evidence = RunEvidence(result.facts, result.records, result.metrics)
    return Shown(
        true=true,
        ttft_error=figures["mean_ttft_ms"] / true.mean_ttft_ms - 1,
        itl_error=figures["p99_itl_ms"] / true.p99_itl_ms - 1 if true.p99_itl_ms else 0.0,
        missing=true.tokens - result.metrics.health.messages,
        coalesced=result.metrics.health.shared_share,
        tokens_per_s=figures["output_throughput"],
        held=evidence.held_concurrency or result.metrics.mean_concurrency,
        cpu_us=1e6 * cost.cpu_s / true.tokens,
        capture_us=1e6 * result.facts.client.cpu_s / true.tokens,
        peak_mib=cost.peak_rss_bytes / 2**20,
        verdict=result.verdict.level.value,
    )


def _command(over: Spread, base_urls: Sequence[str], out: Path) -> Command:
    load = over.load
    argv = [sys.executable, "-m", "loadgen", "bench", "--model", "null", "--quiet", "--run-dir", str(out)]
    argv += [word for url in base_urls for word in ("--base-url", url)]
    argv += ["--workers", str(over.workers), "--num-prompts", str(load.requests)]
    argv += ["--max-concurrency", str(load.streams), "--random-input-len", str(load.input_tokens)]
    argv += ["--random-output-len", str(load.output_tokens), "--num-warmups", "0"]
    return Command(argv, checkout_env())


def _taking_turns(every: Sequence[Spread], repeats: int) -> tuple[dict[Spread, list[Shown]], list[str]]:
    """Every one once per repeat, another first each time, and what could not run."""
    found: dict[Spread, list[Shown]] = {each: [] for each in every}
    faults: list[str] = []
    for repeat in range(repeats):
        turn = repeat % len(every)
        for each in [*every[turn:], *every[:turn]]:
            try:
                found[each].append(trial(each))
            except CouldNotRun as error:
                faults.append(f"{each.words}: {error}")
                continue
            shown = found[each][-1]
            print(
                f"{each.words} {repeat + 1}/{repeats}: {shown.tokens_per_s:,.0f} tok/s, "
                f"{shown.cpu_us:.1f} µs a token, TTFT {100 * shown.ttft_error:+.2f} %",
                file=sys.stderr,
                flush=True,
            )
    return found, faults


def workers(installed: Installed, repeats: int) -> Section:
    """One worker and two: the same paced load, the same for each, unpaced; and slots held by more."""
    wide = [Spread(WIDE, 1), Spread(WIDE, 2)]
    both = replace(UNPACED, name="unpaced on two", streams=2 * UNPACED.streams, requests=2 * UNPACED.requests)
    unpaced = [Spread(UNPACED, 1), Spread(both, 2, 2)]
    half = replace(WIDE, name="half", streams=WIDE.streams // 2, requests=WIDE.requests // 2)
    equal = [Spread(half, 1), Spread(replace(WIDE, name="half each"), 2, 2)]
    held = [Spread(_HELD, count) for count in _HOLDERS]
    found, faults = _taking_turns(wide, repeats)
    for several in (equal, unpaced, held):
        more, faulty = _taking_turns(several, repeats)
        found |= more
        faults += faulty
    bars = [bar for each in wide for bar in _true(each, found[each])]
    bars += [_dearer(found[equal[0]], found[equal[1]]), _times(found[unpaced[0]], found[unpaced[1]])]
    bars += [_concurrency(each, found[each]) for each in held]
    return Section("Workers (`--workers N`)", bars, _table(found), faults)


def wider(installed: Installed, repeats: int) -> Section:
    """20,000 streams over two workers, with a server each: one process may not open as many files."""
    each = Spread(_WIDER, 2, 2)
    found, faults = _taking_turns([each], repeats)
    return Section("20,000 streams", _true(each, found[each]), _table(found), faults)


def rate(installed: Installed, repeats: int) -> Section:
    """An open loop of 2,000 requests per second of one token each, over one worker and two."""
    words = ["--request-rate", str(_RATE_PER_S), "--random-input-len", "64", "--random-output-len", "1"]
    bars, rows = [], []
    for count in (1, 2):
        late = [
            replay.ours([*words, "--workers", str(count)], _RATE_PER_S * _RATE_S, installed.slow_moments)
            for _ in range(repeats)
        ]
        name = f"{_RATE_PER_S} requests/s, {count} worker{'s' * (count > 1)}"
        off, p99_ms = [100 * each.rate_error for each in late], [each.p99_ms for each in late]
        away_ms = spread([each.away_p99_ms for each in late], "{:.3f}")
        bars.append(
            Bar(
                f"{name}: rate",
                f"off by {spread(off, '{:+.3f}')} %",
                f"± {100 * _MOST_RATE_OFF:g} %",
                abs(statistics.median_high(off)) <= 100 * _MOST_RATE_OFF,
            )
        )
        bars.append(
            Bar(
                f"{name}: P99 lateness",
                f"{spread(p99_ms, '{:.3f}')} ms; away from slow moments {away_ms} ms",
                f"≤ {_MOST_LATE_MS:g} ms",
                statistics.median_high(p99_ms) <= _MOST_LATE_MS,
            )
        )
        p50_ms = spread([each.p50_ms for each in late], "{:.3f}")
        away = spread([100 * each.away for each in late], "{:.0f}")
        stolen = spread([100 * each.stolen for each in late], "{:.1f}")
        rows.append((name, f"{p50_ms} ms", f"{away} %", f"{stolen} %", late[-1].verdict))
    head = ("load", "P50 lateness", "away from slow moments", "stolen by the host", "verdict")
    return Section("Open loop of one token", bars, markdown(head, rows))


def _true(each: Spread, runs: Sequence[Shown]) -> list[Bar]:
    """Whether mean TTFT and P99 ITL are the servers', and no message is missing."""
    limit = f"± {100 * _MOST_OFF:g} %"
    if not runs:
        return [Bar(each.words, "could not run, see below", limit, None)]
    bars = [
        Bar(
            f"{each.words}: {what}",
            f"off by {spread([100 * error for error in errors], '{:+.3f}')} %",
            limit,
            statistics.median_high(map(abs, errors)) <= _MOST_OFF,
        )
        for what, errors in (
            ("mean TTFT", [shown.ttft_error for shown in runs]),
            ("P99 ITL", [shown.itl_error for shown in runs]),
        )
    ]
    missing, peak = max(shown.missing for shown in runs), min(shown.true.peak_streams for shown in runs)
    streams = each.load.streams
    what, met = f"{each.words}: messages lost, streams at once", missing == 0 and peak == streams
    bars.append(Bar(what, f"{missing}, {peak:,}", f"0, {streams:,}", met))
    return bars


def _dearer(one: Sequence[Shown], two: Sequence[Shown]) -> Bar:
    times = [b.capture_us / a.capture_us for a, b in zip(one, two, strict=False)]
    what, limit = "capturing CPU of a token, 2 × 512 streams ÷ 512", f"≤ {_NO_DEARER:g}"
    if not times:
        return Bar(what, "could not run, see below", limit, None)
    return Bar(what, spread(times, "{:.2f}"), limit, statistics.median(times) <= _NO_DEARER)


def _times(one: Sequence[Shown], two: Sequence[Shown]) -> Bar:
    """Two workers' throughput as a multiple of one's; without CPUs for both no bar holds."""
    times = [b.tokens_per_s / a.tokens_per_s for a, b in zip(one, two, strict=False)]
    what, cpus = "unpaced tok/s, two workers ÷ one, a server each", count_usable_cpus()
    limit = f"≥ {_LEAST_TIMES:g} on {_CPUS_OF_TWO} CPUs or more"
    if not times:
        return Bar(what, "could not run, see below", limit, None)
    met = statistics.median(times) >= _LEAST_TIMES if cpus >= _CPUS_OF_TWO else None
    return Bar(what, f"{spread(times, '{:.2f}')} on {cpus} CPUs", limit, met)


def _concurrency(each: Spread, runs: Sequence[Shown]) -> Bar:
    what, limit = f"{each.words}: concurrency held", f"{each.load.streams} ± {100 * _MOST_UNHELD:g} %"
    if not runs:
        return Bar(what, "could not run, see below", limit, None)
    off = statistics.median_high(abs(shown.held / each.load.streams - 1) for shown in runs)
    return Bar(what, spread([shown.held for shown in runs], "{:.1f}"), limit, off <= _MOST_UNHELD)


def _table(found: dict[Spread, list[Shown]]) -> list[str]:
    head = ("load", "tok/s", "CPU µs a token", "of it capturing", "coalesced", "largest process", "verdict")
    rows = [
        (
            each.words,
            spread([shown.tokens_per_s for shown in runs], "{:,.0f}"),
            spread([shown.cpu_us for shown in runs], "{:.1f}"),
            spread([shown.capture_us for shown in runs], "{:.1f}"),
            spread([100 * shown.coalesced for shown in runs], "{:.2f}") + " %",
            spread([shown.peak_mib for shown in runs], "{:.0f}") + " MiB",
            ", ".join(sorted({shown.verdict for shown in runs})),
        )
        for each, runs in found.items()
        if runs
    ]
    loads = dict.fromkeys((each.load.name, each.load.words) for each in found)
    return [*markdown(head, rows), "", *markdown(("load", "what"), [*loads])]
