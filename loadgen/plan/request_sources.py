"""Request sources: where a plan's requests come from, by name, and the files that are read for them."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol, cast

from loadgen.base.errors import UsageError
from loadgen.base.files import expand_path
from loadgen.features import import_rows
from loadgen.plan.plan_inputs import ModelTarget, PlanInputs, SourcedRequests
from loadgen.plan.profile import Profile, list_shipped, read_toml
from loadgen.settings.setting import RequestSource

if TYPE_CHECKING:
    from loadgen.base.json_lines import OpenedFile
    from loadgen.wire.openai import Dialect

RANDOM = "random"
_FILE = "file"
# By the kind that DataFacts have.
SOURCES: dict[str, RequestSource] = {
    RANDOM: RequestSource("loadgen.plan.random_prompts", is_made=True, plans_lens=True),
}
for module in import_rows("settings"):
    SOURCES |= module.SOURCES
TRACES = tuple(name for name, source in SOURCES.items() if source.is_trace)
# A file has lengths and times at most.
MADE = tuple(name for name, source in SOURCES.items() if source.is_made)
_DISTS = ("input", "output")
_OF_CLIENTS = "chunk-*"  # files in a directory of ServeGen's
_TABLE = "histogram:"  # of lengths, in a file


class SourceModule(Protocol):
    """A module that makes a source's requests."""

    def requests(self, inputs: PlanInputs) -> SourcedRequests:
        """Make the requests of a profile; raises UsageError if profile, file and server do not fit."""
        ...

    def choose_form(self, profile: Profile, subject: ModelTarget, dialect: Dialect) -> str:
        """Choose the form of generated prompts, as `ids` or `words`; raises UsageError."""
        ...


def find_source(profile: Profile) -> str:
    """Return which source a profile uses, a key of SOURCES."""
    keyed = (name for name, source in SOURCES.items() if source.key and getattr(profile, source.key))
    found = next(keyed, RANDOM)
    named = profile.dataset_name
    return named if named in SOURCES and found in (RANDOM, _FILE) else found


def import_source(profile: Profile) -> SourceModule:
    """Import the module of a profile's source; only runs that use it do."""
    return cast(SourceModule, importlib.import_module(SOURCES[find_source(profile)].module))


def check_files(profile: Profile) -> None:
    """Raise UsageError, naming the flag, if a file is missing, empty, compressed or not a file.

    What is in the rows is read with the plan. Distributions of lengths and pauses are parsed here.
    """
    if profile.trace and not _is_directory(profile.trace):
        _open_file(profile.trace, "--trace")
    if profile.dataset_path and SOURCES[find_source(profile)].reads_file:
        _check_shipped(profile)
        _open_file(profile.dataset_path, "--dataset-path")
    if profile.prompt_corpus:
        _open_file(profile.prompt_corpus, "--prompt-corpus")
    dists = {way: (getattr(profile, f"{way}_dist"), getattr(profile, f"{way}_len")) for way in _DISTS}
    for way, (text, usual) in dists.items():
        if text:
            from loadgen.plan import lengths  # few runs have any

            lengths.parse_lengths(text, f"--{way}-dist", usual)
    if profile.think_time:
        from loadgen.plan import lengths

        lengths.parse_pauses_ms(profile.think_time, "--think-time")


def _check_shipped(profile: Profile) -> None:
    """Raise UsageError if a shipped profile needs a file that is not shipped and none was named."""
    path = profile.dataset_path
    own = list_shipped().get(profile.name)
    if own is not None and not expand_path(path).exists() and read_toml(own).get("dataset_path") == path:
        raise UsageError(
            f"--profile {profile.name} reads {path}, which is not in this directory: pass --dataset-path "
            f"FILE (`loadgen profiles {profile.name}` says where it is from)"
        )


def hash_files(profiles: Iterable[Profile]) -> str:
    """Return a blake2b hash of all files these profiles read; raises UsageError as `check_files`."""
    hashed = hashlib.blake2b(digest_size=16)
    for path, flag in sorted({named for profile in profiles for named in _list_files(profile)}):
        for file in sorted(expand_path(path).glob(_OF_CLIENTS)) if _is_directory(path) else (path,):
            hashed.update(_open_file(str(file), flag).digest().encode())
    return hashed.hexdigest()


def _list_files(profile: Profile) -> Iterator[tuple[str, str]]:
    """Yield the files and directories that a profile reads, each with its flag."""
    files = {
        "--trace": profile.trace,
        "--dataset-path": profile.dataset_path if SOURCES[find_source(profile)].reads_file else "",
        "--prompt-corpus": profile.prompt_corpus,
        **{f"--{way}-dist": getattr(profile, f"{way}_dist").partition(_TABLE)[2] for way in _DISTS},
    }
    yield from ((path, flag) for flag, path in files.items() if path)


def _is_directory(path: str) -> bool:
    """Whether a trace is a directory, as ServeGen's."""
    return expand_path(path).is_dir()


def _open_file(path: str, flag: str) -> OpenedFile:
    from loadgen.base.json_lines import OpenedFile  # few runs read a file

    return OpenedFile(path, flag)
