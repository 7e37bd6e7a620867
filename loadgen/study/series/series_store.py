"""Series store: a directory of runs that are whole or not there, and by which options a series goes on."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shlex
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from loadgen.base import files
from loadgen.base.errors import ExitCode, UsageError
from loadgen.base.json_lines import OpenedFile
from loadgen.base.printing import print_text
from loadgen.base.secrecy import hide_argument_secrets
from loadgen.base.structs import replace
from loadgen.base.text import clean_text
from loadgen.base.untrusted import read_file_bytes
from loadgen.facts.run_facts import Cell
from loadgen.plan import profile
from loadgen.plan.profile import Profile
from loadgen.plan.request_sources import find_source
from loadgen.records.journal import JOURNAL
from loadgen.report import run_directory
from loadgen.report.result_file import OURS
from loadgen.run.command.options import Options, is_given
from loadgen.settings.data_settings import SOURCES
from loadgen.settings.keyword_types import WorkloadOptions
from loadgen.settings.table import TABLE
from loadgen.study.limit_record import LIMIT
from loadgen.study.series_record import LARGEST_BYTES, SeriesRecord

FAILED, SERVERS, UNFINISHED, INTERRUPTED = "failed", "servers", "unfinished", "interrupted"
ATTEMPTS = "attempts.json"
_SEARCH = "limit"  # below a step's place: the directory of its search
DAMAGE = OSError, ValueError, KeyError, TypeError, RecursionError  # of reading what is not as it was written


class StoreError(UsageError):
    """A directory of runs cannot be written: nothing more can be kept, and the series is cut short."""

    exit_code = ExitCode.NOTHING


class SeriesStore:
    """The directory of a series of runs, whose every change is one rename; `kind` is the series, as a sweep.

    <kind>.json             the record: what is run
    attempts.json           how often each step was begun, by its id
    <whole>/<id>/           a finished step: a run directory, of a ladder or a search one with several
    failed/<id>.json        a failed one: {"reason", "at"}, of a campaign its "cell" too
    failed/<id>/            its run, if there was one
    servers/                logs of the servers that were started
    unfinished/<id>/        under way
    interrupted/<id>/       runs that were cut off, with what they had measured: loadgen report reads each
    interrupted/<id>/limit/ a search, which goes on when the series is resumed
    """

    def __init__(self, directory: Path, kind: str, whole: str = "runs") -> None:
        self.directory, self.kind, self.whole = directory, kind, whole

    def list_finished(self) -> set[str]:
        """List the ids of the finished steps."""
        return list_names(self.directory / self.whole)

    def list_failed(self) -> set[str]:
        """List the ids of the steps with a record in `failed`."""
        return list_names(self.directory / FAILED, ".json")

    def read_facts(self, step: str) -> Iterator[dict[str, Any]]:
        """Yield the `loadgen` part of each result of a finished step: one run, of a ladder or search several.

        Results that are missing or damaged are skipped.
        """
        place = self.directory / self.whole / step
        below = [
            path for depth in ("*", "*/*") for path in sorted(place.glob(f"{depth}/{run_directory.RESULT}"))
        ]
        for path in [place / run_directory.RESULT, *below]:
            with contextlib.suppress(*DAMAGE):
                yield dict(read_json(path)[OURS])

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Create the directory if missing, and lock it for this process, whose id the lock's file contains.

        What is unfinished, of an earlier process and of this one, is removed as by `drop_unfinished`.
        Raises UsageError if another process has the lock, or a directory inside is a link, and StoreError.
        Forks of the process and servers that it started do not keep the lock.
        """
        with self.writing():
            create_directory(self.directory)
            for parent, names, _ in os.walk(self.directory):
                if links := [path for path in map(Path(parent).joinpath, names) if path.is_symlink()]:
                    own = f"a {self.kind}'s directory holds its runs itself; remove the link"
                    raise UsageError(f"{links[0]} is a symbolic link: {own}")
            lock = self.directory / f"{self.kind}.lock"
            descriptor = files.open_refusing_link(lock, os.O_RDWR | os.O_CREAT)
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
                os.ftruncate(descriptor, 0)
                os.pwrite(
                    descriptor, f"{os.getpid()}\n".encode(), 0
                )  # a buffer would be written at its end, too
            self.drop_unfinished()
            try:
                yield
            finally:
                with contextlib.suppress(StoreError):  # the next process finds it
                    self.drop_unfinished()

    def replace(self, path: Path, value: object) -> None:
        """Replace a file's content by a value as JSON, whole or not at all; raises StoreError."""
        with self.writing():
            files.write_text(path, json.dumps(value, allow_nan=False, indent=1) + "\n")

    def move(self, source: Path, target: Path) -> None:
        """Sync all of a directory to the disk, and rename it to `target`, making parents; raises OSError."""
        create_directory(target.parent)
        for path in (*source.rglob("*"), source):
            _sync(path)
        os.rename(source, target)
        _sync(target.parent)

    def write_record(self, record: SeriesRecord) -> None:
        """Write the record, in place of the earlier one; raises StoreError."""
        self.replace(self.directory / record.file_name, record.model_dump(mode="json"))

    def begin(self, step: str) -> Path:
        """Return a step's directory below `unfinished`, created if missing; raises StoreError."""
        with self.writing():
            place = self.directory / UNFINISHED / step
            create_directory(place)
        return place

    def finish(self, step: str, run: Path) -> Path:
        """Move the run of a finished step to its place below `whole`, and return that; raises StoreError.

        It replaces an earlier one, and what is kept of the step as failed and unfinished is removed.
        """
        with self.writing():
            place = self.directory / self.whole / step
            self.forget_failure(step)  # first: what has failed and is finished would be read as both
            shutil.rmtree(place, ignore_errors=True)
            self.move(run, place)
            shutil.rmtree(self.directory / UNFINISHED / step, ignore_errors=True)
        return place

    def fail(
        self, step: str, reason: str, at: datetime, run: Path | None = None, cell: Cell | None = None
    ) -> None:
        """Write why and when a step failed, and move its run, if any, next to it; raises StoreError.

        An earlier result of the step, finished or failed, is removed, and other runs of it that had measured
        something are moved to `interrupted`.
        """
        failure = {} if cell is None else {"cell": cell.model_dump(mode="json")}
        with self.writing():
            place = self.directory / FAILED / step
            for earlier in (self.whole, FAILED):
                shutil.rmtree(self.directory / earlier / step, ignore_errors=True)
            if run is not None:
                self.move(run, place)
            self.set_aside(UNFINISHED, step)
            create_directory(place.parent)
            self.replace(place.with_name(f"{step}.json"), {**failure, "reason": reason, "at": at.isoformat()})

    def forget_failure(self, step: str) -> None:
        """Remove a failed step's record and run, since the step is finished now; raises OSError."""
        (self.directory / FAILED / f"{step}.json").unlink(missing_ok=True)
        shutil.rmtree(self.directory / FAILED / step, ignore_errors=True)

    def count_attempt(self, step: str) -> int:
        """Return how often a step was begun before, and write one more to `attempts.json`.

        A damaged file counts as empty. Raises StoreError.
        """
        path = self.directory / ATTEMPTS
        counts: dict[str, int] = {}
        with contextlib.suppress(OSError, ValueError, TypeError):
            counts = {str(name): int(count) for name, count in read_json(path).items()}
        before = counts.get(step, 0)
        self.replace(path, {**counts, step: before + 1})
        return before

    def begin_search(self, step: str) -> Path:
        """Create the directory of a step's search and return it; raises StoreError.

        If an interrupted search of the step was kept, its directory is moved there, else it is empty.
        """
        place = self.begin(step) / _SEARCH
        with self.writing():
            try:
                os.rename(self.directory / INTERRUPTED / step / _SEARCH, place)
            except FileNotFoundError:
                place.mkdir(mode=0o700)
        return place

    def set_aside(self, folder: str, name: str) -> None:
        """Move a step's runs with a journal or a result to `interrupted`, numbered if their name is taken.

        A search is moved whole, to be resumed, in place of an earlier one. The rest of the step in `folder`
        is removed; raises OSError.
        """
        place, kept = self.directory / folder / name, self.directory / INTERRUPTED / name
        if (place / _SEARCH / LIMIT).is_file():
            shutil.rmtree(kept / _SEARCH, ignore_errors=True)
            self.move(place / _SEARCH, kept / _SEARCH)
        marks = [path for name in (JOURNAL, run_directory.RESULT) for path in place.rglob(name)]
        for run in {mark.parent for mark in marks}:
            create_directory(kept)
            os.rename(run, next(free for free in files.number_paths(kept / run.name) if not free.exists()))
        shutil.rmtree(place, ignore_errors=True)

    def remove_empty(self) -> bool:
        """Remove the directory if no step of it was finished, failed or cut off; return whether it did."""
        runs = (self.directory / name for name in (self.whole, FAILED, INTERRUPTED, UNFINISHED))
        empty = not any(place.exists() for place in runs)
        if empty:
            shutil.rmtree(self.directory, ignore_errors=True)
        return empty

    def drop_unfinished(self) -> None:
        """Remove `unfinished`; its runs with a journal or a result go to `interrupted`. Raises StoreError."""
        with self.writing():
            for name in sorted(list_names(self.directory / UNFINISHED)):
                self.set_aside(UNFINISHED, name)
            shutil.rmtree(self.directory / UNFINISHED, ignore_errors=True)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Turn an OSError raised inside into a StoreError that names the directory."""
        try:
            yield
        except OSError as error:
            raise StoreError(f"cannot write {self.directory}: {error.strerror or error}") from None


def read_json(path: Path) -> Any:
    """Read the JSON of a file of a series; raises one of DAMAGE."""
    return json.loads(read_file_bytes(path, LARGEST_BYTES))


def list_names(directory: Path, suffix: str = "") -> set[str]:
    """List the names in a directory that end with `suffix`, without it; empty if it cannot be read."""
    with contextlib.suppress(OSError):
        return {name.removesuffix(suffix) for name in os.listdir(directory) if name.endswith(suffix)}
    return set()


def create_directory(directory: Path) -> None:
    """Create a directory and its missing parents for this user alone (0o700): prompts are stored there."""
    for path in (*reversed(directory.parents), directory):
        if not path.exists():
            path.mkdir(mode=0o700, exist_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# An option does not apply to a series of runs for these reasons.
_NO_SERIES = {
    "live_totals": "`loadgen bench` publishes those of one run",
    "print_request": "`loadgen bench` shows one",
    "export_requests": "`loadgen bench` writes one plan",
    "selftest": "run `loadgen selftest` at the highest load first",
    "shard": "`loadgen bench` sends one plan from several commands",
    "start_at": "`loadgen bench` begins one run at an instant",
    "expect_plan": "each run has a plan of its own",
}
# These change no figure. Of secrets there is no digest on a disk.
_FREE = {row.name for row in TABLE if row.resumes}


def refuse_flags(
    options: Options, series: str, own: Mapping[str, tuple[bool, str]], heeded: Collection[str] = ()
) -> None:
    """Raise UsageError for a flag that does not apply to `series`, with what to do instead.

    `own` has more of them: whether each was given, and the advice. Those `heeded` apply nevertheless.
    """
    rows = [row for row in TABLE if row.name in _NO_SERIES and row.option not in heeded]
    advice = {**own, **{row.option: (is_given(options, row.name), _NO_SERIES[row.name]) for row in rows}}
    for flag, (given, what_to_do) in advice.items():
        if given:
            raise UsageError(f"{flag} does not apply to {series}: {what_to_do}")


def split_own_flags(options: Options, names: Collection[str]) -> tuple[Options, dict[str, Any]]:
    """Split off the overrides in `names`, flags of a series: return the options without them, and them."""
    own = {name: value for name, value in options.overrides.items() if name in names}
    overrides = {name: value for name, value in options.overrides.items() if name not in names}
    return replace(options, overrides=cast(WorkloadOptions, overrides)), own


def load_workload(options: Options, keys: Mapping[str, Any]) -> Profile:
    """Load the options' first profile, else the defaults, with `keys` over it; raises UsageError."""
    names = options.profiles
    return profile.load(names[0], keys, flags=True) if names else profile.build(keys)


