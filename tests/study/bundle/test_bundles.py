"""Bundles: the same runs give the same bytes, and nothing that was changed, forged or swollen is read."""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from io import BytesIO
from pathlib import Path
from zipfile import ZIP_BZIP2, ZipFile

import pytest

from builders.loops import loop_over
from builders.made_bundles import bundled, forged, small_bundle, stored
from loadgen import cli
from loadgen.base.errors import UsageError
from loadgen.facts.run_facts import Fingerprint, GreedyAnswer
from loadgen.study.bundle import reading
from loadgen.study.bundle.reading import SUMS, ChangedBundle
from loadgen.study.importers import result_sources

BEGIN = 30 + len(SUMS)  # of the bytes of SHA256SUMS


def refusal(raw: bytes, directory: Path) -> UsageError:
    """Why the bytes are not read as a bundle; nothing of them is left."""
    path = directory / "x.bundle"
    path.write_bytes(raw)
    room = directory / "room"
    shutil.rmtree(room, ignore_errors=True)
    room.mkdir()
    with pytest.raises(UsageError) as refused:
        reading.unpack_bundle(path, room)
    assert str(refused.value).startswith(str(path))
    return refused.value


def flip(raw: bytes, at: int, bit: int) -> bytes:
    """The bytes with one bit changed."""
    return raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :]


def read(path: Path, directory: Path) -> dict[str, bytes]:
    """The parts of a bundle by their names."""
    room = directory / "room"
    shutil.rmtree(room, ignore_errors=True)
    room.mkdir()
    return {name: (room / name).read_bytes() for name in reading.unpack_bundle(path, room).names}


def test_a_bundle_holds_the_runs_files_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = bundled(tmp_path, "a", "b")
    parts = read(path, tmp_path)
    assert parts == {
        f"{run}/{name}": (tmp_path / run / name).read_bytes()
        for run in ("a", "b")
        for name in ("arrivals.npz", "report.txt", "result.json")
    }
    with ZipFile(path) as archive_of_others:
        assert archive_of_others.testzip() is None
        assert archive_of_others.namelist() == [SUMS, *parts]
        lines = archive_of_others.read(SUMS).decode().splitlines()
    assert lines == [f"{hashlib.sha256(raw).hexdigest()}  {name}" for name, raw in parts.items()]
    for name in ("a", "b"):
        os.utime(tmp_path / name / "result.json", (1, 1))
    for out, code in (("y.bundle", 0), ("none/y.bundle", 2)):  # the same runs give the same bytes
        words = ["bundle", *(str(tmp_path / name) for name in ("a", "b")), "-o", str(tmp_path / out)]
        assert cli.main(words) == code
    assert (tmp_path / "y.bundle").read_bytes() == path.read_bytes()
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"loadgen: cannot write {tmp_path}/none/y.bundle: ")
    (tmp_path / "a").rename(tmp_path / "b" / "b")  # two of one name have places of their own
    runs = [str(tmp_path / "b" / "b"), str(tmp_path / "b")]
    assert cli.main(["bundle", *runs, "-o", str(tmp_path / "z.bundle")]) == 0
    assert {name.partition("/")[0] for name in read(tmp_path / "z.bundle", tmp_path)} == {"b", "b-2"}


ANSWERED = Fingerprint(version=1, answers=(GreedyAnswer(prompt="first", text="the secret answer"),))


