"""Data files: that what a profile reads can be opened before a server is asked, and what it holds."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from loadgen.base.errors import UsageError
from loadgen.base.files import expand_path
from loadgen.plan import sources
from loadgen.plan.profile import Profile, read_toml, shipped

if TYPE_CHECKING:
    from loadgen.plan.json_lines import OpenedFile

_DISTS = ("input", "output")
_MADE = (sources.RANDOM, sources.RANDOM_TURNS, "prefix_repetition")  # which read no --dataset-path
_OF_CLIENTS = "chunk-*"  # files in a directory of ServeGen's
_TABLE = "histogram:"  # of lengths, in a file


def check(profile: Profile) -> None:
    """Raises UsageError that names the flag and a file that is missing, empty, compressed or none at all.

    What is in the rows is read with the plan.
    """
    if profile.trace and not _directory(profile.trace):
        _open(profile.trace, "--trace")
    if profile.dataset_path and sources.of(profile) not in _MADE:
        _check_shipped(profile)
        _open(profile.dataset_path, "--dataset-path")
    if profile.prompt_corpus:
        _open(profile.prompt_corpus, "--prompt-corpus")
    dists = {way: (getattr(profile, f"{way}_dist"), getattr(profile, f"{way}_len")) for way in _DISTS}
    for way, (text, usual) in dists.items():
        if text:
            from loadgen.plan.prompts import lengths  # few runs have any

            lengths.parse(text, f"--{way}-dist", usual)
    if profile.think_time:
        from loadgen.plan.prompts import lengths

        lengths.parse_seconds(profile.think_time, "--think-time")


def _check_shipped(profile: Profile) -> None:
    """Raises UsageError where a shipped profile reads a file that is not shipped, and none was named."""
    path = profile.dataset_path
    own = shipped().get(profile.name)
    if own is not None and not expand_path(path).exists() and read_toml(own).get("dataset_path") == path:
        raise UsageError(
            f"--profile {profile.name} reads {path}, which is not in this directory: pass --dataset-path "
            f"FILE (`loadgen profiles {profile.name}` says where it is from)"
        )


def digest(profiles: Iterable[Profile]) -> str:
    """A blake2b hash of the content of all that these profiles read; raises UsageError as `check` does."""
    hashed = hashlib.blake2b(digest_size=16)
    for path, flag in sorted({named for profile in profiles for named in _read(profile)}):
        for file in sorted(expand_path(path).glob(_OF_CLIENTS)) if _directory(path) else (path,):
            hashed.update(_open(str(file), flag).digest().encode())
    return hashed.hexdigest()


def _read(profile: Profile) -> Iterator[tuple[str, str]]:
    """The files and directories that a profile reads, each with its flag."""
    files = {
        "--trace": profile.trace,
        "--dataset-path": profile.dataset_path if sources.of(profile) not in _MADE else "",
        "--prompt-corpus": profile.prompt_corpus,
        **{f"--{way}-dist": getattr(profile, f"{way}_dist").partition(_TABLE)[2] for way in _DISTS},
    }
    yield from ((path, flag) for flag, path in files.items() if path)


def _directory(path: str) -> bool:
    """Whether a trace is a directory, as ServeGen's is."""
    return expand_path(path).is_dir()


def _open(path: str, flag: str) -> OpenedFile:
    from loadgen.plan.json_lines import OpenedFile  # few runs read a file

    return OpenedFile(path, flag)
