"""Quality run: a candidate's quality from servers that are up, or from what a reference file has.

`record_reference` keeps what a reference samples and scores; a `QualityRun` measures a candidate against a
reference that is up, or was kept. Both can be stopped by KeyboardInterrupt: what is noted until then stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from loadgen.base import clock
from loadgen.base.errors import MeasureError, UsageError
from loadgen.base.text import WIDTH
from loadgen.features.quality.divergence import QualityEvidence, estimate_divergence, judge_evidence
from loadgen.features.quality.probability_server import ProbabilityServer
from loadgen.features.quality.quality_measure import (
    AnswerMeasure,
    TokenizedText,
    sample_answers,
    score_answers,
    score_text,
    tokenize_text,
)
from loadgen.features.quality.quality_record import MeanInterval, Quality, TextSegment, TokenScores
from loadgen.features.quality.reference_file import (
    AnswerLine,
    ReferenceContents,
    ReferenceFile,
    ReferenceHeader,
    SegmentLine,
    read_reference,
)
from loadgen.features.quality.text_parts import QualityPlan

_GROWTH = 1.05  # of the answers between two estimates, so that many answers are not read again and again
_FEWEST = 20  # answers before an interval's width means something


class QualityProgress(msgspec.Struct, frozen=True):
    """How far a measurement of quality is, for a display."""

    what: str  # as "answers of bf16"
    done: int
    total: int
    unit: str = "token"
    kl: MeanInterval | None = None  # so far
    begin_ns: int = 0  # of these

    @property
    def share(self) -> float:
        """The share that is done, 0 to 1."""
        return min(self.done / max(self.total, 1), 1.0)

    def line(self, columns: int = WIDTH) -> str:
        """Return the progress in one line: what, how much, the interval so far, and the seconds left."""
        parts = [f"{self.what}: {self.done:,} of {self.total:,} {self.unit}s"]
        if self.kl is not None:
            parts.append(f"KL {self.kl.mean:.4f} ± {(self.kl.high - self.kl.low) / 2:.4f}")
        if self.begin_ns and self.share:
            elapsed_s = (clock.now_ns() - self.begin_ns) / 1e9
            parts.append(f"{elapsed_s * (1 / self.share - 1):.0f} s left")
        return " · ".join(parts)


Show = Callable[[QualityProgress], None]


def show_nothing(progress: QualityProgress) -> None:
    """Show no progress."""


def make_header(server: ProbabilityServer, plan: QualityPlan, text: TokenizedText) -> ReferenceHeader:
    """Make the header of a server's reference file."""
    return ReferenceHeader(
        model=server.model,
        engine=server.engine,
        engine_version=server.version,
        settings=plan.list_settings(),
        text_digest=plan.text_digest,
        text_ids=text.segments,
    )


def record_reference(
    server: ProbabilityServer, plan: QualityPlan, path: Path, show: Show = show_nothing
) -> ReferenceContents:
    """Keep what a server samples and scores in a file, which goes on where an earlier run of it ended.

    Returns the whole contents. Raises UsageError for a file of another reference, MeasureError.
    """
    if server.texts:
        raise MeasureError(
            f"{server.access.shown_url} reports no token ids, which a file must have: pass --reference-url "
            "with a server of the reference, which finds them"
        )
    text = tokenize_text(server, plan)
    with closing(ReferenceFile(path, make_header(server, plan, text))) as file:
        kept = file.contents
        if server.scores and (kept is None or len(kept.segments) < len(text.segments)):
            begin_ns, total = clock.now_ns(), len(text.segments)
            segments = score_text(
                server,
                text,
                lambda done: show(QualityProgress("text", done, total, "segment", None, begin_ns)),
            )
            file.append(map(SegmentLine, segments))
        begin_ns = clock.now_ns()

        def keep(lines: Sequence[AnswerLine], _: Sequence[TokenScores | None]) -> None:
            file.append(lines)
            show(
                QualityProgress(f"answers of {server.model}", measure.tokens, plan.tokens, begin_ns=begin_ns)
            )

        measure = AnswerMeasure(plan, keep)
        if kept is not None:
            measure.answers = len(kept.answers)
            if plan.chat and server.api.answers_chats:  # which has no ids of a prompt before its answer
                measure.numbered = measure.answers
            else:
                measure.known = Counter(line.answer.prompt_ids for line in kept.answers)
            measure.tokens = sum(len(line.answer.token_ids) for line in kept.answers)
        sample_answers(server, None, plan, measure)
    return read_reference(path)


