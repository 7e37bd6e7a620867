"""Findings: the closed set of an audit's checks, and what they find in each of some published runs.

A check needs no more than what is published. Those whose question our own verdict answers better, from every
arrival, are not applied to our own runs (`OF_OURS`).
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from loadgen.base import rule
from loadgen.base.rule import Evidence, Finding, Rule, Source, invalid, join_evidence, note, suspect
from loadgen.base.text import list_first
from loadgen.facts.ceiling import Ceiling, Machine
from loadgen.features.roofline import bound, machines, models
from loadgen.features.roofline.roofline_settings import LEAST_MS, SLOW, TOLERANCE
from loadgen.figures.metrics import PREFILL
from loadgen.study.consistency import self_consistency
from loadgen.study.consistency.ceilings import Ceilings
from loadgen.study.consistency.self_consistency import CONTRADICTIONS
from loadgen.study.consistency.subject import (
    LEAST_MISSING,
    SEED,
    TOKENIZER,
    AuditedRun,
    group_pages,
    list_fractions,
)
from loadgen.study.run_summary import Reported
from loadgen.verdict.evidence import percent
from loadgen.verdict.verdict import DOUBTS, Level

LENGTH_OFF = 0.01  # of the tokens
PROMPT_OFF, PROMPT_TOKENS = 0.04, 32  # off what was requested, and by more than a chat template adds
ALIKE_FIGURES = 6  # equal to the digit, and two runs are one
FAR_BELOW = 2.0  # TTFT, below what a full load leaves a prompt: of the same prompts by their mark
FARTHER_BELOW = 5.0  # and without a mark
LEAST_PROMPT = 512  # tokens, below which prefill is no matter of TTFT
_NAMED = 3  # of those that are equal


@suspect(
    "duplicate",
    f"at least {ALIKE_FIGURES} latencies and the duration equal those of another run of the page to the "
    "digit: two runs never do",
    "one of them was copied: find out which",
    Source.PAGE,
)
def duplicate(run: AuditedRun) -> Evidence | None:
    """Find evidence that the duration and latencies, six or more, equal those of another run of the page."""
    own = list_fractions(run.reported)
    if len(own) < ALIKE_FIGURES:
        return None
    twins = (twin for twin in run.page.alike.get(own, ()) if twin is not run.reported)
    named = list(dict.fromkeys(f"{twin.name} {twin.load.name}".strip() for twin in twins))
    if not named:
        return None
    return f"{len(own)} figures equal those of {list_first(named, _NAMED)} to the digit"


def _find_difference(
    run: AuditedRun, value: Callable[[Reported], float | None], noun: str
) -> Evidence | None:
    """Find evidence that a value is not that of most runs under its load; `noun` stands before the value."""
    own, others = value(run.reported), run.page.find_usual_value(run.reported.load.name, value)
    if own is None or others is None or own == others:
        return None
    return f"{noun} {own:.0f}, the others under this load {others:.0f}"


requests_differ = note(
    "requests-differ",
    "another number of requests than most runs under its load: ramp, drain and percentiles weigh otherwise",
    "compare only runs with the same number of requests",
    Source.PAGE,
)(partial(_find_difference, value=lambda run: run.sent, noun="requests:"))
concurrency_differs = suspect(
    "concurrency-differs",
    "another --max-concurrency than most runs under its load",
    "compare only runs with the same concurrency",
    Source.PAGE,
)(partial(_find_difference, value=lambda run: run.load.max_concurrency, noun="concurrency"))


@suspect(
    "prompts-differ",
    f"mean prompt tokens are more than {percent(LENGTH_OFF)} (and 2) off those of most runs under its load",
    "compare only runs with the same prompts",
    Source.PAGE,
)
def prompts_differ(run: AuditedRun) -> Evidence | None:
    """Find evidence that mean prompt tokens are over 1 % (and 2) off those of most runs under the load."""
    own = run.reported.input_len
    others = run.page.find_usual_value(
        run.reported.load.name, lambda other: None if other.input_len is None else round(other.input_len)
    )
    if not own or not others or abs(own - others) <= max(LENGTH_OFF * others, 2):
        return None
    return f"{own:.1f} tokens per prompt, the others under this load {others}"


@suspect(
    "answers-short",
    f"output tokens more than {percent(LENGTH_OFF)} below those requested; where these are not reported, "
    "below the whole number that half of the page's other runs (of its checkpoint or load) have to the token",
    "use --ignore-eos: throughput is of less work than that of the others",
    Source.PAGE,
)
def answers_short(run: AuditedRun) -> Evidence | None:
    """Find evidence that output tokens are over 1 % below the requested length, else that of other runs."""
    n, tokens, load = run.requests, run.figure("total_output_tokens"), run.reported.load
    if not n or tokens is None:
        return None
    wanted, by = float(load.asked_output_len or 0), "requested"
    if load.asked_output_len is None:  # the longest whole mean of its checkpoint and load, if half have it
        others = [other.reported.output_len for other in (*run.same_checkpoint, *run.same_load)]
        whole = [length for length in others if length and length == int(length)]
        longest, by = max(whole, default=0.0), "by the page's other runs"
        wanted = longest if whole.count(longest) >= len(others) / 2 else 0.0
    if not wanted or tokens >= (1 - LENGTH_OFF) * n * wanted:
        return None
    return (
        f"{tokens:.0f} of {n * wanted:.0f} output tokens: {tokens / n:.1f} per request, not {wanted:.0f} "
        f"({by}), {percent(1 - tokens / n / wanted)} less work"
    )


@suspect(
    "prompts-off",
    f"mean prompt tokens are more than {percent(PROMPT_OFF)} and {PROMPT_TOKENS} tokens off those requested, "
    "where these are reported: random texts that were never encoded again come out 5 % long, SGLang's random "
    "ones half as long",
    "send token ids, or read input throughput and TTFT as of the tokens counted",
)
def prompts_off(run: AuditedRun) -> Evidence | None:
    """Find evidence that mean prompt tokens are over 4 % and over 32 tokens off the requested length."""
    own, requested = run.reported.input_len, run.reported.load.asked_input_len
    if not own or not requested or abs(own - requested) <= max(PROMPT_OFF * requested, PROMPT_TOKENS):
        return None
    return f"{own:.1f} tokens per prompt, {requested} requested"


@note(
    "known-prompts",
    f"the input tokens lack at least {LEAST_MISSING} of whole lengths and are exactly those of a "
    "seed known here: everyone who measures with it sends the same prompts",
    "check whether an earlier run had them too; use a seed of your own",
)
def known_prompts(run: AuditedRun) -> Evidence | None:
    """Find evidence that the input tokens are, to the token, those of the prompts of a known seed."""
    workload = run.workload
    if workload is None:
        return None
    return (
        f"{workload.total_input_tokens} input tokens, not {workload.requests} × {workload.input_len}: "
        f"{workload.short} prompts came out short, as those of seed {SEED} do in {workload.client} "
        f"with the tokenizer of {TOKENIZER}"
    )


@suspect(
    "warm-cache",
    "one request at a time, its prompts the first of another run of the same checkpoint on the page (by "
    "their token counts, known-prompts, their seed or their digest), and mean TTFT below their arithmetic at "
    f"the machine's peak or {FAR_BELOW:g} times below what a full load leaves for each prompt, which a cold "
    f"TTFT comes close to; {FARTHER_BELOW:g} times where the prompts cannot be recognized",
    "TTFT is the prefix cache's: use another seed for every run, or start the server again between them",
    Source.PAGE,
)
def warm_cache(run: AuditedRun) -> Evidence | None:
    """Find evidence that prompts sent one at a time had been sent before: TTFT leaves no time for prefill."""
    load, length, ttft_ms = run.reported.load, run.reported.input_len, run.figure("mean_ttft_ms")
    alone = load.max_concurrency == 1 or run.requests == 1
    if not alone or not length or length < LEAST_PROMPT or not ttft_ms:
        return None
    prompts = next((same for other in run.same_checkpoint if (same := _describe_reuse(run, other))), None)
    by_load = _compare_with_load(run, ttft_ms, FAR_BELOW if prompts else FARTHER_BELOW)
    parts = [by_load] if by_load else []
    prefill = bound.compare_prefill(run.ceiling, run.reported.figures, load) if run.ceiling else None
    if prompts and prefill is not None and (prefill.share or 0.0) > TOLERANCE:
        parts.append(f"its arithmetic takes {prefill.least_ms:.0f} ms at the machine's peak")
    if not (below := " and ".join(parts)):
        return None
    if prompts is None:
        return f"TTFT {ttft_ms:g} ms, where {below}: most likely sent before, or on another server"
    return f"{prompts}; TTFT {ttft_ms:g} ms, where {below}: a prefix cache hit"


def _describe_reuse(run: AuditedRun, other: AuditedRun) -> Evidence | None:
    """Write that `run` had the first prompts of `other`, by counts, digest or seed; None if none shows it."""
    own, its, of = run.workload, other.workload, other.reported.load.name or "the other load"
    if own is None or its is None:
        ours, theirs = run.reported, other.reported
        if ours.plan_digest or theirs.plan_digest:
            by = "digest" if ours.plan_digest == theirs.plan_digest else ""
        else:
            fewer = run.requests and other.requests and run.requests <= other.requests
            seeded = ours.load.seed is not None and ours.load.seed == theirs.load.seed
            alike = ours.told_by == theirs.told_by and _are_as_long(run, other)
            by = "seed" if fewer and seeded and alike else ""
        return f"its prompts are those of {of}, by their {by}" if by else None
    if its.count_shared(own) < own.requests:
        return None
    which = "are those of" if its.requests == own.requests else f"are the first {own.requests} of"
    those = f"{of} ({its.requests} prompts, {its.total_input_tokens} tokens)"
    return f"its {own.requests} prompts ({own.total_input_tokens} tokens) {which} {those}, seed {SEED}"


def _are_as_long(run: AuditedRun, other: AuditedRun) -> bool:
    own, its = run.reported.input_len, other.reported.input_len
    return bool(own and its and abs(own - its) <= LENGTH_OFF * its)


def _compare_with_load(run: AuditedRun, ttft_ms: float, times: float) -> Evidence | None:
    """Write how long a full load of the checkpoint leaves each prompt, if over `times` TTFT; else None."""
    for other in run.same_checkpoint:
        left_ms = other.prefill_left_ms
        if not left_ms or left_ms <= times * ttft_ms or not _are_as_long(run, other):
            continue
        own, its = run.reported.plan_digest, other.reported.plan_digest
        n, tokens = run.requests or 0, run.figure("total_input_tokens") or 0
        known = other.workload is None or other.workload.has_first(int(n), int(tokens))
        if own == its if own and its else known:
            load = other.reported.load.name or other.reported.file or other.reported.source
            return f"{load} leaves {left_ms:.0f} ms for each prompt ({left_ms / ttft_ms:.1f} times that)"
    return None


LOWEST, SHARE = 0.8, 0.9  # of a nominal length: the least that is drawn, and the mean
WIDEST = 0.03  # tolerance of the mean, of the nominal length
_DEVIATIONS = 4
_K = 1024
# Lengths as in 1k1k, 8k/1k and 1K-8K, isl1024_osl8192, and in names alone 1024/1024 and 8192x1024.
_THOUSANDS = re.compile(r"(?<![\w.])(\d{1,3})k\s?[/x_-]?\s?(\d{1,3})k(?![a-z0-9])", re.I)
_LABELLED = re.compile(r"isl[_=: -]?(\d{2,6})\D{0,3}osl[_=: -]?(\d{2,6})(?!\d)", re.I)
_WHOLE = re.compile(r"(?<![\w./-])(\d{3,6})\s?[/x]\s?(\d{2,6})(?![\w./-])")


def find_nominal_lengths(run: Reported) -> tuple[float, float] | None:
    """Find prompt and answer tokens asked for, else named by load, run, model, file or folder; else None."""
    load = run.load
    if load.asked_input_len and load.asked_output_len:
        return float(load.asked_input_len), float(load.asked_output_len)
    names = (load.name, run.name, run.model)
    for text in (*names, os.path.basename(run.source), os.path.basename(os.path.dirname(run.source))):
        if (match := _THOUSANDS.search(text.replace("_", " "))) is not None:
            return float(match[1]) * _K, float(match[2]) * _K
        if (match := _LABELLED.search(text)) is not None:
            return float(match[1]), float(match[2])
        if text in names and (match := _WHOLE.search(text)) is not None:
            return float(match[1]), float(match[2])
    return None


def compute_tolerance(requests: float) -> float:
    """Compute four standard errors of a mean of `requests` lengths from [0.8 L, L], as a share of L."""
    return _DEVIATIONS * (1 - LOWEST) / math.sqrt(12 * requests)


@note(
    "nine-tenths",
    f"mean tokens of a prompt and an output are both {SHARE:g} of the lengths that were requested or that "
    f"the run is named by (as 1k1k), to {_DEVIATIONS} standard errors of lengths drawn between {LOWEST:g} "
    f"and 1 of them, {percent(WIDEST)} at most: so InferenceX's client reads --random-range-ratio {LOWEST:g}",
    "compare by the tokens counted, not by the name; --compat inferencex draws the same lengths",
)
def nine_tenths(run: AuditedRun) -> Evidence | None:
    """Find evidence that mean prompt and answer are both nine tenths of the requested or named lengths."""
    lengths, n = find_nominal_lengths(run.reported), run.requests
    counted = run.reported.input_len, run.reported.output_len
    if lengths is None or not n or None in counted or compute_tolerance(n) > WIDEST:
        return None
    shares = [own / whole for own, whole in zip(counted, lengths, strict=True) if own is not None]
    if any(abs(share - SHARE) > compute_tolerance(n) for share in shares):
        return None
    own = " / ".join(f"{length:.1f}" for length in counted)
    whole = " / ".join(f"{length:.0f}" for length in lengths)
    return (
        f"{own} tokens in / out, {percent(shares[0])} and {percent(shares[1])} of the {whole} that it is "
        f"named by: as lengths drawn between {LOWEST:g} and 1 of these, {percent(1 - SHARE)} less work"
    )


SPARE = 1.1  # times the memory that a card is sold with: 80 GB may be GiB
_OFFLOADED = re.compile(r"off-?load|\bngl\b|n[-_]gpu[-_]layers|n[-_]cpu[-_]moe|\bcpu\b", re.IGNORECASE)
FAR_BEYOND = 1.25  # of the bandwidth; up to here, what a name does not show of the weights may explain it
SHORT_PROMPT = 1 / 8  # of the answer: a speed that includes the prompt is then of decoding
SLOW_PREFILL = 0.05  # of the machine's peak
MOST_DRAFT = 8.0  # tokens a pass, up to which a draft without an acceptance length may be the reason
LEAST_DRAFT = 1.3  # tokens a pass, from which messages must show it


@suspect(
    "beyond-peak",
    "the prompt's arithmetic in mean TTFT (one request at a time), or at the reported speed of prefill, "
    f"exceeds the machine's peak by more than {percent(TOLERANCE - 1)}",
    "the time is not of prefill: a prefix cache, or another model",
    Source.ROOFLINE,
)
def beyond_peak(run: AuditedRun) -> Evidence | None:
    """Find evidence that a prompt's arithmetic exceeds the machine's peak by more than the tolerance."""
    excess = run.ceiling and bound.measure_prefill_excess(
        run.ceiling, run.reported.figures, run.reported.load
    )
    return excess.text if excess and excess.times > TOLERANCE else None


@suspect(
    "slow-kernel",
    f"under {percent(SLOW)} of the roofline at concurrency 1 or by the median ITL, where a step takes "
    f"{LEAST_MS:g} ms at best; or a full load leaves so much time for each prompt that prefill reaches "
    f"under {percent(SLOW_PREFILL)} of the machine's peak, where it takes {LEAST_MS:g} ms at best",
    "check the engine's log for the kernel that ran: a fallback for this quantization is likely",
    Source.ROOFLINE,
)
def slow_kernel(run: AuditedRun) -> Evidence | None:
    """Find evidence that decoding or prefill is so slow for the machine that a fallback kernel is likely."""
    if run.ceiling is None:
        return None
    reported, load, ceiling = run.reported, run.reported.load, run.ceiling
    timed = any(
        f"{rank}_{key}_ms" in reported.figures for rank in ("mean", "median") for key in ("tpot", "itl")
    )
    # A speed has the prompt's time in it, and Transformers' devices wait for one another.
    long = (load.input_len or 0.0) > SHORT_PROMPT * (load.output_len or 0.0)
    waits = ceiling.machine.devices > 1 and "transformers" in reported.engine.lower()
    slow = bound.explain_fallback(ceiling, reported.figures, load) if timed or not (long or waits) else None
    left_ms, least_ms = run.prefill_left_ms, None
    if reported.input_len:
        least_ms = ceiling.prefill_ms(reported.input_len)
    if not left_ms or not least_ms or not LEAST_MS <= least_ms < SLOW_PREFILL * left_ms:
        return slow
    prefill = (
        f"{left_ms:.0f} ms are left for each prompt's prefill, {100 * least_ms / left_ms:.2g} % of the "
        f"machine's peak ({least_ms:.0f} ms)"
    )
    return join_evidence((slow, prefill))


def _find_excess(run: AuditedRun, above: float, most: float) -> Evidence | None:
    """Find evidence of decoding over `above` and up to `most` times the memory bus, unless by a draft."""
    excess = _measure_excess(run)
    if excess is None or not above < excess.times / run.unstated_draft <= most or _may_draft(run, excess):
        return None
    if not run.one_token_a_message:
        return excess.text
    return f"{excess.text}; one token per chunk (ITL is TPOT) rules out speculative decoding"


def _may_draft(run: AuditedRun, excess: bound.Excess) -> bool:
    """Whether the source names a draft, without its acceptance length, that may explain an excess."""
    return bool(run.named_draft) and excess.times <= MOST_DRAFT


def _measure_excess(run: AuditedRun) -> bound.Excess | None:
    if run.ceiling is None:
        return None
    return bound.measure_decode_excess(run.ceiling, run.reported.figures, run.reported.load)


@invalid(
    "beyond-roofline",
    f"decoding would read more than {FAR_BEYOND} times what the memory bus carries (weights once per step, "
    "of a mixture of experts one token's, and the KV cache of all requests): only speculative decoding "
    "can, and then a chunk carries several tokens; a step is taken to give as many tokens as the reported "
    "acceptance length; or the checkpoint's weights alone are more than "
    f"{percent(SPARE - 1)} larger than the machine's memory, and no name says that a part was elsewhere",
    "it is another model, other machines (--hardware 4xh100), or a client that counts tokens that "
    "were not generated",
    Source.ROOFLINE,
)
def beyond_roofline(run: AuditedRun) -> Evidence | None:
    """Find evidence of decoding far beyond the memory bus, or of weights that its memory cannot hold."""
    lines = list(filter(None, [_find_excess(run, above=FAR_BEYOND, most=math.inf)]))
    if run.ceiling is not None and run.ceiling.machine.memory_bytes:
        machine, weights = run.ceiling.machine, run.ceiling.weights.total_bytes
        texts = (run.reported.name, *(f"{key} {text}" for key, text in run.reported.unread.items()))
        if weights > SPARE * run.ceiling.machine.memory_bytes and not any(map(_OFFLOADED.search, texts)):
            held = f"{machine.name} has {run.ceiling.machine.memory_bytes / 1e9:.0f} GB of memory"
            lines.insert(0, f"{run.ceiling.model} has {weights / 1e9:.0f} GB of weights, {held}")
    return join_evidence(lines)


above_roofline = suspect(
    "above-roofline",
    f"as beyond-roofline, by {percent(TOLERANCE - 1)} to {percent(FAR_BEYOND - 1)}: what a name does "
    "not show of a checkpoint (a quantized head, an FP8 KV cache) may explain it; a bus reaches 90 % at most",
    "check how the weights are stored (--model-config, or the checkpoint's own headers)",
    Source.ROOFLINE,
)(partial(_find_excess, above=TOLERANCE, most=FAR_BEYOND))


@suspect(
    "draft-not-stated",
    "decoding is beyond the roofline by its tokens, and no acceptance length is reported; but mean ITL is so "
    "far above mean TPOT that each chunk carries several, as with speculative decoding, or a name or a "
    f"label names a draft, up to {MOST_DRAFT:g} times beyond",
    "report it (vLLM's block and file have it): without a draft the figures are impossible",
    Source.ROOFLINE,
)
def draft_not_stated(run: AuditedRun) -> Evidence | None:
    """Find evidence that only speculative decoding, whose acceptance is not reported, explains the speed."""
    excess = _measure_excess(run)
    if excess is None or excess.times <= TOLERANCE:
        return None
    if excess.times / run.unstated_draft > TOLERANCE:
        return f"{excess.text}; {run.named_draft!r} is a draft" if _may_draft(run, excess) else None
    return f"{excess.text}; {run.unstated_draft:.3g} tokens per chunk (mean ITL ÷ mean TPOT)"


@suspect(
    "draft-not-seen",
    "an acceptance length is reported, and mean ITL is mean TPOT: each chunk carries one token, where a "
    "pass that gives several sends them in one",
    "check that the acceptance length is of this run: the roofline is divided by it",
)
def draft_not_seen(run: AuditedRun) -> Evidence | None:
    """Find evidence that an acceptance length of 1.3 or more is reported, yet messages have one token."""
    if run.accepted < LEAST_DRAFT or not run.one_token_a_message or run.shares_gaps:
        return None
    itl, tpot = run.figure("mean_itl_ms"), run.figure("mean_tpot_ms")
    return f"{run.accepted:.3g} tokens a pass reported; mean ITL {itl:g} ms, mean TPOT {tpot:g} ms"


_BY_VERDICT = "found by the run's own verdict; its directory has the figures"


class RunFindings(msgspec.Struct, frozen=True):
    """The findings on one run, worst first, and why a check was not made."""

    reported: Reported
    findings: tuple[Finding, ...]
    ceiling: Ceiling | None = None
    no_ceiling: str = ""  # why there is no roofline, and what to pass
    unchecked: tuple[str, ...] = ()  # what could not be checked: roofline, relations
    no_machine: bool = False  # the roofline lacks one
    no_shape: bool = False  # it lacks the model's

    @property
    def level(self) -> Level:
        """The level by its findings, or its own report if graver; UNCHECKED if VALID with no check made."""
        level = Level.from_findings(self.findings)
        if self.by_its_report:
            return Level(self.reported.level)
        return Level.UNCHECKED if level is Level.VALID and len(self.unchecked) == len(CHECKABLE) else level

    @property
    def by_its_report(self) -> bool:
        """Whether the verdict in a pasted report is graver than what the findings give."""
        graver = {Level.VALID: (Level.SUSPECT, Level.INVALID), Level.SUSPECT: (Level.INVALID,)}
        return self.reported.level in graver.get(Level.from_findings(self.findings), ())

    @property
    def verdict(self) -> str:
        """The level; of a VALID run with what was not checked, as in VALID (not checked: roofline)."""
        if self.level is not Level.VALID or not self.unchecked:
            return self.level.value
        return f"{self.level} (not checked: {', '.join(self.unchecked)})"

    @property
    def roofline(self) -> float | None:
        """The share of the roofline that decoding, else prefill, reached, also over 1; None if unknown."""
        if self.ceiling is None:
            return None
        step = bound.compare_decode(self.ceiling, self.reported.figures, self.reported.load)
        if step is None and PREFILL in self.reported.figures:
            prefill = bound.compare_prefill(self.ceiling, self.reported.figures, self.reported.load)
            return prefill.share if prefill else None
        return step.share if step else None


def audit_runs(
    reported: Sequence[Reported], machine: Machine | None, config: Path | None, model: str = ""
) -> list[RunFindings]:
    """Apply every check that the data allow to each run, next to the others of its page; return the findings.

    `machine` overrides what a run reports of its own; None: as the run names it, else no roofline. `model` is
    used for every run's name; `config` is the shape of the models that the table does not know, of all where
    they are one model.
    """
    ceilings = Ceilings(machine, model, "--model-config, or --model NAME")
    names = (model or run.checkpoint for run in reported)
    config_of_all = (
        len({name if (known := models.find_model(name)) is None else known.key for name in names}) == 1
    )
    audits = []
    for run, page in zip(reported, group_pages(reported), strict=True):
        shape = config if config_of_all or models.find_architecture(model or run.checkpoint) is None else None
        ceiling, why = ceilings.find(run, shape)
        audited = AuditedRun(run, page, ceiling)
        no_machine = no_shape = False
        if ceiling is None and not (run.simulated and machine is None):
            name = model or run.checkpoint
            no_machine = machines.settle_machine(machine, run.machine) is None
            has_shape = shape is not None or models.find_architecture(name) is not None
            no_shape = not has_shape and not os.path.exists(os.path.expanduser(name))
        found, unchecked = _collect_findings(audited), list_unchecked(audited)
        audits.append(RunFindings(run, found, ceiling, why, unchecked, no_machine, no_shape))
    return audits


def _collect_findings(audited: AuditedRun) -> tuple[Finding, ...]:
    """Join the findings of a run's own verdict with those of the audit's checks; worst first."""
    run = audited.reported.run
    if run is not None:
        own = list(run.verdict.findings)
    else:
        own = [Finding(doubt, _BY_VERDICT) for doubt in DOUBTS if doubt.code in audited.reported.doubts]
    codes = {finding.rule.code for finding in own}
    no_roofline = run is None or run.facts.ceiling is None
    checks = (
        check
        for check in CHECKS
        if (run is None or check.code in OF_OURS or (check.source is Source.ROOFLINE and no_roofline))
        and not {check.code, SAME_AS.get(check.code)} & codes
    )
    return tuple(rule.sort_by_severity([*own, *rule.apply_rules(checks, audited)]))


CHECKS: tuple[Rule[AuditedRun], ...] = (
    # Figures that are impossible.
    self_consistency.impossible_value,
    beyond_roofline,
    *(each for each in CONTRADICTIONS if each is not self_consistency.impossible_value),
    # Figures that are not what they are called.
    warm_cache,
    beyond_peak,
    above_roofline,
    draft_not_stated,
    draft_not_seen,
    slow_kernel,
    self_consistency.not_a_number,
    self_consistency.unstreamed_answers,
    self_consistency.failures,
    duplicate,
    self_consistency.single_request,
    # Another load than that of the other runs.
    answers_short,
    prompts_off,
    prompts_differ,
    concurrency_differs,
    self_consistency.concurrency_not_held,
    self_consistency.tokens_recounted,
    # Notes.
    requests_differ,
    known_prompts,
    nine_tenths,
    self_consistency.thin_percentiles,
    self_consistency.peak_below_mean,
    self_consistency.peak_over_limit,
    self_consistency.gaps_are_not_tokens,
    self_consistency.bursts,
    self_consistency.client_untold,
)
OF_OURS = frozenset({"warm-cache", "duplicate", "requests-differ"})  # applied to our own runs too
SAME_AS = {"warm-cache": "prefix-cache"}  # a doubt of our verdict: where it holds, the check is not repeated


ROOFLINE, RELATIONS = CHECKABLE = ("roofline", "relations")


def list_unchecked(run: AuditedRun) -> tuple[str, ...]:
    """List what could not be checked: "roofline", "relations" between figures (of ours never), or both."""
    lacking, figures, load = list[str](), run.reported.figures, run.reported.load
    if run.ceiling is None or (
        bound.compare_decode(run.ceiling, figures, load) is None
        and bound.measure_prefill_excess(run.ceiling, figures, load) is None
    ):
        lacking.append(ROOFLINE)
    if run.reported.run is None and not self_consistency.has_relations(run):
        lacking.append(RELATIONS)
    return tuple(lacking)
