"""Verify: a run or a quality as it was written is proven, and what is edited of it is named."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over
from builders.made_bundles import ENVIRONMENT, bundled, stored
from builders.made_qualities import keep_scores
from loadgen import cli
from loadgen.base.errors import UsageError
from loadgen.facts.run_facts import find_fact_types
from loadgen.report import report, run_directory
from loadgen.study.bundle import reading
from loadgen.study.verify import proof
from loadgen.study.verify.held_series import hold_arm_quality, prove_series
from loadgen.study.verify.proof import Proof, encode_record, hold_lengths

SMALL: dict[str, Any] = {"requests": 8, "tokens": 4, "concurrency": 2, "failed": 1}
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def leaves(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every value of a JSON document that is no table or list, by the keys that lead to it."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*at, key))
    else:
        yield at, value


def edited(document: Any, at: tuple[str | int, ...], value: Any) -> Any:
    """The document with one value replaced."""
    changed = copy.deepcopy(document)
    inner = changed
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = value
    return changed


def changed(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * 1.0001 + 1e-6
    return 1 if value is None else f"{value}!"


def is_fact(at: tuple[str | int, ...]) -> bool:
    """Whether a value is what the run states of itself, and not what follows from it."""
    return at[0] == "loadgen" and at[1] in find_fact_types()


@contextmanager
def editing(run: Path) -> Iterator[Any]:
    """A run's result to be changed, which is written again."""
    document = json.loads((run / run_directory.RESULT).read_bytes())
    yield document
    (run / run_directory.RESULT).write_text(json.dumps(document))


def hold_edited_figures(run: Path, step: int) -> None:
    """Edit every `step`-th figure of a run's result, one at a time: each is named."""
    result = run / run_directory.RESULT
    document = json.loads(result.read_bytes())
    assert proof.prove_run(run, "run").proven
    figures = [(at, value) for at, value in leaves(document) if not is_fact(at)]
    assert len(figures) > 200
    for at, value in figures[::step]:
        result.write_text(json.dumps(edited(document, at, changed(value))))
        found = proof.prove_run(run, "run")
        assert found.differences or found.unchecked, at
        if at[-1] != "definitions_version":
            assert str(at[0]) in found.differences[0].name


def hold_edited_lines(run: Path, step: int) -> None:
    """Edit the last digit of every `step`-th number of a run's report, one at a time: its line is named."""
    printed = run / run_directory.REPORT
    text = printed.read_text("utf-8")
    numbers = list(_NUMBER.finditer(text))
    assert len(numbers) > 50
    for found in numbers[::step]:
        digit = str((int(found[0][-1]) + 1) % 10)
        printed.write_text(text[: found.end() - 1] + digit + text[found.end() :])
        (difference,) = proof.prove_run(run, "run").differences
        assert difference.name == f"report.txt: line {text[: found.start()].count(chr(10)) + 1}"


@pytest.mark.parametrize("step", [40, pytest.param(1, marks=pytest.mark.long)])
def test_an_edited_figure_or_line_is_named(step: int, tmp_path: Path) -> None:
    hold_edited_figures(stored(tmp_path / "a", **SMALL), step)
    hold_edited_lines(stored(tmp_path / "b", **SMALL), step)


def test_a_report_in_another_form_is_proven_as_well(tmp_path: Path) -> None:
    run = stored(tmp_path / "run", **SMALL)
    for explain, layout in ((True, None), (False, "sglang"), (True, "sglang")):
        text = report.render_report(run_directory.load(run), explain, layout)
        (run / run_directory.REPORT).write_text(text + "\n")
        assert proof.prove_run(run, "run").proven


@loop_over("environment", [ENVIRONMENT, {**ENVIRONMENT, "loadgen": "0.0.1"}])
def test_a_run_of_another_version_is_held_as_far_as_it_goes(
    environment: dict[str, str], tmp_path: Path
) -> None:
    run = stored(tmp_path / "run", environment=environment, **SMALL)
    assert proof.prove_run(run, "run").proven
    printed = run / run_directory.REPORT
    text = printed.read_text("utf-8")
    printed.write_text(text.replace("Mean TTFT (ms):", "TTFT, mean (ms):"))
    found = proof.prove_run(run, "run")
    assert not found.proven
    assert bool(found.differences) is (environment == ENVIRONMENT)
    printed.write_text(re.sub(r"(Mean TTFT \(ms\): +)\d+", r"\g<1>1", text))
    assert proof.prove_run(run, "run").differences


