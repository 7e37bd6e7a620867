"""Series store: a directory of runs that are whole or not there, and by which options a series goes on."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import msgspec
from msgspec.structs import asdict

from loadgen.base import files
from loadgen.base.errors import UsageError
from loadgen.base.secrecy import command_line
from loadgen.report import run_directory, run_place
from loadgen.run.options import TABLE, Options, is_given
from loadgen.run.plan_facts import strip_resume


class StoreError(UsageError):
    """A directory of runs cannot be written: nothing more can be kept."""


class KeptDirectory:
    """A directory whose every change is one rename; `kind` is what runs in it, as a campaign."""

    def __init__(self, directory: Path, kind: str) -> None:
        self.directory, self.kind = directory, kind

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the directory for this process; raises UsageError if another holds it, or it links elsewhere.

        The lock is the process's own: neither a fork of it nor a server it started holds it on.
        """
        with self.writing():
            create_directory(self.directory)
            self._check_links()
            lock = self.directory / f"{self.kind}.lock"
            descriptor = files.open_unlinked(lock, os.O_RDWR | os.O_CREAT)
            file: IO[str] = os.fdopen(descriptor, "r+", encoding="utf-8")
        with file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.seek(0)
                who = file.read().strip() or "unknown"
                raise UsageError(
                    f"another loadgen {self.kind} is running in {self.directory} (pid {who}): wait for it, "
                    "or stop it"
                ) from None
            with self.writing():
                file.truncate(0)
                print(os.getpid(), file=file, flush=True)
            yield

    def _check_links(self) -> None:
        """Raises StoreError where a directory inside is a link: runs would be kept and removed elsewhere."""
        for parent, names, _ in os.walk(self.directory):
            for path in map(Path(parent).joinpath, names):
                if path.is_symlink():
                    own = f"a {self.kind}'s directory holds its runs itself; remove the link"
                    raise StoreError(f"{path} is a symbolic link: {own}")

    def replace(self, path: Path, value: object) -> None:
        """Make a file hold a value as JSON, whole or not at all; raises StoreError."""
        with self.writing():
            files.write_text(path, json.dumps(value, allow_nan=False, indent=1) + "\n")

    def move(self, source: Path, target: Path) -> None:
        """Give a directory its place once all of it is on the disk; raises OSError."""
        create_directory(target.parent)
        for path in (*source.rglob("*"), source):
            _sync(path)
        os.rename(source, target)
        _sync(target.parent)

    def set_aside(self, place: Path, kept: Path) -> None:
        """Keep what the runs of an interrupted series had measured under `kept`; the rest is removed."""
        marks = [path for name in (run_place.JOURNAL, run_directory.RESULT) for path in place.rglob(name)]
        for run in {mark.parent for mark in marks}:
            create_directory(kept)
            os.rename(run, next(free for free in run_place.numbered(kept / run.name) if not free.exists()))
        shutil.rmtree(place, ignore_errors=True)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """What fails to be written inside is a StoreError."""
        try:
            yield
        except OSError as error:
            raise StoreError(f"cannot write {self.directory}: {error.strerror or error}") from None


def create_directory(directory: Path) -> None:
    """Create a directory, private to this user: it holds prompts, answers and commands."""
    for path in (*reversed(directory.parents), directory):
        if not path.exists():
            path.mkdir(mode=0o700, exist_ok=True)


def _sync(path: Path) -> None:
    """Sync a file or a directory's entries to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# These change no figure. Of secrets there is no digest on a disk.
_FREE = {row.name for row in TABLE if row.resumes}


def refuse_flags(options: Options, series: str, own: Mapping[str, tuple[bool, str]]) -> None:
    """Raises UsageError for a flag that does not apply to `series`, with what to do instead.

    `own` has more of them: whether each was given, and the advice.
    """
    rows = [row for row in TABLE if row.series]
    advice = {**own, **{row.option: (is_given(options, row), row.series) for row in rows}}
    for flag, (given, what_to_do) in advice.items():
        if given:
            raise UsageError(f"{flag} does not apply to {series}: {what_to_do}")


def digest_options(options: Options, *more: object) -> str:
    """SHA-256 of the options that change a figure, and of more that JSON can hold."""
    kept = {name: value for name, value in asdict(options).items() if name not in _FREE}
    return hashlib.sha256(msgspec.json.encode([kept, *more], order="sorted", enc_hook=str)).hexdigest()


def show_resume_command(directory: Path) -> str:
    """This command with `--resume DIRECTORY` in place of its own, secrets hidden."""
    return shlex.join(["loadgen", *strip_resume(command_line())[1:], "--resume", str(directory)])
