"""The intervals of quality cover the exact figures of Markov chains as often as they claim."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from builders.markov_chain import LIES, Evidence, MarkovModel, Mode, disturb, gather_evidence, make_chain
from loadgen.facts.run_facts import GreedyAnswer
from loadgen.study.quality.divergence import judge_contents
from loadgen.study.quality.quality_record import MeanInterval, Quality
from loadgen.study.quality.quality_run import AnswerMeasure
from loadgen.study.quality.quality_text import QualityPlan
from loadgen.study.quality.reference_file import GREEDY, ReferenceContents, ReferenceHeader

RUNS, TOKENS, PER_ANSWER = 200, 4000, 64
SEGMENTS, PER_SEGMENT = 20, 125
GREEDY_TOKENS = 16
WITHIN = range(186, 199)  # of 200, at 95 %: all but 3 in 1,000 sets of runs


def gather(sampler: MarkovModel, candidate: MarkovModel, seed: int, tokens: int = TOKENS) -> Evidence:
    """A whole measurement: answers of the sampler, scored by both, and a text of the truthful chain."""
    rng = np.random.default_rng(seed)
    begins = rng.choice(len(sampler.logprobs), p=sampler.stationary, size=tokens // PER_ANSWER + SEGMENTS)
    paths = sampler.walk(begins[SEGMENTS:], PER_ANSWER, rng)
    texts = MarkovModel(sampler.logprobs).walk(begins[:SEGMENTS], PER_SEGMENT, rng)
    return gather_evidence(sampler, candidate, paths, texts)


def count_covered(
    runs: list[Quality], find: Callable[[Quality], MeanInterval | None], exact: float
) -> tuple[int, int]:
    """How many runs' intervals lie below and above the exact value, to be added to those that cover it."""
    found = [interval for run in runs if (interval := find(run)) is not None]
    assert len(found) == len(runs)
    return sum(one.high < exact for one in found), sum(one.low > exact for one in found)


@pytest.mark.long
@pytest.mark.parametrize("kl", [0.001, 0.03, 0.5])
def test_intervals_cover_the_exact_value_as_often_as_they_claim(kl: float) -> None:
    reference = make_chain()
    candidate = disturb(reference, kl)
    runs = [gather(reference, candidate, seed).judge() for seed in range(RUNS)]
    same = float(reference.stationary @ (reference.firsts == candidate.firsts))
    missed = {
        "kl": count_covered(runs, lambda run: run.kl, kl),
        "agreement": count_covered(runs, lambda run: run.agreement, same),
        "ratio": count_covered(runs, lambda run: run.perplexity_ratio, math.exp(kl)),
        "self_check": count_covered(runs, lambda run: run.kl and run.kl.self_check, 1.0),
    }
    assert [name for name, sides in missed.items() if RUNS - sum(sides) not in WITHIN] == [], missed
    assert [run.doubts for run in runs if run.doubts] == []


def answer_greedily(model: MarkovModel) -> list[tuple[int, ...]]:
    """The tokens that follow each state greedily."""
    found = []
    for state in range(len(model.logprobs)):
        path = [state]
        for _ in range(GREEDY_TOKENS):
            path.append(int(model.firsts[path[-1]]))
        found.append(tuple(path[1:]))
    return found


@pytest.mark.parametrize("kl", [0.003, 0.03])
def test_intervals_of_greedy_answers_cover_the_exact_shares(kl: float) -> None:
    reference = make_chain()
    both = [answer_greedily(model) for model in (reference, disturb(reference, kl))]
    pairs = list(zip(*both, strict=True))
    equal = [int(np.cumprod(np.equal(*pair)).sum()) for pair in pairs]
    reached, chance = np.minimum(np.add(equal, 1), GREEDY_TOKENS), reference.stationary
    exact = {
        "same_answers": float(chance @ np.equal(equal, GREEDY_TOKENS)),
        "agreement": float(chance @ equal) / float(chance @ reached),
    }
    missed = dict.fromkeys(exact, 0)
    for seed in range(RUNS):
        states = np.random.default_rng(seed).choice(len(pairs), p=chance, size=60)
        sides = []
        for answers in both:
            header = ReferenceHeader(model="m", engine="e", settings={GREEDY: True})
            rows = [GreedyAnswer(prompt=f"{at}", token_ids=answers[state]) for at, state in enumerate(states)]
            sides.append(ReferenceContents(header, greedy=rows))
        quality = judge_contents(*sides)
        for name, share in exact.items():
            interval = getattr(quality, name)
            missed[name] += not interval.low - 1e-9 <= share <= interval.high + 1e-9
    assert [name for name, count in missed.items() if RUNS - count not in WITHIN] == [], (exact, missed)


@pytest.mark.parametrize("mode", LIES)
def test_a_server_that_does_not_sample_as_it_reports_has_no_kl(mode: Mode) -> None:
    sampler = make_chain(mode=mode)
    for candidate in (make_chain(), disturb(make_chain(), 0.03)):
        evidence = gather(sampler, candidate, 0)
        quality = evidence.judge()
        assert (quality.kl, quality.noise_floor) == (None, None)
        assert quality.why["kl"] == quality.doubts[0]
        assert AnswerMeasure(QualityPlan(""), *evidence.sides).kl is None  # nor is any shown on the way
    assert quality.agreement is not None
