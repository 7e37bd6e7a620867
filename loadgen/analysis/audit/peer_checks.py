"""Likes: a run beside the others of its page, where what is set side by side should be alike."""

from __future__ import annotations

from loadgen.analysis.audit.subject import AuditedRun, fractions, source_file
from loadgen.analysis.run_summary import Reported
from loadgen.roofline import bound
from loadgen.validity.evidence import percent

LENGTH_OFF = 0.01  # of the tokens
PROMPT_OFF, PROMPT_TOKENS = 0.04, 32  # off what was asked, and by more than a chat template adds
ALIKE_FIGURES = 6  # equal to the digit, and two runs are one
FAR_BELOW = 2.0  # TTFT, below what a full load leaves a prompt: of the same prompts by their mark
FARTHER_BELOW = 5.0  # and without a mark
LEAST_PROMPT = 512  # tokens, below which prefill is no matter of TTFT
_NAMED = 3  # of those that are equal


def duplicate(subject: AuditedRun) -> str:
    """Another run of the page has the same figures to the digit."""
    own = fractions(subject.reported)
    if len(own) < ALIKE_FIGURES:
        return ""
    twins = [one for one in subject.page.alike.get(own, ()) if one is not subject.reported]
    if not twins:
        return ""
    named = list(dict.fromkeys(f"{one.name} {one.load.name}".strip() for one in twins))
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return f"{len(own)} figures equal those of {', '.join(named[:_NAMED])}{more} to the digit"


def requests_differ(subject: AuditedRun) -> str:
    """The others under this load were asked another number of times."""
    own = _requests(subject.reported)
    others = subject.page.usual(subject.reported.load.name, _requests)
    if own is None or others is None or own == others:
        return ""
    return f"{own:.0f} request{'s' * (own != 1)}, the others of this load {others:.0f}"


def concurrency_differs(subject: AuditedRun) -> str:
    """The others under this load had another number under way."""
    own = subject.reported.load.max_concurrency
    others = subject.page.usual(subject.reported.load.name, _concurrency)
    if own is None or others is None or own == others:
        return ""
    return f"{own} requests at a time, the others of this load {others}"


def prompts_differ(subject: AuditedRun) -> str:
    """The others under this load had prompts of another length."""
    own, others = subject.input_len, subject.page.usual(subject.reported.load.name, _prompt)
    if not own or not others or abs(own - others) <= max(LENGTH_OFF * others, 2):
        return ""
    return f"{own:.1f} tokens a prompt, the others of this load {others}"


def _requests(reported: Reported) -> float | None:
    asked = reported.load.requests
    return reported.figure("completed") if asked is None else float(asked)


def _concurrency(reported: Reported) -> int | None:
    return reported.load.max_concurrency


def _prompt(reported: Reported) -> int | None:
    length = AuditedRun(reported).input_len
    return None if length is None else round(length)


def answers_short(subject: AuditedRun) -> str:
    """Answers ended before the length that was asked for, as far as that is told or the others show it."""
    n, tokens, load = subject.requests, subject.figure("total_output_tokens"), subject.reported.load
    if not n or tokens is None:
        return ""
    asked: float | None = load.asked_output_len
    by = "asked for"
    if asked is None:
        asked, by = _whole(subject), "as the others of the page have it"
    if not asked or tokens >= (1 - LENGTH_OFF) * n * asked:
        return ""
    return (
        f"{tokens:.0f} of {n * asked:.0f} output tokens: {tokens / n:.1f} a request, not {asked:.0f} ({by}), "
        f"{percent(1 - tokens / n / asked)} less work"
    )


def _whole(subject: AuditedRun) -> float | None:
    """The length to the token that half of the runs of this checkpoint, or of this load, have in common."""
    others = [one.output_len for one in (*subject.same_checkpoint, *subject.same_load)]
    found = [length for length in others if length and length == int(length)]
    longest = max(found, default=0.0)
    return longest if found and found.count(longest) >= len(others) / 2 else None


def prompts_off(subject: AuditedRun) -> str:
    """The prompts came out at another length than was asked for."""
    own, asked = subject.input_len, subject.reported.load.asked_input_len
    if not own or not asked or abs(own - asked) <= max(PROMPT_OFF * asked, PROMPT_TOKENS):
        return ""
    return f"{own:.1f} tokens a prompt, {asked} asked for"


