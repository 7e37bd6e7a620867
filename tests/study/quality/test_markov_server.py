"""Quality measured over HTTP of servers whose distributions are known exactly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from builders.loops import loop_over
from builders.markov_chain import LIES, MarkovModel, Mode, disturb, make_chain
from builders.required import require
from fakes.markov_server import MarkovServer
from fakes.scripted_server import ScriptedServer
from loadgen.server.exchange import ServerAddress
from loadgen.study.quality.divergence import QualityEvidence, judge_evidence
from loadgen.study.quality.probability_apis import PROBABILITY_APIS
from loadgen.study.quality.probability_server import ProbabilityServer, probe_server
from loadgen.study.quality.quality_record import Quality
from loadgen.study.quality.quality_run import (
    AnswerMeasure,
    sample_answers,
    score_text,
    show_nothing,
    tokenize_text,
)
from loadgen.study.quality.quality_text import QualityPlan, read_text
from loadgen.study.quality.reference_file import AnswerLine


def measure(
    reference: MarkovModel, candidate: MarkovModel, tokens: int, seed: int = 0
) -> tuple[Quality, AnswerMeasure]:
    """Measure a candidate's quality over HTTP; also the answers."""
    plan = QualityPlan(read_text(), tokens)
    measured = AnswerMeasure(plan)
    with (
        ScriptedServer(MarkovServer(reference, "a", seed)) as one,
        ScriptedServer(MarkovServer(candidate, "b")) as two,
    ):
        ours, other = (reach(server, name) for server, name in ((one, "a"), (two, "b")))
        sample_answers(ours, other, plan, measured)
        texts = [score_text(server, tokenize_text(server, plan), show_nothing) for server in (ours, other)]
    evidence = QualityEvidence(
        reference="a",
        candidate="b",
        answers=[line.answer for line in measured.lines],
        own=[line.own for line in measured.lines],
        other=measured.scores,
        reference_text=texts[0],
        candidate_text=texts[1],
    )
    return judge_evidence(evidence), measured


def reach(server: ScriptedServer, model: str) -> ProbabilityServer:
    """The server as the measuring uses it."""
    address = ServerAddress(server.base_url)
    return probe_server(ProbabilityServer(address, model, "vLLM", PROBABILITY_APIS["vLLM"]))


def compute_expected(reference: MarkovModel, candidate: MarkovModel, lines: Sequence[AnswerLine]) -> float:
    """The exact KL divergence, in nats a token, of all answers that could follow these prompts."""
    rows = (np.exp(reference.logprobs) * (reference.logprobs - candidate.logprobs)).sum(1)
    shares, total = np.zeros(len(rows)), 0.0
    for line in lines:
        shares[line.answer.prompt_ids[-1]] += 1 / len(lines)
    tokens = len(lines[0].answer.token_ids)
    for _ in range(tokens):
        total += float(shares @ rows) / tokens
        shares = shares @ np.exp(reference.logprobs)
    return total


@pytest.mark.whole
def test_over_http_the_interval_covers_the_exact_divergence() -> None:
    reference, covered = make_chain(), {}
    for seed, kl in enumerate((0.001, 0.03, 0.5)):
        candidate = disturb(reference, kl)
        quality, measured = measure(reference, candidate, 4000, seed)
        exact = compute_expected(reference, candidate, measured.lines)
        assert quality.kl is not None
        assert (quality.kl.tokens, quality.doubts, quality.why) == (4000, (), {})
        covered[kl] = quality.kl.low <= exact <= quality.kl.high
    assert covered == {0.001: True, 0.03: True, 0.5: True}


def test_over_http_a_model_is_equal_to_itself() -> None:
    quality, _ = measure(make_chain(), make_chain(), 500)
    figures = (quality.kl, quality.noise_floor, quality.agreement)
    assert [require(each).mean for each in figures] == [0, 0, 1]


@pytest.mark.whole
@loop_over("mode", LIES)
def test_over_http_a_server_that_misreports_has_no_divergence(mode: Mode) -> None:
    quality, measured = measure(make_chain(mode=mode), disturb(make_chain(), 0.03), 4000)
    assert (quality.kl, measured.kl) == (None, None)  # nor is any shown on the way to the end
    assert quality.why["kl"] == quality.doubts[0]
    assert quality.perplexity_ratio is not None
