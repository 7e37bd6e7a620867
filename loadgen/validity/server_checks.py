"""Server findings: signs that the server was not at rest, not alone, or counts otherwise."""

from __future__ import annotations

import math

from loadgen.endpoint.server_counters import ServerSample
from loadgen.validity.evidence import LEAST_GAUGES, FirstWave, RunEvidence, Trend, percent
from loadgen.validity.reconcile import Mismatch, mismatches
from loadgen.validity.reconcile import foreign_requests as foreign_count

FIRST_TTFT, FIRST_TPOT = (2.0, 5.0), (1.5, 0.5)  # a ratio and milliseconds, both exceeded
TREND_CHANCE, TREND_CHANGE = 0.003, 0.1  # of two tests a run: a healthy one fails either once in 170
FOREIGN, PREEMPTED = 0.01, 0.01  # of the requests
TOKENS_OFF, TOKENS_FAR_OFF = 0.005, 0.1
WAITED, PINNED = 0.5, 0.9  # of the samples, of those in which requests waited


def counters_reset(case: RunEvidence) -> str:
    """The server's counters went backwards."""
    reset = case.window is not None and case.window.reset
    return "the server's counters went backwards in the run: it was restarted" if reset else ""


def first_wave(case: RunEvidence) -> str:
    """What was sent first was slower than a burst explains."""
    seen = (("TTFT", case.first_ttft(), FIRST_TTFT), ("TPOT", case.first_tpot(), FIRST_TPOT))
    return "; ".join(filter(None, (_slower(name, wave, least) for name, wave, least in seen)))


def _slower(name: str, wave: FirstWave | None, least: tuple[float, float]) -> str:
    if wave is None or wave.ratio <= least[0] or wave.first_ms - wave.later_ms <= least[1]:
        return ""
    return (
        f"{name} of the first {wave.size} was {wave.first_ms:.4g} ms (median), of later requests "
        f"{wave.later_ms:.4g} ms: {wave.ratio:.1f} × their usual, the burst allowed for"
    )


def tpot_trend(case: RunEvidence) -> str:
    """TPOT drifted."""
    return _drift("TPOT", case.tpot_trend())


def throughput_trend(case: RunEvidence) -> str:
    """Throughput drifted."""
    return _drift("output throughput", case.throughput_trend())


def _drift(name: str, trend: Trend | None) -> str:
    if trend is None or trend.probability >= TREND_CHANCE or abs(trend.change) <= TREND_CHANGE:
        return ""
    word = "rose" if trend.change > 0 else "fell"
    return (
        f"{name} {word} by {percent(abs(trend.change))} over {trend.n} waves "
        f"(Mann-Kendall p = {trend.probability:.2g}, Theil-Sen slope)"
    )


def foreign_requests(case: RunEvidence) -> str:
    """The server had other work."""
    window, said = case.window, []
    if window is None:
        return ""
    before = (window.running_before or 0) + (window.waiting_before or 0)
    if before >= 1:
        said.append(f"{before:.0f} requests were on the server before the run")
    extra, ours = foreign_count(window, case.metrics), case.metrics.requests
    if extra > FOREIGN * ours:
        said.append(f"the server finished {ours + extra} requests, {ours} of them ours")
    peak = case.metrics.peak_concurrency
    crowd = [one for sample in case.samples if (one := (sample.running or 0) + (sample.waiting or 0)) > peak]
    if len(crowd) > 1:
        said.append(
            f"in {len(crowd)} samples up to {max(crowd):.0f} requests were there, {peak} ours at most"
        )
    return "; ".join(said)


def preemptions(case: RunEvidence) -> str:
    """Requests were thrown out and computed again."""
    count = case.window.preemptions if case.window else None
    if not count or count <= PREEMPTED * case.metrics.requests:
        return ""
    return f"{count} preemptions in {case.metrics.requests} requests: the KV cache was full"


def server_limit(case: RunEvidence) -> str:
    """The server ran as many as it may, and the others waited."""
    waited, most = _waiting(case)
    if not case.closed or not waited or most >= case.asked:
        return ""
    pinned = sum(sample.running == most for sample in waited)
    if pinned <= PINNED * len(waited):
        return ""
    return (
        f"at most {most:.0f} of {case.asked} ran at once; in {len(waited)} of {len(case.samples)} samples "
        "others waited: TTFT holds their time in the queue"
    )


def queued(case: RunEvidence) -> str:
    """Requests waited though the server had room."""
    waited, most = _waiting(case)
    if not waited or server_limit(case):
        return ""
    full = max((sample.kv_cache_usage or 0.0) for sample in waited)
    said = f"requests waited in {len(waited)} of {len(case.samples)} samples, at most {most:.0f} ran at once"
    kv = f"; KV cache up to {percent(full)} full" if full else ""
    queue = case.window.queue if case.window else None
    return said + kv + (f"; {queue.mean_ms:.4g} ms in the queue on average" if queue else "")


def _waiting(case: RunEvidence) -> tuple[list[ServerSample], float]:
    """The samples with requests waiting, if they are most of enough samples, and the most that ran."""
    samples = case.samples
    waited = [sample for sample in samples if (sample.waiting or 0) >= 1]
    if len(samples) < LEAST_GAUGES or len(waited) <= WAITED * len(samples):
        return [], 0.0
    return waited, max((sample.running or 0.0) for sample in samples)


def tokens_far_off(case: RunEvidence) -> str:
    """Client and server cannot speak of the same run."""
    return _token_gap(case, TOKENS_FAR_OFF, math.inf)


def tokens_differ(case: RunEvidence) -> str:
    """Client and server count differently."""
    return _token_gap(case, TOKENS_OFF, TOKENS_FAR_OFF)


def _token_gap(case: RunEvidence, above: float, most: float) -> str:
    """Where nothing else explains it: failures leave tokens uncounted, and foreign requests add their own."""
    window, metrics = case.window, case.metrics
    if window is None or not window.settled or metrics.failed:
        return ""
    foreign = foreign_count(window, metrics) > 0
    for found in mismatches(window, metrics):
        gap = abs(found.server - found.client) / max(found.client, 1)
        if (
            found.figure.endswith("tokens")
            and above < gap <= most
            and not (foreign and found.server > found.client)
        ):
            return _beside(found)
    return ""


def latencies_differ(case: RunEvidence) -> str:
    """The server's clocks saw other latencies."""
    found = mismatches(case.window, case.metrics) if case.window else []
    return "; ".join(_beside(one) for one in found if one.figure.endswith("(ms)"))


def _beside(found: Mismatch) -> str:
    figures = f"{found.client:.7g} by the client, {found.server:.7g} by the server"
    return f"{found.figure}: {figures}: {found.cause}"


def several_models(case: RunEvidence) -> str:
    """Another model was at work behind the port."""
    models = case.window.models if case.window else ()
    return f"{len(models)} models behind this port moved: {', '.join(models)}" if len(models) > 1 else ""


def unsettled(case: RunEvidence) -> str:
    """The server's last count was not its last."""
    window = case.window
    moving = window is not None and not window.settled
    return "the server's counters still moved after the run: its figures may lack the end" if moving else ""
