"""Verdict: the doubts by which a run is VALID, SUSPECT or INVALID, and their lines in the report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from enum import StrEnum
from functools import partial
from typing import Any

import msgspec

from loadgen.base import rule
from loadgen.base.errors import Broken, make_each, make_guarded
from loadgen.base.rule import Finding, Rule, Severity, Source
from loadgen.features.attribution import attribution
from loadgen.features.data import data_checks as data
from loadgen.features.images import image_counts as images
from loadgen.features.ring import ring_checks as ring
from loadgen.features.roofline import bound as roofline
from loadgen.features.routed import reconciled_roles as roles
from loadgen.features.selftest import kept_selftests as selftest
from loadgen.features.sensors import state_checks as sensors
from loadgen.features.sessions import session_checks as sessions
from loadgen.features.shards import shard_checks as shards
from loadgen.features.speculation import step_counts as speculation
from loadgen.features.targets import target_checks as targets
from loadgen.verdict import arrival_checks as arrivals
from loadgen.verdict import client_checks as client
from loadgen.verdict import load_checks as load
from loadgen.verdict import server_checks as server
from loadgen.verdict.evidence import RunEvidence, limit_doubts

_SHOWN = 2  # doubts shown in full under the block

_limit_to_paced = partial(limit_doubts, ["profile.open_loop"])
_limit_to_stopped = partial(limit_doubts, ["client.stopped_s"])
# Doubts are reported in this order: of two as severe, the one that explains the other comes first. Every
# threshold stands in a doubt's condition, with why a healthy idle server does not reach it.
DOUBTS: tuple[Rule[RunEvidence], ...] = (
    # The run itself.
    server.counters_reset,
    *roles.limit(roles.worker_ended),
    *limit_doubts(["partial"], load.cut_short),
    *shards.limit(shards.load_lost),
    load.many_failures,
    load.all_cancelled,
    server.tokens_far_off,
    load.stopped_by_signal,
    load.stopped_by_rule,
    *shards.limit(shards.rest_of_the_load),
    load.failures,
    *sessions.limit(sessions.sessions_ended_early),
    load.many_resent,
    data.prefix_cache,
    data.identical_prompts,
    *roofline.limit(roofline.beyond_roofline),
    # Another load than requested.
    data.lengths_cut,
    *shards.limit(shards.shards_started_apart),
    load.tokens_not_counted,
    arrivals.arrivals_not_tokens,
    arrivals.hidden_tokens,
    load.answer_lengths,
    load.prompt_lengths,
    *images.limit(images.images_ignored),
    load.concurrency_not_held,
    *_limit_to_paced(load.sends_late, load.rate_not_reached),
    *sessions.limit(sessions.users_waited, sessions.turns_late),
    *limit_doubts(["server.slots"], server.few_slots),
    server.server_limit,
    *limit_doubts(["data.schedule"], data.trace_grid),
    *limit_doubts(["speculates"], data.random_acceptance),
    server.prefill_while_queued,
    # The server was not idle, not alone, or counts differently.
    server.foreign_requests,
    server.first_wave,
    server.tpot_trend,
    server.throughput_trend,
    server.preemptions,
    server.tokens_differ,
    *speculation.limit(speculation.drafts_differ),
    server.timings_differ,
    server.no_abort,
    *targets.limit(targets.targets_unequal),
    server.fallback_kernel,
    # This machine, not the server, made the figures.
    client.clock_unusable,
    *_limit_to_stopped(client.stopped_unstamped),
    client.other_processes,
    *_limit_to_stopped(client.client_stopped),
    client.reads_late,
    *ring.limit(ring.acks_late),
    client.client_busy,
    *selftest.limit(selftest.beyond_capacity),
    client.impossible_timestamps,
    client.clock_stepped,
    client.network_lossy,
    *attribution.limit(attribution.network_in_tail),
    *shards.limit(shards.clock_offset),
    client.machine_throttled,
    *sensors.limit(
        sensors.gpu_throttled,
        sensors.gpu_clock_low,
        sensors.power_capped,
        sensors.board_clock_limited,
        sensors.page_cache_full,
    ),
    *roofline.limit(roofline.slow_kernel),
    # Notes.
    load.resent,
    *sessions.limit(
        sessions.turns_reconnected,
        sessions.context_limit,
        sessions.session_forgotten,
        sessions.cached_tokens_differ,
    ),
    *limit_doubts(["journal_error"], client.journal),
    arrivals.tokens_not_located,
    arrivals.ends_not_reported,
    arrivals.reasoning_alone,
    load.early_ends,
    *_limit_to_paced(load.overload),
    server.requests_queued,
    data.reuse_not_as_expected,
    data.few_lengths_cut,
    *limit_doubts(["checkpoint", "ceiling", "as_run"], data.random_routing),
    *attribution.limit(attribution.others_prefill_stalls),
    server.latencies_differ,
    *speculation.limit(speculation.steps_hidden),
    server.several_models,
    server.counters_unsettled,
    client.messages_together,
    client.network_losses,
    client.reads_not_timed,
    client.busy_loop,
    *ring.limit(ring.ring_incomplete),
    *limit_doubts(["client.late_bodies"], client.late_bodies),
    *selftest.limit(selftest.headroom),
    *sensors.limit(sensors.clocks_not_pinned, sensors.gpu_memory_unknown),
    load.thin_percentiles,
    *limit_doubts(["profile.duration"], load.ran_out),
    *sessions.limit(sessions.sessions_ran_dry),
    *images.limit(images.images_repeated),
    load.ramp_and_drain,
    load.few_per_slot,
)


class Level(StrEnum):
    """How far a run's figures can be believed."""

    VALID = "VALID"
    SUSPECT = "SUSPECT"
    INVALID = "INVALID"
    UNCHECKED = "UNCHECKED"  # of published figures alone: there was nothing to compare them with

    @classmethod
    def from_findings(cls, findings: Iterable[Finding]) -> Level:
        """Return the level that the gravest finding gives a run; VALID if all are notes."""
        worst = max((finding.rule.severity for finding in findings), default=Severity.NOTE)
        return {Severity.INVALID: cls.INVALID, Severity.SUSPECT: cls.SUSPECT}.get(worst, cls.VALID)


