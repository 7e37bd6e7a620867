"""Series: what the record of a ladder, a sweep or a search states is held to its runs, bundled or not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over
from builders.made_bundles import stored
from builders.made_qualities import keep_scores
from loadgen import cli
from loadgen.base.errors import UsageError
from loadgen.study.importers.result_sources import read_sources
from loadgen.study.quality.quality_record import BACKWARD
from loadgen.study.verify.held_series import hold_arm_quality, prove_series
from loadgen.study.verify.proof import Proof
from study.verify.test_verify import changed, edited, leaves

pytestmark = [
    pytest.mark.usefixtures("engines"),
    # Python 3.12 warns of any thread at a fork; the child takes none of their locks.
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]
TINY = ["--input-len", "8", "--output-len", "4", "--num-prompts", "6", "--seed", "7", "--quiet"]
SEARCH = ["--input-len", "8", "--output-len", "4", "--seed", "7", "--quiet", "--slo", "ttft p50 < 5s",
    "--preset", "bench/1024x50"]  # fmt: skip
STATED = {  # by the command, of a record of that name: no arrivals have it
    "limit.json": {
        "format", "loadgen", "name", "command", "axis", "objectives", "within", "budget_s", "most_runs",
        "least_run_s", "fixed", "seed", "start", "lowest", "highest", "alone_s", "attempts", "ended",
        "next_run_s", "simulated", "number", "directory", "cut", "took_s",
    },
    "ladder.json": {"run", "formula"},
    "depth.json": {"run", "test"},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def series(*words: str) -> Path:
    """The directory of what a command measured."""
    assert cli.main([*words]) == 0
    (directory,) = (path for path in Path("runs").iterdir() if path.is_dir())
    return directory


def held(directory: Path) -> tuple[str, ...]:
    """What differs in a record from its runs."""
    return tuple(str(each) for proof in prove_series(directory, "it") for each in proof.differences)


def figures(document: Any, name: str) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """The values of a record that follow from its runs."""
    for at, value in leaves(document):
        if not set(at) & STATED[name]:
            yield at, value


def hold_record(directory: Path, name: str) -> None:
    """As it was written a record is proven, also in a bundle; with any figure of it edited it is not."""
    record = directory / name
    document = json.loads(record.read_bytes())
    assert held(directory) == ()
    assert cli.main(["bundle", str(directory), "-o", "x.bundle"]) == 0
    assert cli.main(["verify", "x.bundle", str(directory)]) == 0
    spots = list(figures(document, name))
    assert len(spots) > 5
    missed = []
    for at, value in spots:
        record.write_text(json.dumps(edited(document, at, changed(value))))
        try:
            missed += [] if held(directory) else [at]
        except UsageError:
            continue  # it is no record any more
    assert missed == []


LADDER = ["ladder", "--quiet", "--preset", "bench/1024x50"]
DEPTHS = ["--depth", "0,256", "-p", "64", "-n", "4", "--num-prompts", "2"]
RUNGS = "ladder = [1, 8]\noutput_len = 4\nnum_prompts = 2\nmax_concurrency = 1\n"


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "name"),
    [
        ([*LADDER, "--profile", "./p.toml"], "ladder.json"),
        ([*LADDER, *DEPTHS], "depth.json"),
        ([*LADDER, *DEPTHS, "--concurrency", "2"], "depth.json"),
        (["limit", *SEARCH, "--max-runs", "2", "--min-duration", "2s"], "limit.json"),
    ],
    ids=["ladder", "depth", "batches", "limit"],
)
def test_every_figure_of_a_record_is_held(words: list[str], name: str) -> None:
    Path("p.toml").write_text(RUNGS)
    hold_record(series(*words), name)


def test_a_speed_that_a_strangers_ladder_states_is_not_repeated() -> None:
    Path("p.toml").write_text(RUNGS.replace("[1, 8]", "[1]"))
    ladder = series(*LADDER, "--profile", "./p.toml")
    speeds = []
    for times in (1, 3):
        record = json.loads((ladder / "ladder.json").read_bytes())
        record["rows"][0]["speed_tok_s"] *= times
        (ladder / "ladder.json").write_text(json.dumps(record))
        assert cli.main(["bundle", str(ladder), "-o", f"{times}.bundle"]) == 0
        (run,) = read_sources([f"{times}.bundle"]).reported
        speeds.append(run.figure("speed_tok_s"))
    assert speeds[0] == speeds[1]
    assert speeds[0] is not None


def test_a_batch_without_its_run_is_none() -> None:
    words = ["--depth", "0", "--concurrency", "2", "-p", "8", "-n", "2", "--num-prompts", "1"]
    directory = series(*LADDER, *words)
    record = directory / "depth.json"
    document = json.loads(record.read_bytes())
    assert held(directory) == ()
    for key, value in (("runs", []), ("runs", ["../x"]), ("batches", []), ("depth", 9), ("note", "cached")):
        record.write_text(json.dumps(edited(document, ("rows", 0, key), value)))
        assert held(directory) != ()


def test_the_points_of_a_sweep_are_held() -> None:
    directory = series("sweep", "--preset", "instant", "--concurrency", "1,2", *TINY)
    record = directory / "sweep.json"
    document = json.loads(record.read_bytes())
    assert held(directory) == ()
    record.write_text(json.dumps(edited(document, ("points", 1, "repeat"), 3)))
    assert any("points/001-concurrency-2" in line for line in held(directory))


def test_a_row_without_a_run_has_no_speed() -> None:
    Path("it").mkdir()
    for run in ("", "../elsewhere", "/etc", "none"):
        Path("it/ladder.json").write_text(json.dumps({"rows": [{"run": run, "speed_tok_s": 900.0}]}))
        assert "no run of it is there" in held(Path("it"))[0]


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
        raw = path.read_bytes()
        document = json.loads(raw)
        for at, value in leaves(document):
            path.write_text(json.dumps(edited(document, at, changed(value))))
            hold_arm_quality(path, held := Proof())
            inside = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in at)
            name = f"{path.name}: {inside[1:]}"
            if at == ("format",) or (path.stem, at) == ("a-x", ("of_reference",)):
                assert held.differences or held.unchecked, name
            else:
                assert [each.name for each in held.differences] == [name]
            seen.add(str(at[0]))
        path.write_bytes(raw)
    assert seen >= {"kl", "noise_floor", "agreement", "perplexity_ratio", "perplexity", "bits_per_byte"}


def test_the_arms_are_of_each_kind(campaign: Path) -> None:
    found = {path.stem: json.loads(path.read_bytes()) for path in (campaign / "quality").glob("?-x.json")}
    assert found["b-x"]["kl"]["answers"] == found["c-x"]["kl"]["answers"] == 10
    assert found["c-x"]["kl"]["direction"] == BACKWARD
    assert found["d-x"]["why"]["kl"].startswith("the vocabularies differ")
    assert found["a-x"]["noise_floor"] is not None


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
