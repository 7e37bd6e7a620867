"""More figures: those that vLLM's block does not have, in lines under it."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import asdict

from loadgen.figures.figure_table import LATENCIES, OURS, OWN, SELECTABLE, SPEEDS, Figure
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
    return f"{_sentence(SELECTABLE['ttfvt'], metrics)}{ended}"


def _rates(metrics: Metrics) -> str:
    """Every figure that has a sentence and no line of its own."""
    own_line = ("ttfvt", "prefill_speed")
    table = (*SPEEDS, *OWN, *LATENCIES)
    sentences = (_sentence(figure, metrics) for figure in table if figure.key not in own_line)
    return "; ".join(filter(None, sentences))


def _sentence(figure: Figure, metrics: Metrics) -> str:
    """The figure's sentence; "" where it has none, or the run has no value of it."""
    value = getattr(metrics, figure.field_name)
    if not figure.sentence or value is None:
        return ""
    if figure.kind == OURS:
        return figure.sentence.format(value)
    return figure.sentence.format_map(figure.words_of(asdict(value))) if value.n else ""


def _prefill(metrics: Metrics) -> str:
    speed = metrics.prefill_speed
    if not speed.n:
        return ""
    waits = []
    if metrics.prefill_behind:
        behind = f"{metrics.prefill_behind} of {speed.n} requests"
        waits.append(f"{behind} were sent while another had no token yet")
    if metrics.prefill_queued is not None:
        waits.append(f"{100 * metrics.prefill_queued:.0f} % of TTFT was in the server's queue, as it reports")
    return "; ".join([_sentence(SELECTABLE["prefill_speed"], metrics), *waits])