class Checkable(msgspec.Struct, frozen=True):
    """A kind of check: its short name, whether a run lacks what it needs, and what provides that."""

    name: str
    missing: Callable[[RunEvidence, Set[Source]], bool]
    remedy: str


# A verdict names them in this order. A hosted API has no counters and no machine.
CHECKABLE = (
    Checkable(
        "roofline",
        lambda run, sources: not (Source.ROOFLINE in sources or run.hosted or run.facts.server.simulated),
        "--hardware KEY or --bandwidth GB/s, and the model's files or --model-config",
    ),
    Checkable(
        "server counters",
        lambda run, sources: not (Source.COUNTERS in sources or run.hosted),
        "a server with /metrics, without --no-observe",
    ),
    # One request at a time needs none, nor does a missing /metrics.
    Checkable(
        "server gauges",
        lambda run, sources: Source.COUNTERS in sources and Source.GAUGES not in sources and run.target > 1,
        "a longer run: gauges are sampled at intervals",
    ),
    Checkable("self-test", lambda _, sources: Source.SELFTEST not in sources, "loadgen selftest"),
    Checkable(
        "other processes",
        lambda run, _: client.misses_others(run),
        "server and client on one Linux machine, under one user: /proc has what others take of its CPUs",
    ),
    Checkable("first wave", lambda run, _: run.misses_first_wave, "raise --num-prompts: more waves"),
    Checkable("trends", lambda run, _: run.misses_trends, "raise --num-prompts: eight waves or more"),
    Checkable("repeats", lambda run, _: run.facts.runs < 2 and run.facts.cell is None, "--repeat 5"),
)


