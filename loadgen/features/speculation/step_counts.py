"""Step counts: each request's decoding steps by its messages, and whether the server's counters agree."""

from __future__ import annotations

import math
from functools import partial

import msgspec
import numpy as np

from loadgen.base.arrays import Bool, Float64, Int64
from loadgen.base.intervals import LEAST_SPREAD, RatioOfSums, t_quantile
from loadgen.base.rule import Evidence, Source, note, suspect
from loadgen.facts.run_facts import Facts
from loadgen.records.record import Records
from loadgen.server.server_counters import ServerWindow
from loadgen.verdict.evidence import RunEvidence, limit_doubts, percent

MOST_TOKENS = 64  # of a step that the histogram tells apart; drafts have 2 to 16
_NEAR = 2  # longest steps before an answer's end: steps that begin there are like those that it cuts
MOST_PARTS = 20  # of a run: shorter ones would follow their neighbours for longer than the next
_LEAST_PARTS = 8  # that show how much those between ramp and drain differ
_ALIKE = -0.2, 0.8  # the correlation of neighbours: so few parts do not show less, or more
_MOMENTS = 4096  # of a run's time, from which the parts are joined


class RatioEstimate(msgspec.Struct, frozen=True):
    """A ratio of two sums with its 95 % interval; `low` and `high` are None with too few units for one."""

    mean: float
    low: float | None = None
    high: float | None = None
    units: int = 0  # that the interval is of: requests, or parts of the run; 0: a server's own mean


