"""Attacks: what is edited, exchanged, renamed, added or taken away in a run or a series is never proven."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from builders.campaign_files import the_directory, written
from builders.loops import loop_over
from builders.made_bundles import forged, stored
from fakes.virtual_serving import virtual_engines
from loadgen import cli
from loadgen.report import run_directory
from loadgen.study.importers.result_sources import read_sources
from loadgen.study.verify.held_series import prove_series
from study.verify.test_verify import SMALL, changed, edited, is_fact, leaves

# Python 3.12 warns of any thread at a fork; the child takes none of their locks.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
FAST, SLOW = "h20/qwen3-8b-fp8", "h20/qwen3-8b-bf16"
ARMS = ({"name": "base", "preset": FAST}, {"name": "new", "preset": SLOW})
_SERIES: dict[str, Path] = {}  # made once a process, copied for each attack
DEPTH = ["ladder", "--quiet", "--preset", "bench/1024x50", "--depth", "0,256", "-p", "64", "-n", "4",
    "--num-prompts", "2"]  # fmt: skip
COMMANDS = {
    "campaign": ["campaign", "c.toml", "--quiet"],
    "gate": ["gate", "c.toml", "--max-pairs", "4", "--quiet"],
    "sweep": ["sweep", "--preset", "instant", "--concurrency", "1,2", "--input-len", "8", "--output-len", "4",
        "--num-prompts", "6", "--quiet"],
    "ladder": ["ladder", "--quiet", "--preset", "bench/1024x50", "--profile", "./l.toml"],
    "depth": DEPTH,
    "batches": [*DEPTH, "--concurrency", "2"],
    "limit": ["limit", "--input-len", "8", "--output-len", "4", "--quiet", "--slo", "ttft p50 < 5s",
        "--preset", "bench/1024x50", "--max-runs", "2", "--min-duration", "2s"],
}  # fmt: skip
# Of records, what their command or its author states, and no run has.
STATED = {
    "campaign.json": {
        "format", "loadgen", "description", "cool_down", "hardware", "fingerprint", "file", "created",
        "profiles", "quality", "limit", "flags", "name",
    },
    "gate.json": {"format", "name", "key", "higher_is_faster"},
    "sweep.json": {"format", "loadgen", "name", "command", "fixed", "axis", "serve"},
    "limit.json": {
        "format", "loadgen", "name", "command", "axis", "within", "budget_s", "most_runs", "least_run_s",
        "fixed", "start", "lowest", "highest", "alone_s", "attempts", "ended", "next_run_s", "cut", "took_s",
    },
    "ladder.json": {"formula"},
    "depth.json": set(),
}  # fmt: skip


@pytest.fixture
def series(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Path]:
    """A copy of what a command measured in virtual time."""

    def copy(kind: str) -> Path:
        if kind not in _SERIES:
            home = tmp_path_factory.mktemp(kind)
            written(home, *ARMS, repeats=3)
            ladder = "ladder = [1, 8]\noutput_len = 4\nnum_prompts = 2\nmax_concurrency = 1\n"
            (home / "l.toml").write_text(ladder)
            monkeypatch.chdir(home)
            with virtual_engines():
                cli.main(COMMANDS[kind])
            _SERIES[kind] = home / the_directory()
        monkeypatch.chdir(tmp_path)
        return Path(shutil.copytree(_SERIES[kind], tmp_path / kind))

    return copy


def verify(place: Path | str) -> int:
    """The exit code of `verify`; 2 of what cannot be read at all."""
    return cli.main(["verify", str(place)])


def edit(path: Path, *edits: tuple[tuple[str | int, ...], Any]) -> None:
    """Replace values of a JSON file, written as the command writes it."""
    raw = path.read_text("utf-8")
    document = json.loads(raw)
    for at, value in edits:
        document = edited(document, at, value)
    end = "\n" if raw.endswith("\n") else ""
    path.write_text(json.dumps(document, indent=1 if end else None) + end, "utf-8")


def exchange_names(place: Path) -> None:
    """Call the runs of each checkpoint by the other's name."""
    for path in place.glob("cells/*/result.json"):
        name = json.loads(path.read_bytes())["loadgen"]["cell"]["checkpoint"]
        edit(path, (("loadgen", "cell", "checkpoint"), {"base": "new", "new": "base"}[name]))


