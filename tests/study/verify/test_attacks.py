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
from builders.loops import loop_over, read_tables
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
TABLES = read_tables("attacks")
COMMANDS: dict[str, list[str]] = TABLES["commands"]
# Of records, what their command or its author states, and no run has.
STATED = {name: {*keys} for name, keys in TABLES["stated"].items()}
_SERIES: dict[str, Path] = {}  # made once a process, copied for each attack


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


def keep_rows(key: str, part: slice) -> Callable[[Path], None]:
    """Keep a part of a list of a series' record."""

    def attack(place: Path) -> None:
        (record,) = (place / f"{kind}.json" for kind in COMMANDS if (place / f"{kind}.json").exists())
        edit(record, ((key,), json.loads(record.read_bytes())[key][part]))

    return attack


def put(name: str, content: str) -> Callable[[Path], None]:
    """Add a file."""

    def write(place: Path) -> None:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(content)

    return write


PRESETS = [(("arms", n, "flags", "preset"), to) for n, to in enumerate((SLOW, FAST))]
FAILED = {"cell": {"campaign": "c", "checkpoint": "new", "server": "embedded", "profile": "tiny", "repeat": 2,
    "start": "r2"}, "reason": "it failed", "at": "2026-11-29T00:00:00"}  # fmt: skip
