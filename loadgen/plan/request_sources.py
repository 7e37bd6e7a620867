"""Sources: where a plan's requests come from, by name; each is a module with `requests`."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol, cast

from loadgen.base.errors import UsageError
from loadgen.base.files import expand_path
from loadgen.features.data.data_settings import DATA_SETS
from loadgen.plan.plan_inputs import PlanInputs, SourcedRequests
from loadgen.plan.profile import Profile, list_shipped, read_toml

if TYPE_CHECKING:
    from loadgen.plan.json_lines import OpenedFile

RANDOM, TRACE, RANDOM_TURNS = "random", "trace", "random_turns"
TRACES = (TRACE, "timed_trace")  # of which repeated prompts are the file's own
# By the kind that DataFacts have. What reads files is imported only where one is read.
SOURCES: dict[str, str] = {
    **{name: module for name, (module, _) in DATA_SETS.items()},
    RANDOM_TURNS: "loadgen.features.sessions.synthetic_turns",
    "file": "loadgen.features.data.recognised_rows",
    TRACE: "loadgen.features.traces.trace_replay",
}
# Those whose prompts are made here, again for each seed and repeat; a file has lengths and times at most.
MADE = (RANDOM, RANDOM_TURNS, "prefix_repetition", "trace")


class _Source(Protocol):
    def requests(self, inputs: PlanInputs) -> SourcedRequests: ...


def find_source(profile: Profile) -> str:
    """Which source a profile means, a key of SOURCES."""
    if profile.trace:
        return TRACE
    if profile.turns:
        return RANDOM_TURNS
    if profile.dataset_name in SOURCES:
        return profile.dataset_name
    return "file" if profile.dataset_path else RANDOM


def make_requests(inputs: PlanInputs) -> SourcedRequests:
    """The requests of a profile; raises UsageError where profile, file and server do not fit."""
    source = cast(_Source, importlib.import_module(SOURCES[find_source(inputs.profile)]))
    return source.requests(inputs)


_DISTS = ("input", "output")
_READ_NO_FILE = (RANDOM, RANDOM_TURNS, "prefix_repetition")  # which read no --dataset-path
_OF_CLIENTS = "chunk-*"  # files in a directory of ServeGen's
_TABLE = "histogram:"  # of lengths, in a file


def check_files(profile: Profile) -> None:
    """Raises UsageError that names the flag and a file that is missing, empty, compressed or none at all.

    What is in the rows is read with the plan.
    """
    if profile.trace and not _is_directory(profile.trace):
        _open_file(profile.trace, "--trace")
    if profile.dataset_path and find_source(profile) not in _READ_NO_FILE:
        _check_shipped(profile)
        _open_file(profile.dataset_path, "--dataset-path")
    if profile.prompt_corpus:
        _open_file(profile.prompt_corpus, "--prompt-corpus")
    dists = {way: (getattr(profile, f"{way}_dist"), getattr(profile, f"{way}_len")) for way in _DISTS}
    for way, (text, usual) in dists.items():
        if text:
            from loadgen.plan.prompts import lengths  # few runs have any

            lengths.parse_lengths(text, f"--{way}-dist", usual)
    if profile.think_time:
        from loadgen.plan.prompts import lengths

        lengths.parse_seconds(profile.think_time, "--think-time")


def _check_shipped(profile: Profile) -> None:
    """Raises UsageError where a shipped profile reads a file that is not shipped, and none was named."""
    path = profile.dataset_path
    own = list_shipped().get(profile.name)
    if own is not None and not expand_path(path).exists() and read_toml(own).get("dataset_path") == path:
        raise UsageError(
            f"--profile {profile.name} reads {path}, which is not in this directory: pass --dataset-path "
            f"FILE (`loadgen profiles {profile.name}` says where it is from)"
        )


def hash_files(profiles: Iterable[Profile]) -> str:
    """A blake2b hash of the content of all that these profiles read; raises UsageError as `check` does."""
    hashed = hashlib.blake2b(digest_size=16)
    for path, flag in sorted({named for profile in profiles for named in _list_files(profile)}):
        for file in sorted(expand_path(path).glob(_OF_CLIENTS)) if _is_directory(path) else (path,):
            hashed.update(_open_file(str(file), flag).digest().encode())
    return hashed.hexdigest()


def _list_files(profile: Profile) -> Iterator[tuple[str, str]]:
    """The files and directories that a profile reads, each with its flag."""
    files = {
        "--trace": profile.trace,
        "--dataset-path": profile.dataset_path if find_source(profile) not in _READ_NO_FILE else "",
        "--prompt-corpus": profile.prompt_corpus,
        **{f"--{way}-dist": getattr(profile, f"{way}_dist").partition(_TABLE)[2] for way in _DISTS},
    }
    yield from ((path, flag) for flag, path in files.items() if path)


def _is_directory(path: str) -> bool:
    """Whether a trace is a directory, as ServeGen's is."""
    return expand_path(path).is_dir()


def _open_file(path: str, flag: str) -> OpenedFile:
    from loadgen.plan.json_lines import OpenedFile  # few runs read a file

    return OpenedFile(path, flag)