def known_prompts(subject: AuditedRun) -> str:
    """The prompts are those of a well-known seed, which their count gives away."""
    known = subject.workload
    if known is None:
        return ""
    return (
        f"{known.total_input_tokens} input tokens, not {known.requests} × {known.input_len}: "
        f"{known.short} came out short, as those of seed {known.seed} do in {known.client} with the "
        f"tokenizer of {known.tokenizer}"
    )


def warm_cache(subject: AuditedRun) -> str:
    """The prompts had been asked before, and TTFT is not of their prefill."""
    load, length, ttft_ms = subject.reported.load, subject.input_len, subject.figure("mean_ttft_ms")
    alone = load.max_concurrency == 1 or subject.requests == 1
    if not alone or not length or length < LEAST_PROMPT or not ttft_ms:
        return ""
    by_load = by_peak = ""
    prompts = next((said for one in subject.same_checkpoint if (said := _asked_before(subject, one))), "")
    if prompts:
        by_load, by_peak = _below_load(subject, ttft_ms, FAR_BELOW), _below_peak(subject)
    else:
        by_load = _below_load(subject, ttft_ms, FARTHER_BELOW)
    if not by_load and not by_peak:
        return ""
    below = " and ".join(filter(None, (by_load, by_peak)))
    cause = "the prefix cache answered" if prompts else "asked before, most likely, or on another server"
    return f"{prompts}{'; ' * bool(prompts)}TTFT {ttft_ms:g} ms, where {below}: {cause}"


def _asked_before(subject: AuditedRun, other: AuditedRun) -> str:
    """Whether another run of the checkpoint had these very prompts; "" where that cannot be told."""
    own, its, of = subject.workload, other.workload, other.reported.load.name or "the other load"
    if own is None or its is None:
        by = _same(subject, other)
        return f"its prompts are those of {of}, by their {by}" if by else ""
    if its.shares(own) < own.requests:
        return ""
    which = "are those of" if its.requests == own.requests else f"are the first {own.requests} of"
    those = f"{of} ({its.requests} prompts, {its.total_input_tokens} tokens)"
    return f"its {own.requests} prompts ({own.total_input_tokens} tokens) {which} {those}, seed {own.seed}"


def _same(subject: AuditedRun, other: AuditedRun) -> str:
    """By what two runs are seen to have had the same prompts, or one the other's first; "" where not."""
    one, its = subject.reported, other.reported
    if one.plan_digest or its.plan_digest:
        return "digest" if one.plan_digest == its.plan_digest else ""
    fewer = subject.requests and other.requests and subject.requests <= other.requests
    seeded = one.load.seed is not None and one.load.seed == its.load.seed and one.told_by == its.told_by
    return "seed" if fewer and seeded and _as_long(subject, other) else ""


def _as_long(subject: AuditedRun, other: AuditedRun) -> bool:
    """Whether the prompts are equally long."""
    own, its = subject.input_len, other.input_len
    return bool(own and its and abs(own - its) <= LENGTH_OFF * its)


def _of_its_own(subject: AuditedRun, other: AuditedRun) -> bool:
    """Whether digests or counts tell that two runs had prompts of their own."""
    one, its, known = subject.reported, other.reported, other.workload
    if one.plan_digest and its.plan_digest:
        return one.plan_digest != its.plan_digest
    n, tokens = subject.requests or 0, subject.figure("total_input_tokens") or 0
    return known is not None and not known.has_first(int(n), int(tokens))


def _below_load(subject: AuditedRun, ttft_ms: float, times: float) -> str:
    """TTFT alone is far below the time that a full load leaves for each prompt."""
    for other in subject.same_checkpoint:
        left_ms = other.prefill_left_ms
        if not left_ms or left_ms <= times * ttft_ms:
            continue
        if _as_long(subject, other) and not _of_its_own(subject, other):
            load = other.reported.load.name or source_file(other.reported)
            return f"{load} leaves {left_ms:.0f} ms for each prompt ({left_ms / ttft_ms:.1f} times that)"
    return ""


def _below_peak(subject: AuditedRun) -> str:
    """TTFT is below what the prompt's arithmetic takes at the machine's peak."""
    if subject.ceiling is None:
        return ""
    found = bound.prefill(subject.ceiling, subject.reported.figures, subject.reported.load)
    if found is None or found.share is None or found.least_ms is None or found.share <= bound.TOLERANCE:
        return ""
    return f"its arithmetic takes {found.least_ms:.0f} ms at the machine's peak"