def exchange_folders(place: Path) -> None:
    """Exchange the folders of all cells of two checkpoints."""
    for path in sorted((place / "cells").glob("r*-base-*")):
        other, aside = path.with_name(path.name.replace("base", "new")), path.with_name("aside")
        path.rename(aside)
        other.rename(path)
        aside.rename(other)


def exchange_both(place: Path) -> None:
    """Exchange names and folders: the runs are still of their servers."""
    exchange_names(place)
    exchange_folders(place)


def exchange_repeats(place: Path) -> None:
    """Exchange two repeats of one arm, with what they state of it."""
    first, second = (place / "cells" / f"r{n}-base-embedded-tiny" for n in (0, 1))
    first.rename(place / "aside")
    second.rename(first)
    (place / "aside").rename(second)
    for n, path in ((0, first), (1, second)):
        told = {"repeat": n, "start": f"r{n}"}
        edit(path / "result.json", *((("loadgen", "cell", key), value) for key, value in told.items()))


def copy_cell(place: Path) -> None:
    """Put the run of one arm in the place of another's, under that one's name."""
    target = place / "cells" / "r0-base-embedded-tiny"
    cell = json.loads((target / "result.json").read_bytes())["loadgen"]["cell"]
    shutil.rmtree(target)
    shutil.copytree(place / "cells" / "r0-new-embedded-tiny", target)
    edit(target / "result.json", (("loadgen", "cell"), cell))


def remove(name: str) -> Callable[[Path], None]:
    """Remove a folder."""
    return lambda place: shutil.rmtree(place / name)


def set_value(file: str, *at: str | int, to: Any) -> Callable[[Path], None]:
    """Replace one value of a file."""
    return lambda place: edit(place / file, (at, to))


def put(name: str, content: str) -> Callable[[Path], None]:
    """Add a file."""

    def write(place: Path) -> None:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(content)

    return write


TAKEN: dict[str, Any] = {"fits": None, "slo": None, "max_kl": 9.0, "price_per_hour": None, "lm_eval": {}}
PRESETS = [(("arms", n, "flags", "preset"), to) for n, to in enumerate((SLOW, FAST))]
FAILED = {"cell": {"campaign": "c", "checkpoint": "new", "server": "embedded", "profile": "tiny", "repeat": 2,
    "start": "r2"}, "reason": "it failed", "at": "2026-11-29T00:00:00"}  # fmt: skip