class RunVerdict(msgspec.Struct, frozen=True):
    """The doubts found, gravest first, and the checks that could not be made."""

    findings: tuple[Finding, ...]
    unchecked: tuple[Rule[RunEvidence], ...]  # not found, because the run lacks their source
    failed: tuple[Broken, ...] = ()  # not judged: these raised
    lacking: tuple[Checkable, ...] = ()  # checks that matter and could not be made
    simulated: bool = False  # no model ran

    @property
    def level(self) -> Level:
        """The level of the gravest doubt; SUSPECT at least if some rule could not be judged."""
        level = Level.from_findings(self.findings)
        return Level.SUSPECT if self.failed and level is Level.VALID else level

    @property
    def not_checked(self) -> tuple[str, ...]:
        """Short names of the checks that matter and could not be made, in a fixed order."""
        return tuple(check.name for check in self.lacking)

    @property
    def checked(self) -> int:
        """The number of rules that were judged, found or not."""
        failed = {broken.name for broken in self.failed}
        return len(DOUBTS) - len(self.unchecked) - sum(doubt.code in failed for doubt in DOUBTS)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The codes of the doubts that are not notes, and `not judged in full` if some rule failed."""
        codes = tuple(finding.rule.code for finding in self.grave)
        return (*codes, "not judged in full") if self.failed else codes

    @property
    def notes(self) -> tuple[Finding, ...]:
        """The findings that do not change the level."""
        return tuple(finding for finding in self.findings if finding.rule.severity is Severity.NOTE)

    @property
    def grave(self) -> tuple[Finding, ...]:
        """The findings that are not notes, gravest first."""
        return tuple(finding for finding in self.findings if finding.rule.severity is not Severity.NOTE)


def judge(run: RunEvidence) -> RunVerdict:
    """Apply every doubt's rule to a run; a rule that raises is reported and affects no other."""
    failed: list[Broken] = []
    held = make_each({doubt.code: partial(doubt.find, run) for doubt in DOUBTS}, failed)
    findings = rule.sort_by_severity(
        Finding(doubt, evidence) for doubt in DOUBTS if (evidence := held.get(doubt.code)) is not None
    )
    sources = make_guarded("sources", lambda: run.sources, set(Source), failed)
    judged = {finding.rule.code for finding in findings} | {broken.name for broken in failed}
    return RunVerdict(
        findings=tuple(findings),
        unchecked=tuple(
            doubt for doubt in DOUBTS if doubt.code not in judged and doubt.source not in sources
        ),
        lacking=tuple(
            check
            for check in CHECKABLE
            if make_guarded(check.name, partial(check.missing, run, sources), True, failed)
        ),
        failed=tuple(failed),
        simulated=bool(run.facts.server.simulated),
    )


def state_verdict(verdict: RunVerdict) -> str:
    """Write the verdict in a few words: SIMULATED if so, the level, and what a VALID did not check."""
    level = f"SIMULATED, {verdict.level}" if verdict.simulated else str(verdict.level)
    if verdict.lacking and verdict.level is Level.VALID:
        return f"{level} (not checked: {', '.join(verdict.not_checked)})"
    return level


def summarize_doubts(verdict: RunVerdict) -> list[str]:
    """Summarize the doubts in lines not yet wrapped: the gravest in full, others by code."""
    full = [f"{finding.evidence}; fix: {finding.rule.remedy}" for finding in verdict.grave[:_SHOWN]]
    also = ", ".join(finding.rule.code for finding in verdict.grave[_SHOWN:])
    notes = ", ".join(finding.rule.code for finding in verdict.notes)
    first = f"verdict: {state_verdict(verdict)}"
    named = [text for text, is_there in ((f"also {also}", also), (f"notes: {notes}", notes)) if is_there]
    if named:
        named.append("details: --explain")
    unjudged = list(_list_unjudged(verdict))
    if not full:
        return ["; ".join([first, *named]), *unjudged]
    rest = ["; ".join(named)] if named else []
    return [f"{first}: {full[0]}", *(f"and: {doubt}" for doubt in full[1:]), *rest, *unjudged]


def _list_unjudged(verdict: RunVerdict) -> Iterator[str]:
    """Yield a line for each exception in a rule: an error of loadgen, not a doubt about the run."""
    for why in dict.fromkeys(broken.why for broken in verdict.failed):
        names = ", ".join(broken.name for broken in verdict.failed if broken.why == why)
        yield f"not judged: {names} raised {why}; please report it"


def explain_doubts(verdict: RunVerdict) -> list[str]:
    """List every doubt found with evidence, condition and remedy; then what was not found or checked."""
    shown = [f"verdict: {state_verdict(verdict)}"]
    for finding in verdict.findings:
        doubt = finding.rule
        shown.append(f"{doubt.severity.word}: {doubt.code}: {finding.evidence}")
        shown += [f"  condition: {doubt.condition}", f"  remedy: {doubt.remedy}"]
    shown += _list_unjudged(verdict)
    absent = verdict.checked - len(verdict.findings)
    shown.append(f"checked and not found: {absent} of {len(DOUBTS)} doubts (docs/validity.md)")
    for source in Source:
        names = ", ".join(doubt.code for doubt in verdict.unchecked if doubt.source is source)
        if names:
            shown.append(f"not checked, without {source}: {names}")
    shown += [f"not checked: {check.name}; to check: {check.remedy}" for check in verdict.lacking]
    return shown


def encode_verdict(verdict: RunVerdict) -> dict[str, Any]:
    """Encode the verdict as the result stores it."""
    return {
        "level": verdict.level.value,
        "doubts": [rule.encode_finding(finding) for finding in verdict.findings],
        "looked_at": verdict.checked,
        "not_looked_at": [doubt.code for doubt in verdict.unchecked],
        "not_judged": [broken._asdict() for broken in verdict.failed],
        "not_checked": list(verdict.not_checked),
    }