# Each attack, on what, and the exit code: 11 contradicts itself, 12 cannot be checked.
ATTACKS: dict[str, tuple[str, Callable[[Path], object], int]] = {
    "names of checkpoints": ("campaign", exchange_names, 11),
    "folders of checkpoints": ("campaign", exchange_folders, 11),
    "names and folders": ("campaign", exchange_both, 11),
    "repeats": ("campaign", exchange_repeats, 11),
    "one run under another's name": ("campaign", copy_cell, 11),
    "a run taken away": ("campaign", remove("cells/r1-base-embedded-tiny"), 12),
    "a run that was not planned": ("campaign", lambda place: (place / "cells/r0-base-embedded-tiny").rename(
        place / "cells/r9-base-embedded-tiny"), 11),
    "flags exchanged": ("campaign", lambda place: edit(place / "campaign.json", *PRESETS), 11),
    "arms alike": ("campaign", lambda place: edit(
        place / "campaign.json", *((("arms", n, "flags"), {}) for n in (0, 1))), 12),
    "without the record": ("campaign", lambda place: (place / "campaign.json").unlink(), 12),
    "a failure": ("campaign", put("failed/r2-new-embedded-tiny.json", json.dumps(FAILED)), 12),
    "a run of a pair taken away": ("gate", remove("cells/r1-base-embedded-tiny"), 12),
    "a point taken away": ("sweep", keep_rows("points", slice(1)), 11),
    "points in another order": ("sweep", keep_rows("points", slice(None, None, -1)), 11),
    "rows in another order": ("ladder", keep_rows("rows", slice(None, None, -1)), 11),
    "a row taken away": ("ladder", keep_rows("rows", slice(1)), 11),
    "another client's result": ("ladder", put("sub/x.json", json.dumps({"request_throughput": 1.0,
        "output_throughput": 1e5, "mean_ttft_ms": 1.0, "completed": 9, "duration": 3.0})), 12),
    "a run that only has its journal": ("ladder", put("sub/journal.bin", "x"), 12),
    "a search's run taken away": ("limit", keep_rows("runs", slice(1)), 11),
    **{name: (kind, set_value(file, *at, to=to), code) for name, kind, code, file, at, to in TABLES["edits"]},
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


def change_result(change: Callable[[Any], object]) -> Callable[[Path], None]:
    """Change the document of a run's result, written as the command writes it."""

    def attack(run: Path) -> None:
        document = json.loads((run / "result.json").read_bytes())
        change(document)
        (run / "result.json").write_text(json.dumps(document))

    return attack


def rewrite(change: Callable[[str], str], file: str = "result.json") -> Callable[[Path], None]:
    """Write a run's result, or another file, in other letters."""

    def attack(run: Path) -> None:
        raw = (run / file).read_text("utf-8")
        assert change(raw) != raw
        (run / file).write_text(change(raw))

    return attack


def lose_the_verdict(run: Path) -> None:
    """Name another version, which may have had no verdict."""

    def change(document: Any) -> None:
        document["loadgen"]["environment"]["loadgen"] = "0.1.0"
        for key in ("verdict", "objectives", "reconciliation"):
            del document["loadgen"][key]
        del document["p99_ttft_ms"]

    change_result(change)(run)
    lines = (run / "report.txt").read_text("utf-8").splitlines(keepends=True)
    kept = "".join(line for line in lines if not line.startswith(("P99 TTFT", "verdict")))
    (run / "report.txt").write_text(kept)


def change_an_hour(run: Path) -> None:
    """Change the hour of the first column in the zip's header."""
    raw = (run / "arrivals.npz").read_bytes()
    (run / "arrivals.npz").write_bytes(raw[:10] + b"\1" + raw[11:])


def link_to_another(run: Path) -> None:
    other = stored(run.parents[1] / "elsewhere", **SMALL)
    edit(other / "result.json", (("output_throughput",), 99999.0))
    (run.parent / "b").symlink_to(other)


def add_a_run_of_another_figure(run: Path) -> None:
    """In a folder of a name that a series leaves out."""
    other = stored(run.parent / "interrupted" / "b", **SMALL)
    edit(other / "result.json", (("output_throughput",), 99999.0))


AGAIN = re.compile(r'("mean_ttft_ms": [\d.]+)\d')
RUN_ATTACKS: dict[str, tuple[Callable[[Path], object], int, str]] = {
    "a figure more": (change_result(lambda it: it.update(output_throughput_per_gpu=1e6)), 11,
        "result.json: output_throughput_per_gpu"),
    "a figure less": (change_result(lambda it: it.pop("failed")), 11, "result.json: failed"),
    "a line more": (rewrite(lambda raw: raw + "10000 tok/s\n", "report.txt"), 11, "10000 tok/s"),
    "other definitions": (change_result(lambda it: it["loadgen"].update(definitions_version=99)), 12,
        "not checked"),
    "a figure's tenth digit": (change_result(lambda it: it.update(
        mean_ttft_ms=it["mean_ttft_ms"] * (1 + 1e-12))), 12, ""),
    "a figure's ninth digit": (change_result(lambda it: it.update(
        mean_ttft_ms=it["mean_ttft_ms"] * (1 + 1e-8))), 11, "mean_ttft_ms"),
    "arrivals of another run": (lambda run: shutil.copy(
        stored(run.parents[1] / "other", seed=2, **SMALL) / "arrivals.npz", run), 11, ""),
    "an hour of the arrivals": (change_an_hour, 12, ""),
    "no arrivals": (lambda run: (run / "arrivals.npz").unlink(), 12, "nothing proves its figures"),
    "damaged samples": (lambda run: (run / "samples.npz").write_bytes(b"none"), 12, "samples.npz"),
    "no report": (lambda run: (run / "report.txt").unlink(), 12, ""),
    "no verdict": (lose_the_verdict, 12, "loadgen.verdict is missing"),
    "a link": (link_to_another, 11, ""),
    "a run in a folder": (add_a_run_of_another_figure, 11, ""),
    **{f"bytes {number}": (rewrite(change), 11, "is in other bytes") for number, change in enumerate((
        lambda raw: raw.replace('"failed": 1', '"failed": 0, "failed": 1', 1),
        lambda raw: raw.replace('"loadgen": {', '"loadgen": {}, "loadgen": {', 1),
        lambda raw: raw.replace(", ", ",", 1),
        lambda raw: json.dumps(json.loads(raw), sort_keys=True),
        lambda raw: raw.replace('"date"', '"d\\u0061te"', 1),
        lambda raw: raw + "\n",
        lambda raw: AGAIN.sub(r"\g<1>1234567", raw, count=1),
    ))},
}  # fmt: skip


@loop_over(("attack", "code", "words"), RUN_ATTACKS.values())
def test_an_attack_on_a_run_is_never_proven(
    attack: Callable[[Path], object],
    code: int,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = stored(tmp_path / "it" / "a", **SMALL)
    attack(run)
    assert verify(tmp_path / "it") == code
    assert words in capsys.readouterr().out


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
def test_a_folder_that_a_series_leaves_out_is_in_no_bundle(folder: str, tmp_path: Path) -> None:
    run = stored(tmp_path / "it" / "run", **SMALL)
    contents = {f"x/{folder}/b/{path.name}": path.read_bytes() for path in sorted(run.iterdir())}
    stored(tmp_path / "it" / folder / "b", **SMALL)
    assert verify(tmp_path / "it") == 0  # outside a series it is read
    (tmp_path / "x.bundle").write_bytes(forged(contents))
    assert verify(tmp_path / "x.bundle") == 11


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