# Each attack, on what, and the exit code: 11 contradicts itself, 12 cannot be checked.
STATED_BASE = ["new on embedded", "base on embedded"]
SECOND = "points/001-concurrency-2"
ATTACKS: dict[str, tuple[str, Callable[[Path], object], int]] = {
    "names of checkpoints": ("campaign", exchange_names, 11),
    "folders of checkpoints": ("campaign", exchange_folders, 11),
    "names and folders": ("campaign", exchange_both, 11),
    "repeats": ("campaign", exchange_repeats, 11),
    "one run under another's name": ("campaign", copy_cell, 11),
    "a run taken away": ("campaign", remove("cells/r1-base-embedded-tiny"), 12),
    "a run that was not planned": ("campaign", lambda place: (place / "cells/r0-base-embedded-tiny").rename(
        place / "cells/r9-base-embedded-tiny"), 11),
    "another base": ("campaign", set_value("campaign.json", "baseline", to="new"), 12),
    "a margin": ("campaign", set_value("campaign.json", "margin", to=0.5), 12),
    "what is taken": ("campaign", set_value("campaign.json", "answer", to=TAKEN), 12),
    "fewer repeats": ("campaign", set_value("campaign.json", "repeats", to=2), 11),
    "another seed": ("campaign", set_value("campaign.json", "seed", to=1), 11),
    "flags of another arm": ("campaign", set_value("campaign.json", *PRESETS[0][0], to=SLOW), 12),
    "flags exchanged": ("campaign", lambda place: edit(place / "campaign.json", *PRESETS), 11),
    "arms alike": ("campaign", lambda place: edit(
        place / "campaign.json", *((("arms", n, "flags"), {}) for n in (0, 1))), 12),
    "attempts": ("campaign", set_value("attempts.json", "r9-no-cell", to=1), 11),
    "without the record": ("campaign", lambda place: (place / "campaign.json").unlink(), 12),
    "a failure": ("campaign", put("failed/r2-new-embedded-tiny.json", json.dumps(FAILED)), 12),
    "a margin of the gate": ("gate", set_value("gate.json", "metrics", 0, "margin", to=0.9), 12),
    "alpha of the gate": ("gate", set_value("gate.json", "alpha", to=0.4), 12),
    "the base of the gate": ("gate", set_value("gate.json", "arms", to=STATED_BASE), 12),
    "the pairs of the gate": ("gate", set_value("gate.json", "max_pairs", to=9), 11),
    "an arm of the gate": ("gate", set_value("gate.json", "arms", 1, to="else"), 11),
    "a run of a pair taken away": ("gate", remove("cells/r1-base-embedded-tiny"), 12),
    "a point taken away": ("sweep", lambda place: edit(place / "sweep.json", (("points",), json.loads(
        (place / "sweep.json").read_bytes())["points"][:1])), 11),
    "a point of another load": (
        "sweep", set_value("sweep.json", "points", 1, "settings", "max_concurrency", to=64), 11),
    "points in another order": ("sweep", lambda place: edit(place / "sweep.json", (("points",), json.loads(
        (place / "sweep.json").read_bytes())["points"][::-1])), 11),
    "a point of another number": ("sweep", set_value("sweep.json", "points", 0, "number", to=7), 11),
    "a point of another repeat": ("sweep", set_value("sweep.json", "points", 1, "repeat", to=3), 11),
    **{f"a batch's {key}: {to}": ("batches", set_value("depth.json", "rows", 0, key, to=to), 11)
       for key, to in (("runs", []), ("runs", ["../x"]), ("batches", []), ("depth", 9), ("note", "cached"))},
    "a test at another depth": ("depth", set_value("depth.json", "rows", 0, "test", to="pp64 @ d512"), 11),
    "rows in another order": ("ladder", lambda place: edit(place / "ladder.json", (("rows",), json.loads(
        (place / "ladder.json").read_bytes())["rows"][::-1])), 11),
    "a row taken away": ("ladder", lambda place: edit(place / "ladder.json", (("rows",), json.loads(
        (place / "ladder.json").read_bytes())["rows"][:1])), 11),
    "a figure of another client": ("ladder", set_value("ladder.json", "rows", 0, "speed_tok_s", to=1e6), 11),
    "another client's result": ("ladder", put("sub/x.json", json.dumps({"request_throughput": 1.0,
        "output_throughput": 1e5, "mean_ttft_ms": 1.0, "completed": 9, "duration": 3.0})), 12),
    "a run that only has its journal": ("ladder", put("sub/journal.bin", "x"), 12),
    "a looser objective": ("limit", set_value("limit.json", "objectives", 0, to="ttft p50 < 9000 ms"), 11),
    "a search's run taken away": ("limit", lambda place: edit(place / "limit.json", (("runs",), json.loads(
        (place / "limit.json").read_bytes())["runs"][:1])), 11),
}  # fmt: skip