class StepCounts(msgspec.Struct, frozen=True):
    """What followed each request's first message, int64[requests]; 0 where there was one message or none."""

    tokens: Int64  # in later messages; of an answer whose messages are not counted all but the first token
    steps: Int64  # later messages with tokens: a step each, where none holds or shares several
    messages: Int64  # of them, as many as arrived, also where steps are counted otherwise
    span_ns: Int64  # from the first message to the last of these
    exact: bool  # the tokens of every later message are known
    least: int  # tokens of the smallest message that is neither first nor last; 0: none, or not exact
    histogram: Int64  # later messages by their tokens, int64[MOST_TOKENS + 1], the last for more
    # Tokens that the last step of each is expected to have had past the answer's end, float64[requests].
    past: Float64

    @classmethod
    def from_records(cls, records: Records, among: Bool) -> StepCounts:
        """Count the steps of those requests in `among`, bool[requests], whose tokens are known; others: 0."""
        exact: Bool = records.exact_tokens > 0
        counted = among & (exact | (records.usage > 0))
        tokens, steps, span_ns = (np.zeros(len(records), np.int64) for _ in range(3))
        histogram, least = np.zeros(MOST_TOKENS + 1, np.int64), 0
        for block in records.blocks():
            rows = slice(block.first, block.last)
            sums = np.concatenate([[0], np.cumsum(block.tokens)])
            several = counted[rows] & (np.diff(block.start) > 1)
            first, after = block.start[:-1][several], block.start[1:][several]
            tokens[rows][several] = np.where(
                exact[rows][several], sums[after] - sums[first + 1], records.output_tokens[rows][several] - 1
            )
            steps[rows][several] = after - first - 1
            span_ns[rows][several] = block.arrival_ns[after - 1] - block.arrival_ns[first]
            later = np.zeros(len(block.tokens) + 1, np.int64)
            later[first + 1] += 1
            later[after] -= 1
            among_later = np.cumsum(later)[:-1] > 0
            sizes = block.tokens[among_later].clip(0, MOST_TOKENS)
            histogram += np.bincount(sizes, minlength=MOST_TOKENS + 1)
            among_later[after - 1] = False
            if among_later.any():
                fewest = int(block.tokens[among_later].min())
                least = min(least or fewest, fewest)
        every = bool(exact[steps > 0].all())
        past = np.zeros(len(records))
        return cls(tokens, steps, steps, span_ns, every, least * every, histogram * every, past)

    @property
    def longest(self) -> int:
        """The tokens of the longest step, MOST_TOKENS for more; 1 where they are not known."""
        return int(np.flatnonzero(self.histogram).max(initial=1))

    def complete_ends(self, records: Records) -> StepCounts:
        """Return the counts with what the answers' ends cut off; as is if not `exact`, or of 1 token each.

        A last step of r tokens had r or more: as many as the mean of those steps of r or more that begin near
        the ends, with room for the longest one. The histogram is of the steps with that room.
        """
        if not self.exact or (longest := self.longest) < 2:
            return self
        whole, near = np.zeros((2, MOST_TOKENS + 1), np.int64)
        last = np.zeros(len(records), np.int64)
        for block in records.blocks():
            counted = self.steps[block.first : block.last] > 0
            counts, sums = np.diff(block.start), np.concatenate([[0], np.cumsum(block.tokens)])
            room = np.repeat(sums[block.start[1:]], counts) - sums[:-1]
            later = np.repeat(counted, counts)
            later[block.start[:-1][counts > 0]] = False
            sizes = block.tokens.clip(0, MOST_TOKENS)
            for histogram, some in ((whole, room >= longest), (near, room < _NEAR * longest)):
                histogram += np.bincount(sizes[later & some & (room >= longest)], minlength=MOST_TOKENS + 1)
            last[block.first : block.last][counted] = block.tokens[block.start[1:][counted] - 1]
        steps, tokens = (
            np.cumsum(each[::-1])[::-1] for each in (near, near * np.arange(MOST_TOKENS + 1))
        )  # of a size or more
        reached = last.clip(0, MOST_TOKENS)
        past = tokens[reached] / steps[reached].clip(1) - reached
        return msgspec.structs.replace(
            self, past=np.where(self.steps > 0, past.clip(0), 0.0), histogram=whole
        )

    def take_reported(self, records: Records) -> StepCounts | None:
        """Return the counts with the steps that the server reports of each request; None if one lacks them.

        Of T tokens T − accepted came with a step of their own; where every step drafts, drafts are the steps.
        """
        some = self.steps > 0
        if not some.any() or (records.server_accepted_tokens[some] < 0).any():
            return None
        steps = np.maximum(records.server_drafts, self.tokens - records.server_accepted_tokens).clip(1)
        none = np.zeros_like(self.histogram)
        return msgspec.structs.replace(
            self, steps=np.where(some, steps, 0), exact=False, least=0, histogram=none, past=0.0 * self.past
        )


def sum_over_time(counts: StepCounts, records: Records) -> tuple[Float64, Float64, Float64]:
    """Sum tokens, steps and spans (ns) of counted messages over the parts of a run, float64[parts] each.

    Parts follow one another with as many messages each: 20, or one an answer if fewer.
    Steps that are not messages are spread evenly over those of their answer, as are tokens that are not
    known. Raises ValueError if there is no step.
    """
    some = counts.messages > 0
    first = records.start[:-1][some]
    begin_ns = int(records.arrival_ns[first].min())
    end_ns = int(records.arrival_ns[first + counts.messages[some]].max())
    steps, tokens = (each / counts.messages.clip(1) for each in (counts.steps, counts.tokens))
    sums = np.zeros((4, _MOMENTS))
    for block in records.blocks():
        rows = slice(block.first, block.last)
        several = np.diff(block.start)
        place = np.arange(len(block.tokens)) - np.repeat(block.start[:-1], several)
        later = np.flatnonzero((place > 0) & (place <= np.repeat(counts.messages[rows], several)))
        of = np.repeat(np.arange(block.first, block.last), several)[later]
        moment = (block.arrival_ns[later] - begin_ns) * _MOMENTS // (end_ns - begin_ns + 1)
        each = block.tokens[later] if counts.exact else tokens[of]
        each = each + np.where(place[later] == counts.messages[of], counts.past[of], 0.0)
        gaps = block.arrival_ns[later] - block.arrival_ns[later - 1]
        for row, values in zip(sums, (each, steps[of], gaps, None), strict=True):
            row += np.bincount(moment, values, _MOMENTS)
    parts = min(MOST_PARTS, int(some.sum()))
    before = np.concatenate([[0.0], np.cumsum(sums[3])])[:-1]
    begins = np.unique(before.searchsorted(np.arange(parts) * (sums[3].sum() / parts)))
    tokens_in, steps_in, span_ns = np.add.reduceat(sums[:3], begins.clip(0, _MOMENTS - 1), axis=1)
    return tokens_in, steps_in, span_ns


