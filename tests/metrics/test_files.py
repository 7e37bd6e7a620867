"""Files are whole or absent, and their owner's alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from loadgen.metrics.files import write_whole


def _new(file: BinaryIO) -> None:
    file.write(b"new")


def _full(file: BinaryIO) -> None:
    file.write(b"half")
    file.flush()
    raise OSError(28, "No space left on device")


def _stopped(file: BinaryIO) -> None:
    file.write(b"half")
    raise KeyboardInterrupt


@pytest.mark.parametrize("before", [None, b"", b"an older and longer one"])
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
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
