"""More figures: those that vLLM's block does not have, in lines under it."""

from __future__ import annotations

from collections.abc import Iterator

from loadgen.figures.metrics import Metrics


def lines(metrics: Metrics, reasoned: int = 0) -> Iterator[str]:
    """What one user, one GPU, a prompt and an answer got of the server, as far as it is known.

    In `reasoned` responses the first token was of reasoning.
    """
    if visible := _visible(metrics, reasoned):
        yield visible
    if rates := _rates(metrics):
        yield rates
    if prefill := _prefill(metrics):
        yield prefill
    if set(metrics.finish_reasons) - {"none"}:
        counts = (f"{reason} {count}" for reason, count in metrics.finish_reasons.items())
        yield f"finish reasons: {', '.join(counts)}"


def _visible(metrics: Metrics, reasoned: int) -> str:
    """The time to the first visible token, where reasoning comes before it."""
    ttft, ttfvt = metrics.ttft, metrics.ttfvt
    if not ttft.n or ttfvt == ttft:
        return ""
    if not ttfvt.n:  # all ended within their reasoning, or the run is older than the figure
        all_reasoned = reasoned >= ttft.n
        return "TTFVT: none: no response is known to have text after its reasoning" * all_reasoned
    never = ttft.n - ttfvt.n
    ended = f"; {never} of {ttft.n} responses have none: they ended within their reasoning" * bool(never)
    return f"TTFVT (first visible token): {ttfvt.mean_ms:.2f} ms mean, {ttfvt.median_ms:.2f} median{ended}"


def _rates(metrics: Metrics) -> str:
    parts = []
    if (users := metrics.user_tps).n:
        parts.append(f"per user: {users.mean_tok_s:.1f} tok/s mean, {users.min_tok_s:.1f} least (1 / TPOT)")
    if metrics.output_throughput_per_gpu_per_s is not None:
        parts.append(f"per GPU: {metrics.output_throughput_per_gpu_per_s:.1f} output tok/s")
    if (normalized := metrics.e2el_per_token).n:
        parts.append(f"E2EL per output token: {normalized.mean_ms:.2f} ms mean")
    return "; ".join(parts)


def _prefill(metrics: Metrics) -> str:
    speed = metrics.prefill_speed
    if not speed.n:
        return ""
    each = f"{speed.mean_tok_s:,.0f} tok/s mean, {speed.median_tok_s:,.0f} median (input tokens / TTFT)"
    waits = []
    if metrics.prefill_behind:
        behind = f"{metrics.prefill_behind} of {speed.n} requests"
        waits.append(f"{behind} were sent while another had no token yet")
    if metrics.prefill_queued is not None:
        waits.append(f"{100 * metrics.prefill_queued:.0f} % of TTFT was in the server's queue, as it reports")
    return "; ".join([f"prefill: {each}", *waits])