@dataclass
class QualityRun:
    """A measurement of a candidate: what it is held to, and the evidence so far.

    `reference` is up, or else `kept` is what its file has. The candidate samples where it cannot score.
    """

    candidate: ProbabilityServer
    plan: QualityPlan
    reference: ProbabilityServer | None = None
    kept: ReferenceContents | None = None
    show: Show = show_nothing
    lines: list[AnswerLine] = field(default_factory=list)
    scores: list[TokenScores | None] = field(default_factory=list)
    texts: dict[bool, list[TextSegment]] = field(default_factory=dict)  # by whether of the reference
    why: dict[str, str] = field(default_factory=dict)
    _kl: MeanInterval | None = None  # as of the last estimate
    _next: int = 2  # answers at which it is estimated again

    def __post_init__(self) -> None:
        """Raise UsageError for a file of another text, and where no server scores what is sampled."""
        if self.kept is None:
            if self.reference is not None and not (self.reference.scores or self.candidate.scores):
                raise UsageError(
                    f"neither {self.reference.engine} nor {self.candidate.engine} scores what the other "
                    "samples: serve one of them by an engine that does, as vLLM"
                )
            return
        header = self.kept.header
        if header.text_digest != self.plan.text_digest:
            raise UsageError(
                "--reference: it was measured on another text: pass that one with --text, or keep the "
                "reference again with --save"
            )
        if not self.candidate.scores:
            raise UsageError(
                f"{self.candidate.engine} cannot score what a reference has sampled: it samples, and the "
                "reference scores, where that is up: pass its --reference-url and no file"
            )

    @property
    def backward(self) -> bool:
        """Whether the candidate samples and the reference scores."""
        return not self.candidate.scores

    def measure(self) -> None:
        """Score the text by both, then answers until there are enough; raises MeasureError, UsageError."""
        theirs = self._read_reference_text()
        own = theirs if self.candidate.texts else tokenize_text(self.candidate, self.plan)
        same = own.has_ids(theirs.segments)
        if same:
            # A token that begins a prompt is that of the reference.
            own = TokenizedText(theirs.segments, theirs.scored_bytes or own.scored_bytes)
        if self.kept is not None:
            self.texts[True] = list(self.kept.segments)
            if not self.kept.segments:
                self.why["text"] = "the reference's file has no scores of the text"
        for of_reference, server, text in ((True, self.reference, theirs), (False, self.candidate, own)):
            if server is not None and server.scores:
                self.texts[of_reference] = self._score_text(server, text)
            elif server is not None:
                self.why["text"] = f"{server.engine} ({server.model}) scores no text"
        if not same:
            reason = "the vocabularies differ: the same text has other tokens; bits per byte compare them"
            self.why |= {"kl": reason, "noise_floor": reason}
            return
        self._measure_answers()

    def _read_reference_text(self) -> TokenizedText:
        """Return the text as the reference tokenizes it, by its file or its server."""
        if self.reference is not None:
            return tokenize_text(self.reference, self.plan)
        assert self.kept is not None
        return TokenizedText(
            self.kept.header.text_ids, tuple(segment.scored_bytes for segment in self.kept.segments)
        )

    def _score_text(self, server: ProbabilityServer, text: TokenizedText) -> list[TextSegment]:
        begin_ns, total = clock.now_ns(), len(text.segments)
        what = f"text by {server.model}"
        return score_text(
            server,
            text,
            lambda done: self.show(QualityProgress(what, done, total, "segment", None, begin_ns)),
        )

    def _measure_answers(self) -> None:
        """Sample answers by one and score them by the other, or score those that the file has."""
        begin_ns = clock.now_ns()

        def keep(lines: Sequence[AnswerLine], scores: Sequence[TokenScores | None]) -> None:
            self.lines += lines
            self.scores += scores
            if len(self.lines) >= self._next:
                self._kl = estimate_divergence([line.answer for line in self.lines], self.scores)
                self._next = int(_GROWTH * len(self.lines)) + 1
            self.show(
                QualityProgress(
                    f"answers of {sampler}", measure.tokens, plan.tokens, kl=self._kl, begin_ns=begin_ns
                )
            )

        plan, measure = self.plan, AnswerMeasure(self.plan, keep, self.is_precise)
        if self.kept is not None:
            sampler = self.kept.header.model
            score_answers(self.candidate, self.kept.answers, measure)
            return
        assert self.reference is not None
        one, other = self.reference, self.candidate
        if self.backward:
            one, other = other, one
        sampler = one.model
        sample_answers(one, other if other.scores else None, plan, measure)

    def is_precise(self) -> bool:
        """Whether KL's interval is as narrow as the plan wants, from 20 answers on."""
        if self.plan.precision is None or self._kl is None or len(self.lines) < _FEWEST:
            return False
        return (self._kl.high - self._kl.low) / 2 <= self.plan.precision

    @property
    def is_begun(self) -> bool:
        """Whether any figure can be computed."""
        return len(self.lines) > 1 or all(self.texts.get(side) for side in (True, False))

    def judge(self) -> Quality:
        """Compute the figures of what is measured so far."""
        kept = self.kept.header if self.kept is not None else None
        assert kept is not None or self.reference is not None
        servers = {"candidate": self.candidate, "reference": self.reference}
        settings = {
            **self.plan.list_settings(),
            **{f"{side}_engine": server.engine for side, server in servers.items() if server is not None},
        }
        digests = {"text": self.plan.text_digest}
        if self.kept is not None:
            settings["reference_engine"] = self.kept.header.engine
            digests["reference"] = self.kept.digest
        return judge_evidence(
            QualityEvidence(
                reference=kept.model if kept else self.reference.model if self.reference else "",
                candidate=self.candidate.model,
                answers=[line.answer for line in self.lines],
                own=[line.own for line in self.lines],
                other=self.scores,
                candidate_sampled=self.backward,
                reference_text=self.texts.get(True, ()),
                candidate_text=self.texts.get(False, ()),
                why=self.why,
                settings=settings,
                digests=digests,
            )
        )
