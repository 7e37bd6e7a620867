"""Speed: a run beside what its machine could do at best."""

from __future__ import annotations

from loadgen.analysis.audit.subject import AuditedRun
from loadgen.analysis.run_summary import Reported
from loadgen.roofline import bound
from loadgen.roofline.bound import Decode
from loadgen.roofline.ceiling import Ceiling

FAR_BEYOND = 1.25  # of the bandwidth; up to here what a name does not tell of the weights may explain
SHORT_PROMPT = 1 / 8  # of the answer: a speed with the prompt in it is then of decoding
SLOW_PREFILL = 0.05  # of the machine's peak
_GB = 1e9


def beyond_roofline(subject: AuditedRun) -> str:
    """Decoding reads more than the memory bus carries, whatever is stored how."""
    return _beyond(subject, FAR_BEYOND, float("inf"))


def above_roofline(subject: AuditedRun) -> str:
    """Decoding reads a little more than the memory bus carries."""
    return _beyond(subject, bound.TOLERANCE, FAR_BEYOND)


def beyond_peak(subject: AuditedRun) -> str:
    """A prompt's arithmetic exceeds the machine's peak."""
    ceiling, reported = subject.ceiling, subject.reported
    if ceiling is None:
        return ""
    found, peak = bound.prefill(ceiling, reported.figures, reported.load), ceiling.peak_flop_per_s
    if found is None or found.share is None or peak is None or found.share <= bound.TOLERANCE:
        return ""
    return (
        f"{found.tokens:.0f} tokens prefilled in {found.ttft_ms:g} ms are {found.flop_per_s / 1e12:.0f} "
        f"TFLOP/s, {found.share:.1f} × the peak of {peak / 1e12:.4g} ({ceiling.weights.computes}): "
        f"{found.least_ms:.0f} ms at least"
    )


def slow_kernel(subject: AuditedRun) -> str:
    """So far below the roofline that another kernel ran than the one that is meant."""
    if subject.ceiling is None:
        return ""
    return "; ".join(
        filter(None, (_slow_decode(subject, subject.ceiling), _slow_prefill(subject, subject.ceiling)))
    )


def share(reported: Reported, ceiling: Ceiling | None) -> float | None:
    """How much of the roofline decoding reached, 1 is all of it; None where that is not known."""
    found = _decode(reported, ceiling)
    return None if found is None else found.share


def _decode(reported: Reported, ceiling: Ceiling | None) -> Decode | None:
    return None if ceiling is None else bound.decode(ceiling, reported.figures, reported.load)


def _beyond(subject: AuditedRun, above: float, most: float) -> str:
    ceiling, found = subject.ceiling, _decode(subject.reported, subject.ceiling)
    if ceiling is None or found is None:
        return ""
    bus = ceiling.machine.bandwidth_bytes_per_s
    weights = ceiling.weight_bytes()  # of a mixture what one token reads, however many there are
    cached = found.batch * ceiling.weights.kv_bytes(found.context)
    needed = 1e3 * (weights + cached) / found.tpot_ms / bus
    if not above < needed <= most:
        return ""
    said = (
        f"{found.tpot_ms:.4g} ms a token ({found.by}): {weights / _GB:.2f} GB of weights in that time are "
        f"{1e3 * weights / found.tpot_ms / _GB:.0f} GB/s, {1e3 * weights / found.tpot_ms / bus:.1f} × the "
        f"bus of {bus / _GB:.0f}"
    )
    if cached >= 0.01 * weights:
        said += f" ({needed:.1f} × with {cached / _GB:.2f} GB of KV cache)"
    said += f"; {found.tpot_ms * bus / 1e3 / _GB:.3g} GB can be read"
    if subject.one_token_a_message:
        said += ", and a token a message (ITL is TPOT) rules out speculative decoding"
    return said


def _slow_decode(subject: AuditedRun, ceiling: Ceiling) -> str:
    reported, load = subject.reported, subject.reported.load
    figures = reported.figures
    timed = any(f"{rank}_{key}_ms" in figures for rank in ("mean", "median") for key in ("tpot", "itl"))
    if not timed:  # a speed holds the prompt's time, and Transformers' devices wait for one another
        long = (load.input_len or 0.0) > SHORT_PROMPT * (load.output_len or 0.0)
        if long or (ceiling.machine.devices > 1 and "transformers" in reported.engine.lower()):
            return ""
    return bound.fallback(ceiling, figures, load)


def _slow_prefill(subject: AuditedRun, ceiling: Ceiling) -> str:
    left_ms, length = subject.prefill_left_ms, subject.input_len
    least_ms = ceiling.prefill_ms(length) if length else None
    if not left_ms or not least_ms or not bound.LEAST_MS <= least_ms < SLOW_PREFILL * left_ms:
        return ""
    return (
        f"{left_ms:.0f} ms are left for each prompt's prefill, {100 * least_ms / left_ms:.2g} % of the "
        f"machine's peak ({least_ms:.0f} ms)"
    )
