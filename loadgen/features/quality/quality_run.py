"""Quality run: a candidate's quality from servers that are up, or from what a reference file has.

`record_reference` keeps what a reference samples and scores; a `QualityRun` measures a candidate against a
reference that is up, or was kept. Both can be stopped by KeyboardInterrupt: what is noted until then stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from loadgen.base.errors import MeasureError, UsageError
from loadgen.features.quality.divergence import QualityEvidence, judge_evidence
from loadgen.features.quality.probability_server import ProbabilityServer
from loadgen.features.quality.quality_measure import (
    AnswerMeasure,
    Show,
    sample_answers,
    score_answers,
    score_text,
    show_nothing,
    tokenize_text,
)
from loadgen.features.quality.quality_record import CANDIDATE, REFERENCE, Quality, TextSegment
from loadgen.features.quality.quality_text import QualityPlan, TokenizedText
from loadgen.features.quality.reference_file import (
    ReferenceContents,
    ReferenceFile,
    ReferenceHeader,
)

VOCABULARIES_DIFFER = dict.fromkeys(
    ("kl", "noise_floor"),
    "the vocabularies differ: the same text has other tokens; bits per byte compare them",
)  # why these are None
UNSCORED_REFERENCE = "the reference's file has no scores of the text"


def explain_no_text(engine: str, model: str) -> str:
    """Explain why figures of the text are None where a server cannot score it."""
    return f"{engine} ({model}) scores no text"


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
) -> None:
    """Keep what a server samples and scores in a file, which goes on where an earlier run of it ended.

    Raises UsageError for a file of another reference, MeasureError.
    """
    if server.texts:
        raise MeasureError(
            f"{server.access.shown_url} reports no token ids, which a file must have: pass --reference-url "
            "with a server of the reference, which finds them"
        )
    text = tokenize_text(server, plan)
    with closing(ReferenceFile(path, make_header(server, plan, text))) as file:
        kept = () if file.contents is None else file.contents.answers
        if server.scores:
            score_text(server, text, show, file)
        measure = AnswerMeasure(plan, f"answers of {server.model}", show)
        measure.note(kept, [None] * len(kept))
        measure.keep = file.append
        if plan.chat and server.api.answers_chats:  # which has no ids of a prompt before its answer
            measure.numbered = len(kept)
        else:
            measure.known = Counter(line.answer.prompt_ids for line in kept)
        sample_answers(server, None, plan, measure)


def describe_origin(
    settings: Mapping[str, Any],
    text_digest: str,
    engines: Mapping[str, str],
    reference: ReferenceContents | None,
) -> dict[str, Any]:
    """Describe what figures are of: `settings` with each side's engine, and `digests` of text and reference.

    `engines` are by "reference" and "candidate"; that of a file is the file's.
    """
    known = dict(engines) if reference is None else {**engines, REFERENCE: reference.header.engine}
    digests = {"text": text_digest, **({} if reference is None else {"reference": reference.digest})}
    named = {f"{side}_engine": engine for side, engine in known.items()}
    return {"settings": {**settings, **named}, "digests": digests}


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
    scores_path: Path | None = None  # of a file that keeps the candidate's scores, and goes on with them
    texts: dict[str, Sequence[TextSegment]] = field(default_factory=dict)  # by side
    why: dict[str, str] = field(default_factory=dict)
    answers: AnswerMeasure = field(init=False)

    def __post_init__(self) -> None:
        """Raise UsageError for a file of another text, and where no server scores what is sampled."""
        model = self._kept.header.model if self.reference is None else self.reference.model
        what = f"answers of {self.candidate.model if self.backward else model}"
        most = self.plan.tokens if self.kept is None else min(self.plan.tokens, self.kept.tokens)
        self.answers = AnswerMeasure(replace(self.plan, tokens=most), what, self.show)
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
        if not (self.kept.answers or self.kept.segments):
            raise UsageError(
                "--reference: it has no answers yet: go on with it by --save while its server is up"
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
        theirs = tokenize_text(self.reference, self.plan) if self.reference is not None else self._kept.text
        own = theirs if self.candidate.texts else tokenize_text(self.candidate, self.plan)
        same = own.take_ids(theirs)
        with ExitStack() as stack:
            file = None
            if self.scores_path is not None:
                header = make_header(self.candidate, self.plan, same or own)
                file = stack.enter_context(closing(ReferenceFile(self.scores_path, header)))
            self._score_texts(theirs, same or own, file)
            if same is None:
                self.why |= VOCABULARIES_DIFFER
            elif self.reference is None:
                score_answers(self.candidate, self._kept.answers, self.answers, file)
            else:
                pair = (self.reference, self.candidate)
                sampler, scorer = pair[::-1] if self.backward else pair
                sample_answers(sampler, scorer, self.plan, self.answers)

    @property
    def _kept(self) -> ReferenceContents:
        """What the reference's file has, where the reference is not up."""
        assert self.kept is not None
        return self.kept

    def _score_texts(self, theirs: TokenizedText, own: TokenizedText, file: ReferenceFile | None) -> None:
        """Score the text by both, unless one of them scores none."""
        if self.reference is None and not self._kept.segments:
            self.why["text"] = UNSCORED_REFERENCE
        for server in (self.reference, self.candidate):
            if server is not None and not server.scores:
                self.why["text"] = explain_no_text(server.engine, server.model)
        if "text" not in self.why:
            self.texts[REFERENCE] = (
                self._kept.segments
                if self.reference is None
                else score_text(self.reference, theirs, self.show)
            )
            self.texts[CANDIDATE] = score_text(self.candidate, own, self.show, file)

    @property
    def is_begun(self) -> bool:
        """Whether any figure can be computed."""
        return len(self.answers.lines) > 1 or all(self.texts.get(side) for side in (REFERENCE, CANDIDATE))

    def note_end(self, reason: str) -> None:
        """Note why it ended before there were answers enough for a divergence, if it did."""
        if len(self.answers.lines) < 2:
            for name in ("kl", "noise_floor"):
                self.why.setdefault(name, reason)

    def judge(self) -> Quality:
        """Compute the figures of what is measured so far."""
        engines = {CANDIDATE: self.candidate.engine}
        if self.reference is not None:
            engines[REFERENCE] = self.reference.engine
        return judge_evidence(
            QualityEvidence(
                reference=self._kept.header.model if self.reference is None else self.reference.model,
                candidate=self.candidate.model,
                answers=[line.answer for line in self.answers.lines],
                own=[line.own for line in self.answers.lines],
                other=self.answers.scores,
                candidate_sampled=self.backward,
                reference_text=self.texts.get(REFERENCE, ()),
                candidate_text=self.texts.get(CANDIDATE, ()),
                why=self.why,
                **describe_origin(self.plan.list_settings(), self.plan.text_digest, engines, self.kept),
            )
        )