def estimate_ratio_of_sums(numerator: Int64 | Float64, denominator: Int64 | Float64) -> RatioEstimate | None:
    """Estimate Σ numerator / Σ denominator of requests, with the interval of them.

    Requests without a denominator are no units. None without any.
    """
    some = denominator > 0
    if not some.any():
        return None
    ratio = RatioOfSums(numerator[some], denominator[some])
    error = ratio.error if ratio.clusters > 1 else None
    return _make_interval(ratio, error, ratio.clusters - 1)


def estimate_over_time(numerator: Float64, denominator: Float64, scale: float) -> RatioEstimate | None:
    """Estimate scale × Σ numerator / Σ denominator over the parts of a run, with the interval of them.

    Batch means of a ratio: of the residuals y − r·x of n parts the m without the first and last, which hold
    ramp and drain, have the variance c, and neighbours the correlation a, which is (m·a' + 1) / (m − 4) where
    they show a' (Kendall 1954). r ± t · √(n·c·f) / Σx with f = (1 + a) / (1 − a): n parts are worth n / f
    that do not depend on each other (Bayley and Hammersley 1946), as are the degrees of freedom of Student's
    t, (m − 1) / f and m − 1 at most. None without a denominator.
    """
    if not denominator.sum() > 0:
        return None
    ratio = RatioOfSums(numerator, denominator)
    if ratio.clusters < _LEAST_PARTS:
        return _make_interval(ratio, None, 0, scale)
    inner = ratio.residuals[1:-1] - ratio.residuals[1:-1].mean()
    squares, m = float((inner**2).sum()), len(inner)
    shown = float((inner[1:] * inner[:-1]).sum()) / squares if squares else 0.0
    alike = min(max((m * shown + 1) / (m - 4), _ALIKE[0]), _ALIKE[1])
    worth = (1 - alike) / (1 + alike)
    error = math.sqrt(ratio.clusters * squares / (m - 1) / worth) / ratio.total
    return _make_interval(ratio, error, max(int((m - 1) * min(worth, 1.0)), 1), scale)


def _make_interval(
    ratio: RatioOfSums, error: float | None, freedom: int, scale: float = 1.0
) -> RatioEstimate:
    """Scale a ratio and its t interval, of no width if the error is rounding; without an error, none."""
    mean = scale * ratio.mean
    if error is None:
        return RatioEstimate(mean, units=ratio.clusters)
    half = scale * t_quantile(freedom) * (error if error >= LEAST_SPREAD * abs(ratio.mean) else 0.0)
    return RatioEstimate(mean, mean - half, mean + half, ratio.clusters)


APART = 0.02  # of the tokens after the first: counts that differ by less agree, as do the figures
MOST_PAST = 16  # draft tokens accepted past an answer's end, where a draft's length is not known
_HIDDEN = 2  # tokens that each message has at least where an interval or a buffer joins steps
_JUDGED = 16  # messages without which that shows nothing


def find_counters(facts: Facts) -> ServerWindow | None:
    """Return the server's counters, if they are of this run alone and no restart is in them; else None."""
    window = facts.own_window
    return None if window is None or window.reset else window