def digest_options(options: Options, *more: object) -> str:
    """Compute the SHA-256, in hex, of the options that change a figure, without secrets, and of `more`."""
    kept = {name: value for name, value in vars(options).items() if name not in _FREE}
    return hashlib.sha256(msgspec.json.encode([kept, *more], order="sorted", enc_hook=str)).hexdigest()


def hash_files(profiles: Iterable[Profile]) -> str:
    """Return a blake2b hash of all files that some profiles read; raises UsageError if one is unreadable."""
    hashed = hashlib.blake2b(digest_size=16)
    for path, flag in sorted({named for each in profiles for named in _list_files(each)}):
        place = files.expand_path(path)
        parts = sorted({*place.glob("chunk-*"), *place.glob("[!.]*.json*")}) if place.is_dir() else (path,)
        for file in parts:  # of ServeGen's clients, or a trace in files of JSON
            hashed.update(OpenedFile(str(file), flag).digest().encode())
    return hashed.hexdigest()


def _list_files(profile: Profile) -> Iterator[tuple[str, str]]:
    """Yield the path of each file that a profile reads, and the flag that names it."""
    named = {
        "--trace": profile.trace,
        "--dataset-path": profile.dataset_path if SOURCES[find_source(profile)].reads_file else "",
        "--prompt-corpus": profile.prompt_corpus,
        "--input-dist": profile.input_dist.partition("histogram:")[2],
        "--output-dist": profile.output_dist.partition("histogram:")[2],
    }
    yield from ((path, flag) for flag, path in named.items() if path)


def strip_resume(words: Sequence[str]) -> list[str]:
    """Return a command line as a list, without `--resume` and its directory."""
    kept, rest = [], iter(words)
    for word in rest:
        if word == "--resume":
            following = next(rest, "")  # its directory, where it was given one
            kept += [following] if following.startswith("--") else []
        elif not word.startswith("--resume="):
            kept.append(word)
    return kept


def show_resume_command(verb: str, argv: Sequence[str], directory: Path) -> str:
    """Return the command line of a verb with `--resume DIRECTORY` in place of its own, secrets hidden."""
    words = strip_resume(hide_argument_secrets(argv))
    return shlex.join(["loadgen", verb, *words, "--resume", str(directory)])


def print_progress(quiet: bool, line: str) -> None:
    """Print a line on how far a series is, unless `quiet`."""
    if not quiet:
        print_text(clean_text(line), sys.stdout)
