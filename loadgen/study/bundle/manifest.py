"""Manifest: what a bundle holds, and what was left out of it and why; it follows from the parts alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import msgspec

from loadgen.base.errors import ExitCode, UsageError
from loadgen.base.untrusted import read_count, read_file_bytes, read_mapping, read_text
from loadgen.report.result_file import OURS
from loadgen.report.run_directory import ARRIVALS, REPORT, RESULT
from loadgen.server.sample_file import SAMPLES

MANIFEST = "manifest.json"
FORMAT = 2
LARGEST_BYTES = (1 << 31) - 1  # of a bundle: beyond, a zip's directory has another form
LARGEST_MANIFEST = 16 << 20
LARGEST_RESULT = 512 << 20
_MOST_PARTS = 20_000
# Of the parts, for each byte of the file: arrivals take a tenth of their size, a bomb a thousandth.
_MOST_RATIO, _FREE_BYTES = 100, 16 << 20
_NAME = re.compile(r"\w[\w.+=@~,-]*")
_LONGEST, _DEEPEST = 200, 8
INTERRUPTED = "interrupted"  # the folder of a series with what it would measure again


class ChangedBundle(UsageError):
    """A bundle is not as it was written, by its first part that was changed, or not as it was signed."""

    exit_code = ExitCode.CHANGED


class BundlePart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a bundle: its name, and the number and SHA-256 of its bytes."""

    name: str
    size_bytes: Annotated[int, msgspec.Meta(ge=0)]
    sha256: str


class FileKind(msgspec.Struct, frozen=True):
    """A kind of file below a run or a series: which it is, and why it is left out; "": it is a part."""

    pattern: str  # of the end of its path
    why: str = ""
    has_text: bool = False  # it is a part with --with-text


_RUN = (RESULT, ARRIVALS, SAMPLES, REPORT, "quality.json")
_SERIES = (
    "campaign.json", "attempts.json", "gate.json", "sweep.json", "limit.json", "ladder.json", "depth.json",
)  # fmt: skip
_ONES = "|".join(map(re.escape, (*_RUN, *_SERIES)))
# The first that fits decides.
KINDS = {
    "parts": FileKind(rf"(?:.*/)?(?:{_ONES})|(?:.*/)?(?:failed|quality|quality/failed)/[^/]+\.json"),
    "quality/*.jsonl.gz": FileKind(
        r"(?:.*/)?quality/[^/]+\.jsonl\.gz", "prompts and answers, by token: --with-text", has_text=True
    ),
    "server.log": FileKind(r"(?:.*/)?server\.log", "engines print prompts, answers and keys"),
    "requests.jsonl": FileKind(r"(?:.*/)?requests\.jsonl", "`loadgen export` makes it of the arrivals"),
    "journal-*.bin": FileKind(r"(?:.*/)?journal[^/]*\.bin", "it has the answers' texts"),
    "*": FileKind(r".*", "no part of a run"),
}
ANSWERS = "loadgen.fingerprint"  # in result.json
ANSWERS_WHY = "the answers' texts: --with-text"
_REASONS = {
    **{name: kind.why for name, kind in KINDS.items() if kind.why},
    ANSWERS: ANSWERS_WHY,
    REPORT: "another version of loadgen printed answers in it: --with-text",
}


class BundledRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One run, as its result.json has it: the digest of its plan, and what wrote and served it."""

    place: str
    plan_digest: str
    loadgen: str  # version
    definitions_version: int
    engine: str
    seed: int | None


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A bundle's manifest, its parts sorted by name."""

    format: int
    with_text: bool
    runs: tuple[BundledRun, ...]
    parts: tuple[BundlePart, ...]
    left_out: dict[str, str] = {}  # what the runs had and the bundle does not, and why

    def json(self) -> dict[str, Any]:
        """Encode the manifest as a JSON object."""
        return dict(msgspec.to_builtins(self))

    def encode(self) -> bytes:
        """Encode the manifest in the one way in which it is written."""
        return (json.dumps(self.json(), indent=1, ensure_ascii=False) + "\n").encode()