@pytest.mark.parametrize("kind", COMMANDS)
def test_as_it_was_written_a_series_is_proven(kind: str, series: Callable[[str], Path]) -> None:
    place = series(kind)
    assert verify(place) == 0
    assert cli.main(["bundle", str(place), "-o", "x.bundle"]) == 0
    assert verify("x.bundle") == 0


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_never_proven(
    name: str, series: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    kind, attack, code = ATTACKS[name]
    place = series(kind)
    attack(place)
    assert verify(place) == code
    assert ("CHANGED" if code == 11 else "UNPROVEN") in capsys.readouterr().out
    cli.main(["bundle", str(place), "-o", "x.bundle"])
    left_out = {"another client's result", "a run that only has its journal"}
    if Path("x.bundle").is_file() and name not in left_out:
        assert ("verify will say: " in capsys.readouterr().err, verify("x.bundle")) == (True, code)


def test_the_verdict_cannot_be_lost_by_naming_another_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = stored(tmp_path / "run", **SMALL)
    result, printed = run / "result.json", run / "report.txt"
    document = json.loads(result.read_bytes())
    document["loadgen"]["environment"]["loadgen"] = "0.1.0"
    for key in ("verdict", "objectives", "reconciliation"):
        del document["loadgen"][key]
    del document["p99_ttft_ms"]
    result.write_text(json.dumps(document))
    lines = printed.read_text("utf-8").splitlines(keepends=True)
    printed.write_text("".join(line for line in lines if not line.startswith(("P99 TTFT", "verdict"))))
    assert verify(run) == 12
    assert "loadgen.verdict is missing" in capsys.readouterr().out


@loop_over(
    "rewrite",
    [
        lambda raw: raw.replace('"failed": 1', '"failed": 0, "failed": 1', 1),
        lambda raw: raw.replace('"loadgen": {', '"loadgen": {}, "loadgen": {', 1),
        lambda raw: raw.replace(", ", ",", 1),
        lambda raw: json.dumps(json.loads(raw), sort_keys=True),
        lambda raw: raw.replace('"date"', '"d\\u0061te"', 1),
        lambda raw: raw + "\n",
        lambda raw: re.sub(r'("mean_ttft_ms": [\d.]+)\d', lambda m: m[1] + "1234567", raw, count=1),
    ],
)
def test_bytes_that_are_not_written_so_are_no_proof(rewrite: Callable[[str], str], tmp_path: Path) -> None:
    run = stored(tmp_path / "run", **SMALL)
    raw = (run / "result.json").read_text("utf-8")
    assert rewrite(raw) != raw
    (run / "result.json").write_text(rewrite(raw))
    assert verify(run) in (11, 12)


def test_a_run_without_its_report_or_with_more_arrivals_is_unproven(tmp_path: Path) -> None:
    run = stored(tmp_path / "run", **SMALL)
    report = (run / "report.txt").read_bytes()
    (run / "report.txt").unlink()
    assert verify(run) == 12
    (run / "report.txt").write_bytes(report)
    with (run / "arrivals.npz").open("r+b") as file:
        file.seek(10)  # the hour of the first column in the zip's header
        file.write(b"\1")
    assert verify(run) == 12


def test_a_ladder_whose_first_rung_was_measured_last_is_proven(
    series: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = series("ladder")
    monkeypatch.chdir(_SERIES["ladder"].parents[1])
    (first, second) = sorted(place.glob("00?-*"))
    shutil.rmtree(first)
    with virtual_engines():
        assert cli.main([*COMMANDS["ladder"], "--resume", str(place)]) == 0
    runs = [run_directory.load(path).facts.started for path in (first, second)]
    assert runs[0] > runs[1]
    assert verify(place) == 0


def test_a_speed_that_a_strangers_ladder_states_is_not_repeated(series: Callable[[str], Path]) -> None:
    place, speeds = series("ladder"), list[float | None]()
    for times in (1.0, 3.0):
        rows = json.loads((place / "ladder.json").read_bytes())["rows"]
        edit(place / "ladder.json", (("rows", 0, "speed_tok_s"), times * rows[0]["speed_tok_s"]))
        assert cli.main(["bundle", str(place), "-o", f"{times}.bundle"]) == 0
        speeds.append(read_sources([f"{times}.bundle"]).reported[0].figure("speed_tok_s"))
    assert speeds[0] == speeds[1] is not None


@loop_over("name", ["", "../elsewhere", "/etc", "none"])
def test_a_row_without_a_run_has_no_speed(name: str, tmp_path: Path) -> None:
    (tmp_path / "ladder.json").write_text(json.dumps({"rows": [{"run": name, "speed_tok_s": 900.0}]}))
    (found,) = prove_series(tmp_path, "it")
    assert "no run of it is there" in str(found.differences[0])


@loop_over("folder", ["interrupted", "Interrupted"])
def test_a_bundle_has_no_folder_that_is_left_out(folder: str, tmp_path: Path) -> None:
    run = stored(tmp_path / "run", **SMALL)
    contents = {f"x/{folder}/b/{path.name}": path.read_bytes() for path in sorted(run.iterdir())}
    (tmp_path / "x.bundle").write_bytes(forged(contents))
    assert verify(tmp_path / "x.bundle") == 11


def test_a_folder_of_that_name_outside_a_series_is_read_and_verified(tmp_path: Path) -> None:
    stored(tmp_path / "it" / "a", **SMALL)
    other = stored(tmp_path / "it" / "interrupted" / "b", **SMALL)
    assert verify(tmp_path / "it") == 0
    edit(other / "result.json", (("output_throughput",), 99999.0))
    assert verify(tmp_path / "it") == 11


def test_a_link_to_runs_is_followed(tmp_path: Path) -> None:
    stored(tmp_path / "it" / "a", **SMALL)
    other = stored(tmp_path / "elsewhere" / "b", **SMALL)
    edit(other / "result.json", (("output_throughput",), 99999.0))
    (tmp_path / "it" / "b").symlink_to(other)
    assert verify(tmp_path / "it") == 11


Mutation = tuple[str, Callable[[], object]]


def mutations(place: Path, draws: random.Random) -> Iterator[Mutation]:
    """Mutations of every file that verify reads: of each value that follows, of bytes, lines, keys, names."""
    for path in sorted(each for each in place.rglob("*") if each.is_file()):
        name, raw = path.name, path.read_bytes()
        if name == "report.txt":
            yield from mutate_lines(path, raw, draws)
        elif name == "result.json" or name in STATED:  # attempts of a server that is started are stated
            yield from mutate_document(path, raw.decode(), draws)
        if name in ("report.txt", "arrivals.npz", "samples.npz"):
            for at in draws.sample(range(len(raw)), 20):
                yield f"{path}: byte {at}", partial(path.write_bytes, flip(raw, at))
        if name in ("report.txt", "arrivals.npz", "result.json"):
            yield f"{path}: renamed", partial(path.rename, path.with_name(f"x-{name}"))


def mutate_lines(path: Path, raw: bytes, draws: random.Random) -> Iterator[Mutation]:
    """Each line left out, and some exchanged with the one before."""
    lines = raw.decode().split("\n")
    for at in range(1, len(lines) - 1):
        yield f"{path}: no line {at}", partial(path.write_text, "\n".join(lines[:at] + lines[at + 1 :]))
        if lines[at] != lines[at - 1]:
            swapped = [*lines[: at - 1], lines[at], lines[at - 1], *lines[at + 1 :]]
            yield f"{path}: line {at} first", partial(path.write_text, "\n".join(swapped))


def mutate_document(path: Path, text: str, draws: random.Random) -> Iterator[Mutation]:
    """Values that follow from runs edited, keys that stand twice, and spaces."""
    document = json.loads(text)
    stated = STATED.get(path.name, set())
    every = [
        (at, value)
        for at, value in leaves(document)
        if not (is_fact(at) if path.name == "result.json" else set(at) & stated)
    ]
    for at, value in draws.sample(every, min(60, len(every))):
        yield f"{path}: {at}", partial(edit, path, (at, changed(value)))
    keys = list(re.finditer(r'"(\w+)": (?=[\d"n])', text))
    for found in draws.sample(keys, min(5, len(keys))):
        twice = f'{text[: found.end()]}0, "{found[1]}": {text[found.end() :]}'
        yield f"{path}: {found[1]} twice", partial(path.write_text, twice)
    for found in draws.sample(list(re.finditer(r": ", text)), 3):
        spaced = f"{text[: found.end()]} {text[found.end() :]}"
        yield f"{path}: a space at {found.end()}", partial(path.write_text, spaced)


MUTATIONS = 60  # of each kind


def flip(raw: bytes, at: int) -> bytes:
    """The bytes with another letter, digit or bit at a place."""
    other = raw[at] ^ 1
    return raw[:at] + bytes([other if other not in b"\n\r" else raw[at] ^ 2]) + raw[at + 1 :]


@pytest.mark.long
@pytest.mark.parametrize("kind", COMMANDS)
def test_no_mutation_is_proven(
    kind: str, series: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = series(kind)
    missed, tried = [], 0
    draws = random.Random(kind)
    every = list(mutations(place, draws))
    for name, act in draws.sample(every, min(len(every), MUTATIONS)):
        kept = tmp_path / "kept"
        shutil.copytree(place, kept)
        act()
        tried += 1
        missed += [name] if verify(place) == 0 else []
        shutil.rmtree(place)
        kept.rename(place)
        capsys.readouterr()
    assert tried > 50
    assert missed == []