@loop_over(
    ("edit", "named"),
    [
        pytest.param({"input_len": 2048}, "input_len", id="longer prompts"),
        pytest.param({"prefix_len": 9}, "input_len", id="a shared prefix"),
        pytest.param({"output_len": 5}, "output_len", id="longer answers"),
        pytest.param({"range_ratio": "0.5", "output_len": 20}, "output_len", id="a range"),
        pytest.param({"compat": "sglang", "range_ratio": "0.9", "input_len": 72}, "", id="in range"),
    ],
)
def test_lengths_that_were_not_planned_are_named(edit: dict[str, Any], named: str, tmp_path: Path) -> None:
    run = stored(tmp_path / "run", **SMALL)
    with editing(run) as document:
        document["loadgen"]["profile"].update(edit)
    held = Proof()
    hold_lengths(run_directory.load(run), held)
    name = f"result.json: loadgen.profile.{named}"
    assert [each.name for each in held.differences] == [name] * bool(named)
    with editing(run) as document:
        document["loadgen"]["profile"]["slo"] = "x"
    with pytest.raises(UsageError, match=f"^{run} is damaged: --slo 'x'"):
        proof.prove_run(run, "run")


OF = "--allowed-signers"


@loop_over("words", ["missing", "empty", "damaged", f"run {OF} empty", f"x.bundle {OF} none", "--json"])
def test_bad_input_is_one_line(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    bundled(tmp_path, **SMALL)
    stored(tmp_path / "damaged", **SMALL)
    (tmp_path / "damaged/result.json").write_text('{"loadgen": 1}')
    assert cli.main(["verify", *words.split()]) == 2
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1)


def test_what_is_proven_is_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = bundled(tmp_path, "a", "b", **SMALL)
    assert cli.main(["verify", str(bundle), str(tmp_path / "a"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["proven"] is True
    assert [len(place["runs"]) for place in found["places"]] == [2, 1]
    raw = bundle.read_bytes()
    bundle.write_bytes(raw[:100] + b"?" + raw[101:])
    assert cli.main(["verify", str(bundle), "--json"]) == 11
    assert "SHA256SUMS" in json.loads(capsys.readouterr().out)["places"][0]["refused"]


@pytest.mark.whole
@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_a_signature_says_who_and_of_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("key", "other"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", name], check=True)
    mine, theirs = (Path(f"{name}.pub").read_text() for name in ("key", "other"))
    for number, name in enumerate(("x", "y")):
        stored(Path(name), seed=number, **SMALL)
        assert cli.main(["bundle", name, "-o", f"{name}.bundle", *["--sign", "key"] * (name == "x")]) == 0
    assert cli.main(["verify", "x.bundle"]) == 0
    assert "signed with SHA256:" in capsys.readouterr().out
    words = ["verify", "x.bundle", OF, "signers"]
    for lines, code, said in (
        (f"me@lab {mine}", 0, "signed by me@lab\n"),
        (f"you@lab {theirs}", 11, "REFUSED"),
        (f'old@lab namespaces="git" {mine}me@lab {mine}', 0, "signed by me@lab\n"),
        (f"me@lab {mine}you@lab {mine}", 0, "signed by me@lab or you@lab, who have one key"),
        (f"me@lab {mine}me@lab {mine}", 0, "signed by me@lab\n"),
        (f'old@lab valid-before="20200101" {mine}', 11, "REFUSED"),
    ):
        Path("signers").write_text(lines)
        assert cli.main(words) == code
        assert said in capsys.readouterr().out
    Path("signers").write_text(f"me@lab {mine}")
    assert cli.main(["verify", "y.bundle", OF, "signers"]) == 11  # it has none
    shutil.copyfile("x.bundle.sig", "y.bundle.sig")
    for flags in ([], [OF, "signers"]):
        assert cli.main(["verify", "y.bundle", *flags]) == 11
    assert cli.main(["bundle", "x", "-o", "x.bundle", "--sign", "nothing"]) == 2
    bundle, opened = Path("x.bundle"), reading.open_bundle
    signed, forgery = bundle.read_bytes(), Path("y.bundle").read_bytes()

    def swap(path: Path) -> reading.OpenBundle:
        path.write_bytes(forgery)
        found = opened(path)
        path.write_bytes(signed)
        return found

    monkeypatch.setattr(reading, "open_bundle", swap)
    capsys.readouterr()
    assert cli.main(words) == 11
    assert "was replaced while it was read" in capsys.readouterr().out


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
