"""Qualities of a campaign's arms are held to the scores that it keeps, bundled or not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builders.loops import loop_over
from builders.made_bundles import stored
from builders.made_qualities import keep_scores
from loadgen import cli
from loadgen.study.verify.held_series import hold_arm_quality, prove_series
from loadgen.study.verify.proof import Proof, encode_record
from study.verify.test_verify import changed, edited, leaves


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A campaign of one run, with the qualities of four arms."""
    made = tmp_path_factory.mktemp("campaign") / "it"
    stored(made / "cells" / "one", requests=6, tokens=4, concurrency=2)
    keep_scores(made / "quality")
    return made


def proofs(directory: Path) -> dict[str, Proof]:
    """The proof of each arm."""
    return {Path(proof.place).stem: proof for proof in prove_series(directory, "it")}


def test_every_value_of_a_quality_that_is_edited_is_named(campaign: Path) -> None:
    proven = [arm for arm, proof in proofs(campaign).items() if proof.proven]
    assert proven == ["a-x", "b-x", "c-x", "d-x"]
    seen = set[str]()
    for path in sorted((campaign / "quality").glob("?-x.json")):
        document = json.loads(path.read_bytes())
        for at, value in leaves(document):
            hold_arm_quality(path, encode_record(edited(document, at, changed(value))), held := Proof())
            inside = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in at)
            name = f"{path.name}: {inside[1:]}"
            if at == ("format",) or (path.stem, at) == ("a-x", ("of_reference",)):
                assert held.differences or held.unchecked, name
            else:
                assert [each.name for each in held.differences] == [name]
            seen.add(str(at[0]))
    assert seen >= {"kl", "noise_floor", "agreement", "perplexity_ratio", "perplexity", "bits_per_byte"}


@loop_over(
    ("removed", "arms", "words"),
    [
        ("reference.jsonl.gz", "abcd", "the scores it was measured from are not here"),
        ("b-x.jsonl.gz", "b", "--with-text"),
        ("tasks.json", "abcd", "tasks.json has no task of it"),
    ],
)
def test_what_is_not_there_leaves_it_unproven(removed: str, arms: str, words: str, tmp_path: Path) -> None:
    keep_scores(tmp_path / "it" / "quality")
    (tmp_path / "it" / "quality" / removed).unlink()
    found = proofs(tmp_path / "it")
    assert {arm[0] for arm, proof in found.items() if not proof.proven} == set(arms)
    for arm in arms:
        assert words in found[f"{arm}-x"].unchecked[0]
        assert found[f"{arm}-x"].differences == []


def test_scores_that_were_edited_are_another_reference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(tmp_path / "it" / "cells" / "one", requests=6, tokens=4, concurrency=2)
    keep_scores(tmp_path / "it" / "quality")
    keep_scores(tmp_path / "other" / "quality", tokens=320)
    for name in ("reference.jsonl.gz", "b-x.jsonl.gz"):
        (tmp_path / "other" / "quality" / name).replace(tmp_path / "it" / "quality" / name)
    assert cli.main(["verify", str(tmp_path / "it")]) == 11
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "quality/b-x.json" in line)
    assert line.startswith("CHANGED")
    assert "kl.mean is" in line
    assert "the scores give" in line


def test_scores_of_more_than_the_most_bytes_are_not_read(
    campaign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadgen.study.verify.held_series._MOST_SCORES", 1000)
    assert "reference.jsonl.gz has more than" in proofs(campaign)["b-x"].unchecked[0]


@loop_over(("words", "code", "line"), [([], 12, "UNPROVEN"), (["--with-text"], 0, "proven  ")])
def test_a_bundle_proves_qualities_with_text_alone(
    words: list[str], code: int, line: str, campaign: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = str(tmp_path / "x.bundle")
    assert cli.main(["bundle", str(campaign), "-o", bundle, *words]) == 0
    assert ("verify will say: UNPROVEN" in capsys.readouterr().err) is (code == 12)
    assert cli.main(["verify", bundle]) == code
    found = [each for each in capsys.readouterr().out.splitlines() if "/quality/" in each]
    assert len(found) == 4
    assert all(each.startswith(line) for each in found)
