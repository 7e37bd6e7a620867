"""A quality as text: its figures, why some are missing, and doubts, in 80 columns."""

from __future__ import annotations

from pathlib import Path

from loadgen.features.quality.quality_lines import list_quality_lines, list_reference_lines
from loadgen.features.quality.quality_record import (
    FORWARD,
    KlDivergence,
    MeanInterval,
    Quality,
    SampledAnswer,
    TokenScores,
)
from loadgen.features.quality.reference_file import AnswerLine, ReferenceContents, ReferenceHeader


def between(mean: float, half: float) -> MeanInterval:
    return MeanInterval(mean=mean, low=mean - half, high=mean + half)


WHOLE = Quality(
    reference="bf16",
    candidate="/models/" + "long/" * 12 + "fp8",
    kl=KlDivergence(
        mean=0.11, low=0.1, high=0.16, tokens=20_012, answers=314, direction=FORWARD,
        self_check=between(1.0, 0.01),
    ),
    noise_floor=between(0.0012, 0.0003),
    agreement=between(0.941, 0.006),
    perplexity_ratio=between(1.02, 0.004),
    perplexity={"reference": 9.12, "candidate": 9.31},
    bits_per_byte={"reference": between(0.8, 0.03), "candidate": between(0.81, 0.03)},
    doubts=("it truncates what it samples " + "and says so " * 8,),
)  # fmt: skip


def test_a_whole_quality() -> None:
    lines = list_quality_lines(WHOLE, 0.05)
    assert lines == [
        "/models/long/long/long/long/long/long/long/long/long/long/long/long/fp8 held to",
        "  bf16: different by more than 0.05 nats a token",
        "  KL(reference‖candidate) 0.1100 (0.1000 to 0.1600) nats a token",
        "                          20,012 tokens of 314 answers",
        "  self check              1.0000 ± 0.0100 (1 is expected)",
        "  noise floor             0.0012 ± 0.0003 nats a token",
        "  same first choice       94.1 ± 0.6 % of the text's tokens",
        "  perplexity              9.31, reference 9.12",
        "  perplexity ratio        1.0200 ± 0.0040",
        "  bits per byte           0.810 ± 0.030, reference",
        "                          0.800 ± 0.030",
        "doubt: it truncates what it samples and says so and says so and says so and says",
        "  so and says so and says so and says so and says so",
    ]


def test_what_is_missing_is_said_once_with_its_reason() -> None:
    why = {"kl": "b", "noise_floor": "b", "agreement": "c", "perplexity_ratio": "c", "bits_per_byte": "c"}
    assert list_quality_lines(Quality(reference="a", candidate="b", why=why), 0.05) == [
        "b held to a: no KL divergence",
        "no KL divergence, noise floor: b",
        "no same first choice, perplexity ratio, bits per byte: c",
    ]


def test_a_reference_file() -> None:
    answer = SampledAnswer((1,), (2, 3), (-1.0, -2.0))
    lines = [AnswerLine(answer, TokenScores((-1.0, -2.0))), AnswerLine(answer, TokenScores((-1.0, -2.0)))]
    header = ReferenceHeader(model="bf16", engine="vLLM")
    contents = ReferenceContents(header, tuple(lines), (), "digest", 10, "its last line is cut off")
    assert list_reference_lines(contents, Path("ref.gz")) == [
        "ref.gz: 2 answers of bf16, 4 tokens, 0 segments of text",
        "  noise floor             0.0000 ± 0.0000 nats a token",
        "the rest of the file is left out: its last line is cut off",
    ]
