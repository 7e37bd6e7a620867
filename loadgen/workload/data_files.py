"""Data files: that what a profile reads can be opened, found out before a server is asked or started."""

from __future__ import annotations

from loadgen.workload import sources
from loadgen.workload.paths import place
from loadgen.workload.profile import Profile

_DISTS = ("input", "output")


def check(profile: Profile) -> None:
    """Raises UsageError that names the flag and a file that is missing, empty, compressed or none at all.

    What is in the rows is read with the plan.
    """
    if profile.trace and not _directory(profile.trace):
        _open(profile.trace, "--trace")
    if profile.dataset_path and sources.of(profile) not in (sources.RANDOM, "prefix_repetition"):
        _open(profile.dataset_path, "--dataset-path")
    if profile.prompt_corpus:
        _open(profile.prompt_corpus, "--prompt-corpus")
    dists = {way: (getattr(profile, f"{way}_dist"), getattr(profile, f"{way}_len")) for way in _DISTS}
    for way, (text, usual) in dists.items():
        if text:
            from loadgen.workload.prompts import lengths  # few runs have any

            lengths.parse(text, f"--{way}-dist", usual)


def _directory(path: str) -> bool:
    """Whether a trace is a directory, as ServeGen's is."""
    return place(path).is_dir()


def _open(path: str, flag: str) -> None:
    from loadgen.workload.data.lines import OpenedFile  # few runs read a file

    OpenedFile(path, flag)
