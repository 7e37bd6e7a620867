"""Files are whole or absent, and their owner's alone."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from builders.loops import loop_over
from loadgen.base.files import ANYONES, open_refusing_link, write_output, write_text, write_whole


def _new(file: BinaryIO) -> None:
    file.write(b"new")


def _full(file: BinaryIO) -> None:
    file.write(b"half")
    file.flush()
    raise OSError(28, "No space left on device")


def _stopped(file: BinaryIO) -> None:
    file.write(b"half")
    raise KeyboardInterrupt


@loop_over("before", [None, b"", b"an older and longer one"])
@loop_over("umask", [0o000, 0o022, 0o077])
def test_a_file_is_whole_and_its_owners_alone(before: bytes | None, umask: int, tmp_path: Path) -> None:
    path = tmp_path / "result"
    if before is not None:
        path.write_bytes(before)
        path.chmod(0o644)
    old = os.umask(umask)
    try:
        write_whole(path, _new)
    finally:
        os.umask(old)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("before", [None, b"as it was"])
@pytest.mark.parametrize(("write", "error"), [(_full, OSError), (_stopped, KeyboardInterrupt)])
def test_what_stops_it_leaves_the_name_as_it_was(
    before: bytes | None, write: Callable[[BinaryIO], None], error: type[BaseException], tmp_path: Path
) -> None:
    path = tmp_path / "result"
    if before is not None:
        path.write_bytes(before)
    with pytest.raises(error):
        write_whole(path, write)
    assert [one.read_bytes() for one in tmp_path.iterdir()] == ([before] if before is not None else [])


def test_the_bytes_are_on_the_disk_before_they_have_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, done = tmp_path / "result", []
    sync = os.fsync

    def noted(handle: int) -> None:
        done.append((stat.S_ISDIR(os.fstat(handle).st_mode), path.exists()))
        sync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    write_whole(path, _new)
    assert done == [(False, False), (True, True)]


@pytest.mark.parametrize("name", ["absent/result", "é" * 127])
def test_a_place_that_is_not_there_is_an_oserror_and_a_long_name_is_none(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if path.parent.exists():
        write_whole(path, _new)
        assert path.read_bytes() == b"new"
    else:
        with pytest.raises(FileNotFoundError):
            write_whole(path, _new)
    assert [one.name for one in tmp_path.iterdir()] == ([name] if path.exists() else [])


def _linked(directory: Path, target: str) -> tuple[Path, Path]:
    """A file of the user's, and a link of a stranger's to it."""
    victim = directory / "victim"
    if target == "file":
        victim.write_bytes(b"own")
    link = directory / "there" / "report.html"
    link.parent.mkdir()
    link.symlink_to(victim)
    return victim, link


@pytest.mark.parametrize("target", ["file", "nothing"])
@pytest.mark.parametrize("append", [False, True])
def test_an_output_that_is_a_link_is_refused(target: str, append: bool, tmp_path: Path) -> None:
    victim, link = _linked(tmp_path, target)
    with pytest.raises(OSError, match="it is a symbolic link, which is not written through") as error:
        write_output(link, _new, append)
    assert error.value.errno == errno.ELOOP
    assert victim.exists() is (target == "file")
    assert not victim.exists() or victim.read_bytes() == b"own"
    assert [path.name for path in link.parent.iterdir()] == ["report.html"]


@pytest.mark.parametrize("target", ["file", "nothing"])
@pytest.mark.parametrize(
    "write", [lambda path: write_whole(path, _new), lambda path: write_text(path, "new")]
)
def test_a_runs_file_takes_the_place_of_a_link(
    target: str, write: Callable[[Path], None], tmp_path: Path
) -> None:
    victim, link = _linked(tmp_path, target)
    write(link)
    assert (link.is_symlink(), link.read_bytes()) == (False, b"new")
    assert victim.exists() is (target == "file")
    assert not victim.exists() or victim.read_bytes() == b"own"


@pytest.mark.parametrize("flags", [os.O_RDWR | os.O_CREAT, os.O_WRONLY | os.O_APPEND, os.O_WRONLY])
def test_a_file_that_is_written_in_place_is_no_link(flags: int, tmp_path: Path) -> None:
    victim, link = _linked(tmp_path, "file")
    with pytest.raises(OSError, match="symbolic link"):
        open_refusing_link(link, flags)
    assert victim.read_bytes() == b"own"


@pytest.mark.parametrize(("before", "mode"), [(None, 0o644), (0o640, 0o640), (0o604, 0o604)])
def test_an_output_has_the_usual_mode_or_keeps_its_own(before: int | None, mode: int, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    if before is not None:
        path.write_bytes(b"older")
        path.chmod(before)
    old = os.umask(0o022)
    try:
        write_output(path, _new, mode=ANYONES)
    finally:
        os.umask(old)
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", mode)


def test_what_is_appended_stands_on_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    for _ in range(3):
        write_output(path, _new, append=True)
    assert path.read_bytes() == b"new\nnew\nnew"


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    write_output(fifo, _new)
    write_output(fifo, _new, append=True)
    assert (os.read(reader, 99), stat.S_ISFIFO(fifo.stat().st_mode)) == (b"newnew", True)
    os.close(reader)


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_standard_output_is_written_to_by_its_names(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    print("before", end=" ")
    write_output(Path(name), _new)
    assert capfd.readouterr().out == "before new"


@pytest.mark.whole
def test_standard_output_in_a_file_is_neither_replaced_nor_cut(tmp_path: Path) -> None:
    path = tmp_path / "log"
    code = "import sys; from pathlib import Path; from loadgen.base.files import write_output\n"
    code += "print('a'); write_output(Path('/dev/stdout'), lambda file: file.write(b'b\\n')); print('c')"
    with path.open("wb") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
    assert path.read_text() == "a\nb\nc\n"