def make_manifest(parts: Iterable[BundlePart], directory: Path, left: Iterable[str]) -> Manifest:
    """Make the manifest of parts whose files lie in a directory; `left` names what was left out.

    Names are keys of KINDS, ANSWERS or REPORT, else KeyError. Raises UsageError where a result is damaged.
    """
    known = tuple(sorted(parts, key=lambda part: part.name))
    names = (part.name for part in known if PurePosixPath(part.name).name == RESULT)
    runs = [_describe_run(directory / name, name) for name in names]
    has_text = any(KINDS[find_kind(part.name)].has_text for part in known)
    return Manifest(
        FORMAT,
        has_text or any(answered for _, answered in runs),
        tuple(run for run, _ in runs),
        known,
        {name: _REASONS[name] for name in sorted(set(left))},
    )


def _describe_run(path: Path, name: str) -> tuple[BundledRun, bool]:
    """Return a run by its result at `path`, and whether that has answers; raises UsageError naming `name`."""
    try:
        ours = read_mapping(json.loads(read_file_bytes(path, LARGEST_RESULT))[OURS])
        version = read_count(ours["definitions_version"])
        server = read_mapping(ours["server"])
        engine = f"{read_text(server.get('engine'))} {read_text(server.get('version'))}".strip()
        digest = read_text(ours["plan_digest"])
        answered = bool(read_mapping(ours.get("fingerprint")).get("answers"))
        written_by = read_text(read_mapping(ours["environment"]).get("loadgen"))
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise UsageError(f"{name} is damaged: {type(error).__name__}: {str(error)[:100]}") from None
    place = str(PurePosixPath(name).parent)
    run = BundledRun(place, digest, written_by, version or 0, engine, read_count(ours.get("seed")))
    return run, answered


def find_kind(path: str) -> str:
    """Return the key in KINDS of a file by its path below a place; "*" of one that is no part of a run."""
    return next(name for name, kind in KINDS.items() if re.fullmatch(kind.pattern, path, re.DOTALL))


def read_manifest(raw: bytes) -> Manifest:
    """Read a manifest; raises ChangedBundle if it is not, byte by byte, what would be written of it."""
    try:
        manifest = msgspec.json.decode(raw, type=Manifest)
        if manifest.format != FORMAT:
            raise ChangedBundle(f"it has format {manifest.format}, this loadgen reads {FORMAT}")
        if manifest.encode() != raw:
            raise ChangedBundle("manifest.json was changed: it is not as it is written")
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ChangedBundle(f"manifest.json was changed: {str(error)[:150]}") from None
    return manifest


def check_parts(manifest: Manifest, file_bytes: int) -> None:
    """Raise ChangedBundle if parts of these names, order and sizes cannot be a bundle's; none is read.

    A result needs arrivals next to it, texts need `with_text`, and a file of `file_bytes` has at most 100
    times as many, and 16 MiB, in its parts.
    """
    parts = manifest.parts
    names = [part.name for part in parts]
    if len(names) > _MOST_PARTS:
        raise ChangedBundle(f"it has {len(names)} parts, {_MOST_PARTS} at most")
    if not all(first < second for first, second in pairwise(names)):
        raise ChangedBundle("its parts are not in order, or two have one name")
    if len({name.casefold() for name in names}) < len(names):
        raise ChangedBundle("two of its parts have names that differ only in case")
    folders = {str(folder) for name in names for folder in PurePosixPath(name).parents}
    for part in parts:
        kind = KINDS[find_kind(part.name)]
        if not is_part_name(part.name) or part.name in folders or (kind.why and not kind.has_text):
            raise ChangedBundle(f"{part.name[:_LONGEST]!r} is no name of a part")
        if kind.has_text and not manifest.with_text:
            raise ChangedBundle(f"{part.name} has texts, and the manifest says that there are none")
    held = {str(PurePosixPath(name).parent) for name in names if PurePosixPath(name).name == ARRIVALS}
    for name in names:
        if PurePosixPath(name).name == RESULT and str(PurePosixPath(name).parent) not in held:
            raise ChangedBundle(f"{name} has no {ARRIVALS} next to it, from which its figures follow")
    total = sum(part.size_bytes for part in parts)
    if total > _MOST_RATIO * file_bytes + _FREE_BYTES:
        raise ChangedBundle(f"its parts have {total} bytes, more than {_MOST_RATIO} times the file")


def is_part_name(name: str) -> bool:
    """Whether a name is 2 to 8 plain words between single slashes, none of them empty or `interrupted`."""
    words = name.split("/")
    if not 2 <= len(words) <= _DEEPEST:
        return False
    plain = all(_NAME.fullmatch(word) and len(word.encode()) <= _LONGEST for word in words)
    return plain and INTERRUPTED not in map(str.casefold, words)