def count_accepted(window: ServerWindow) -> int | None:
    """Return the accepted draft tokens by the server's counters; None if they do not show them.

    SGLang counts steps alone, each of which verifies drafts: what it generated beyond one token each.
    """
    tokens, answers, steps = window.generation_tokens, window.finished, window.drafts
    if window.accepted_tokens is not None or tokens is None or answers is None or steps is None:
        return window.accepted_tokens
    return max(tokens - answers - steps, 0)


def explain_hidden_steps(facts: Facts, counts: StepCounts) -> Evidence | None:
    """Explain why the messages of a server that speculates are not its steps; None if nothing shows it.

    A message may hold several steps (an interval, a buffer), or each token comes alone. A server whose drafts
    give as few tokens as that hardly accepts any past an answer's end.
    """
    accepted = _count_accepted(facts)
    tokens, steps = int(counts.tokens.sum()), int(counts.steps.sum())
    if not steps:
        return None
    if accepted is None:
        if counts.least >= _HIDDEN and counts.histogram.sum() >= _JUDGED:
            return f"each chunk carries {counts.least} tokens or more: it holds several steps"
        return None
    if tokens - steps > accepted + APART * tokens:
        return (
            f"chunks carry {tokens - steps} tokens beyond one each, and only {accepted} draft tokens were "
            "accepted: a chunk holds several steps"
        )
    if tokens - steps <= APART * tokens < accepted - (tokens - steps):
        return f"{accepted} draft tokens were accepted, and each token has a chunk of its own"
    return None


def explain_apart(facts: Facts, counts: StepCounts) -> Evidence | None:
    """Explain by how much messages miss draft tokens that counters have; None if they agree or hide steps.

    Of each answer the last step may have accepted a whole draft past its end.
    """
    accepted = _count_accepted(facts)
    by_messages = int(counts.tokens.sum() - counts.steps.sum())
    if not counts.steps.any() or accepted is None or explain_hidden_steps(facts, counts):
        return None
    window = find_counters(facts)
    longest = (len(window.accepted_by_position) if window is not None else 0) or MOST_PAST
    allowed = longest * int((counts.steps > 0).sum()) + APART * int(counts.tokens.sum())
    if by_messages >= accepted - allowed:
        return None
    return f"accepted draft tokens: {by_messages} by the chunks, {accepted} by the server's counters"


def count_all(records: Records) -> StepCounts:
    """Count the steps of all requests, as the server's counters have them."""
    return StepCounts.from_records(records, np.ones(len(records), np.bool_))


def _count_accepted(facts: Facts) -> int | None:
    window = find_counters(facts)
    return None if window is None else count_accepted(window)


@suspect(
    "drafts-differ",
    "a server that speculates accepted more draft tokens, by its counters, than the chunks show: by more "
    f"than {percent(APART)} of the tokens and a draft past each response's end; steps-hidden does not hold",
    "keep other clients away from the server; a gateway that cuts chunks: measure without it; the "
    "acceptance length is then the counters' mean",
    Source.COUNTERS,
)
def drafts_differ(run: RunEvidence) -> Evidence | None:
    """Find evidence that a speculating server's counters and the messages disagree on accepted tokens."""
    return explain_apart(run.facts, count_all(run.records)) if run.facts.profile.stream else None


@note(
    "steps-hidden",
    "a server speculates, and its chunks are not its steps: they carry more tokens than it accepted (by "
    f"{percent(APART)}), {_HIDDEN} or more each without counters, or one each although it accepted drafts",
    "start the server with --stream-interval 1, or vLLM with --per-request-spec-decode-metrics summary, and "
    "measure without a gateway that buffers; else the acceptance length is the counters' mean, and the step "
    "time is not known",
)
def steps_hidden(run: RunEvidence) -> Evidence | None:
    """Find evidence that messages hold several of a speculating server's steps, or a part of one."""
    return explain_hidden_steps(run.facts, count_all(run.records)) if run.facts.profile.stream else None


limit = partial(limit_doubts, ("speculates",))