@loop_over("flags", [pytest.param([], id="without text"), pytest.param(["--with-text"], id="with text")])
def test_texts_and_logs_stay_at_home(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = stored(tmp_path / "run", fingerprint=ANSWERED)
    (run / "server.log").write_text("hf_secretsecretsecret")
    (run / "requests.jsonl").write_text("{}")
    (run / "notes.md").write_text("mine")
    assert cli.main(["bundle", str(run), "-o", str(tmp_path / "x.bundle"), *flags]) == 0
    printed = capsys.readouterr().out
    parts = read(tmp_path / "x.bundle", tmp_path)
    assert sorted(parts) == ["run/arrivals.npz", "run/report.txt", "run/result.json"]
    everything = b"".join(parts.values())
    assert (b"1 of 1 greedy prompts" in everything) is bool(flags)
    assert b"hf_secret" not in everything
    assert (b"the secret answer" in everything) is bool(flags)
    named = {line.split(": ")[1] for line in printed.splitlines() if line.startswith("left out")}
    text = set() if flags else {"loadgen.fingerprint"}
    assert named == {"server.log", "requests.jsonl", "other files"} | text
    assert cli.main(["verify", str(tmp_path / "x.bundle")]) == 0


def test_every_byte_counts_and_the_part_that_was_changed_is_named(tmp_path: Path) -> None:
    raw, draw, path = small_bundle(), random.Random(7), tmp_path / "x.bundle"
    path.write_bytes(raw)
    parts, refused = read(path, tmp_path), list[str]()
    size, entry = ZipFile(BytesIO(raw)).getinfo(SUMS).file_size, raw.index(b"PK\1\2")
    for at in range(BEGIN, BEGIN + size):
        refusal(flip(raw, at, at % 8), tmp_path)
    for _ in range(60):
        path.write_bytes(flip(raw, draw.randrange(len(raw)), draw.randrange(8)))
        try:
            assert read(path, tmp_path) == parts
        except UsageError as error:
            refused.append(str(error))
    assert len(refused) > 40
    assert all(any(word in why for word in ("changed", "no bundle", "cut off")) for why in refused)
    for name in ("run/arrivals.npz", "run/report.txt", "run/result.json"):
        why = refusal(
            flip(raw, raw.index(name.encode(), raw.index(b"PK\3\4", BEGIN)) + len(name) + 9, 2), tmp_path
        )
        assert name in str(why)
        assert isinstance(why, ChangedBundle)
    spaced = raw[:BEGIN] + b" " + raw[BEGIN:]  # a gap, bytes before or after, one bundle behind another
    for other in (raw[:entry] + b"\0" + raw[entry:], spaced, raw + raw, raw + b"x"):
        refusal(other, tmp_path)
    whole = bundled(tmp_path, "a", "b")
    (tmp_path / "y.bundle").write_bytes(flip(whole.read_bytes(), 100, 0))
    found = result_sources.read_sources([str(whole), str(tmp_path / "y.bundle")])
    assert (len(found.reported), len(found.errors)) == (2, 1)
    assert "SHA256SUMS" in found.errors[0]


def test_half_a_bundle_and_no_bundle_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = small_bundle()
    path = tmp_path / "x.bundle"
    for content in (raw[: len(raw) // 2], raw[:-1], raw[:50], b"", b"hello"):
        path.write_bytes(content)
        assert cli.main(["verify", str(path)]) == 2
        out, error = capsys.readouterr()
        assert (out, error.count("\n")) == ("", 1)
        assert cli.main(["compare", str(path)]) == 2
        assert capsys.readouterr().err.count("\n") == 1


A_FILE = "run/report.txt"
# Names of a part, or parts with what they hold.
NAMES = (
    "/run/report.txt", "../report.txt", "run/../../report.txt", "run\\..\\report.txt", "C:/report.txt",
    "run/report.txt\0", ".ssh/report.txt", "run/a\n/report.txt", "report.txt", "run/authorized_keys",
    "run/server.log", "run/result.json", "/".join("abcdefgh") + "/report.txt", f"{'a' * 201}/report.txt",
    "SHA256SUMS",
)  # fmt: skip
PARTS: dict[str, list[tuple[str, bytes]]] = {
    "two of one name": [(A_FILE, b"x"), (A_FILE, b"y")],
    "names that differ in case": [("RUN/report.txt", b"x"), (A_FILE, b"y")],
    "a folder that is a file": [("run/result.json", b"{}"), ("run/result.json/report.txt", b"x")],
    "another order": [("run/result.json", b"{}"), (A_FILE, b"x")],
    "many parts": [(f"r{number:05}/report.txt", b"") for number in range(20_001)],
    "a bomb": [(A_FILE, bytes(64 << 20))],
    **{name: [(name, b"x")] for name in NAMES},
}
SUMS_CHANGED: dict[str, Callable[[bytes], bytes]] = {
    "another digest": lambda sums: b"0" * 64 + sums[64:],
    "in capitals": lambda sums: sums[:64].upper() + sums[64:],
    "another name": lambda sums: sums.replace(b"report", b"result"),
    "one more": lambda sums: sums + sums.replace(b"run/", b"fun/"),
    "one twice": lambda sums: sums * 2,
    "none": lambda sums: b"",
    "no line end": lambda sums: sums[:-1],
    "another mark": lambda sums: sums.replace(b"  ", b" *"),
    "no text": lambda sums: sums + b"\xff",
    "a bomb": lambda sums: sums + bytes(17 << 20),
}
HOSTILE = {
    **{name: partial(forged, parts) for name, parts in PARTS.items()},
    **{name: partial(forged, {A_FILE: bytes(50)}, change) for name, change in SUMS_CHANGED.items()},
    "another way of packing": partial(forged, {A_FILE: bytes(50)}, compression=ZIP_BZIP2),
}


@loop_over("make", [pytest.param(make, id=name) for name, make in HOSTILE.items()])
def test_a_strangers_bundle_is_refused_unread(make: Callable[[], bytes], tmp_path: Path) -> None:
    why = str(refusal(make(), tmp_path))
    assert len(why.splitlines()) == 1
    left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert left <= {"x.bundle", "report.txt"}
    assert not (tmp_path.parent / "report.txt").exists()


def test_a_bomb_takes_no_memory(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    bomb = forged(PARTS["a bomb"])
    smaller = bomb.replace((64 << 20).to_bytes(4, "little"), (6 << 20).to_bytes(4, "little"))
    for raw in (bomb, smaller, forged({A_FILE: b"x"}, SUMS_CHANGED["a bomb"])):
        refusal(raw, tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


@loop_over(
    ("name", "content"),
    [("arrivals.npz", None), ("result.json", None), ("result.json", "{"), ("report.txt", Path("/etc/hosts"))],
)
def test_what_is_no_whole_run_is_not_bundled(
    name: str, content: str | Path | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = stored(tmp_path / "run") / name
    path.unlink()
    if isinstance(content, Path):
        path.symlink_to(content)
    elif content is not None:
        path.write_text(content)
    assert cli.main(["bundle", str(tmp_path / "run"), "-o", str(tmp_path / "x.bundle")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "x.bundle").exists()


def test_bundles_are_read_wherever_a_run_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = bundled(tmp_path, "a", "b", "c")
    found = result_sources.read_sources([str(bundle)])
    assert [run.source for run in found.reported] == [f"{bundle}:{name}" for name in "abc"]
    for words in (["compare"], ["audit"], ["report", "--html", str(tmp_path / "page.html")]):
        assert cli.main([*words, str(bundle)]) == 0
    assert str(bundle) in (tmp_path / "page.html").read_text("utf-8")
    capsys.readouterr()
    one = bundled(tmp_path / "one")
    assert cli.main(["report", str(one)]) == 0
    assert capsys.readouterr().out == (tmp_path / "one/run/report.txt").read_text("utf-8")


def test_what_was_unpacked_is_removed_as_a_command_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, place = bundled(tmp_path / "bundle"), tmp_path / "place"
    place.mkdir()

    def end(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setattr(sys, "argv", ["loadgen", "verify", str(bundle)])
    monkeypatch.setattr(os, "_exit", end)
    with pytest.raises(SystemExit, match="0"):
        cli.run()
    assert list(place.iterdir()) == []


def test_a_lie_in_a_bundle_is_not_repeated(tmp_path: Path) -> None:
    (honest,) = result_sources.read_sources([str(bundled(tmp_path, "a"))]).reported
    result = tmp_path / "a/result.json"
    lie = json.loads(result.read_bytes())
    lie["output_throughput"] *= 3
    lie["loadgen"]["metrics"]["ttft"]["mean_ms"] /= 3
    result.write_text(json.dumps(lie))
    assert cli.main(["bundle", str(tmp_path / "a"), "-o", str(tmp_path / "y.bundle")]) == 0
    (read_again,) = result_sources.read_sources([str(tmp_path / "y.bundle")]).reported
    assert read_again.figures == honest.figures
    assert cli.main(["verify", str(tmp_path / "y.bundle")]) == 11
