"""Lengths: each distribution has the moments it was asked for, its bounds hold, a seed names its draws."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from builders.loops import loop_over, read_tables
from loadgen.engines.engines import UNKNOWN
from loadgen.plan import lengths, plan, profile
from loadgen.plan.request_sources import ModelTarget, Seed

TABLES = read_tables("lengths")

N = 200_000


def drawn(text: str, usual_mean: int = 1024, n: int = N) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return lengths.parse_lengths(text, "--input-dist", usual_mean).draw(np.random.default_rng(3), n)


@loop_over(("text", "mean", "sd", "least", "most"), TABLES["moments"])
def test_a_distribution_has_the_moments_it_is_asked_for(
    text: str, mean: float, sd: float, least: int, most: int
) -> None:
    lens = drawn(text)
    assert lens.dtype == np.int64
    assert least <= int(lens.min()) <= int(lens.max()) <= most
    assert float(lens.mean()) == pytest.approx(mean, abs=max(1e-9, 5 * sd / math.sqrt(N)))
    assert float(lens.std()) == pytest.approx(sd, rel=0.02)
    assert lengths.parse_lengths(text, "--input-dist", 1024).remark() == ""


@loop_over(
    ("text", "pinned"),
    [
        ("fixed", [1024, 1024, 1024, 1024, 1024, 1024]),
        ("uniform:min=16,max=2032", [1652, 188, 377, 493, 381, 1632]),
        ("normal:sd=256", [1546, 370, 1131, 879, 908, 969]),
        ("lognormal:sd=512,min=16,max=8192", [2402, 274, 1116, 700, 740, 827]),
        ("zipf:min=16,max=8192,mean=1024", [23, 49, 1615, 355, 24, 143]),
    ],
)
def test_a_seed_names_the_same_lengths_in_every_version(text: str, pinned: list[int]) -> None:
    assert drawn(text, n=6).tolist() == pinned


def test_what_is_out_of_bounds_is_drawn_again_and_piles_up_nowhere() -> None:
    made = lengths.parse_lengths("lognormal:mean=160000,sd=233600,min=10000,max=990000", "--input-dist", 1)
    lens = made.draw(np.random.default_rng(0), N)
    assert 10_000 <= int(lens.min()) <= int(lens.max()) <= 990_000
    assert np.count_nonzero(lens == 10_000) < 20
    assert made.remark() == "its mean is about 145125, not 160000, within min and max"
    # As the truncated distribution has it: Φ of the bounds, shifted by sigma for the mean.
    sigma = math.sqrt(math.log1p((233600 / 160000) ** 2))
    middle = math.log(160000) - sigma**2 / 2
    low, high = ((math.log(bound) - middle) / sigma for bound in (9999.5, 990000.5))

    def phi(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    exact = 160000 * (phi(high - sigma) - phi(low - sigma)) / (phi(high) - phi(low))
    assert float(lens.mean()) == pytest.approx(exact, rel=0.01)


@loop_over(
    "content",
    [
        '{"128": 3, "256": 1}',
        "[[128, 3], [256, 1]]",
        "length,count\n128,3\n256,1\n",
        "128;3\n\n256;1",
        "\ufeff128\t3\n256\t1",
    ],
)
def test_a_histogram_is_read_in_each_form(tmp_path: Path, content: str) -> None:
    file = tmp_path / "lens"
    file.write_text(content, "utf-8")
    lens = drawn(f"histogram:{file}")
    assert np.unique(lens).tolist() == [128, 256]
    assert float((lens == 128).mean()) == pytest.approx(0.75, abs=0.005)


def test_the_lengths_of_a_bin_are_all_alike(tmp_path: Path) -> None:
    file = tmp_path / "bins.csv"
    file.write_text("from,to,count\n1,4,1\n100,100,1\n", "utf-8")
    shares = np.bincount(drawn(f"histogram:{file}"))[[1, 2, 3, 4, 100]] / N
    assert shares.tolist() == pytest.approx([0.125] * 4 + [0.5], abs=0.005)


def test_a_plan_has_the_lengths_of_its_distributions() -> None:
    keys = {"name": "p", "num_prompts": 400, "input_dist": "uniform:min=16,max=64", "prefix_len": 100}
    keys |= {"output_len": 300, "output_dist": "normal:mean=100,sd=200"}
    made = plan.make(profile.build(keys), ModelTarget(UNKNOWN, "m"), Seed(7))
    assert made.facts.input is not None
    assert made.facts.output is not None
    assert (made.facts.input.least, made.facts.input.most) == (116, 164)
    assert made.facts.output.least >= 1
    assert made.requests.input_lens.tolist() == [len(made.payload(i)["prompt"]) for i in range(400)]
    assert made.requests.output_lens.tolist() == [made.payload(i)["max_tokens"] for i in range(400)]
    assert [note for note in made.notes if note.startswith("--output-dist")] == [
        "--output-dist normal:mean=100,sd=200: its mean is about 202, not 100, within min and max"
    ]
