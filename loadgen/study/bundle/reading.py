"""Reading a bundle: which parts it may hold, their unpacking, each held to its SHA-256, and who signed it.

A bundle is a zip whose first file, SHA256SUMS, has a line for each other one, as `sha256sum -c` reads it.
What is read may be a stranger's: names and sizes are checked before a part is unpacked to a directory of
ours, and all digests before any part is used. A signature is FILE.sig next to FILE, by ssh-keygen, whose
keys most people have.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import BinaryIO
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

import msgspec

from loadgen.base import files
from loadgen.base.errors import ExitCode, UsageError
from loadgen.base.untrusted import open_unblocked, read_file_head
from loadgen.report.run_directory import ARRIVALS, REPORT, RESULT
from loadgen.server.sample_file import SAMPLES

SUMS = "SHA256SUMS"
LARGEST_BYTES = (1 << 31) - 1  # of a bundle: beyond, a zip's directory has another form
LARGEST_SUMS = 16 << 20  # also of a zip's directory
LARGEST_RESULT = 512 << 20
_MOST_PARTS = 20_000
# Bytes of the parts for each byte of the file: arrivals shrink to a tenth, a bomb to a thousandth.
_MOST_RATIO, _FREE_BYTES = 100, 16 << 20
_WORD = re.compile(r"\w[\w.+=@~,-]*")
_LONGEST, _DEEPEST = 200, 8
INTERRUPTED = "interrupted"  # the folder of a series with what it would measure again

_FILES = (
    RESULT, ARRIVALS, SAMPLES, REPORT, "quality.json", "campaign.json", "attempts.json", "gate.json",
    "sweep.json", "limit.json", "ladder.json", "depth.json",
)  # fmt: skip
_NAMES = "|".join(map(re.escape, _FILES))
PARTS, TEXTS, OTHERS = "parts", "quality/*.jsonl.gz", "*"
# Kinds of files below a run or a series: the end of their paths, of which the first that fits decides, and
# why they are no parts; TEXTS are with --with-text.
KINDS = {
    PARTS: (rf"(?:{_NAMES})|(?:failed|quality|quality/failed)/[^/]+\.json", ""),
    TEXTS: (r"quality/[^/]+\.jsonl\.gz", "prompts and outputs, by token: --with-text"),
    "server.log": (r"server\.log", "engines print prompts, outputs and keys"),
    "requests.jsonl": (r"requests\.jsonl", "`loadgen export` makes it of the arrivals"),
    "journal-*.bin": (r"journal[^/]*\.bin", "it has the outputs' texts"),
    OTHERS: (r"[^/]*", "no part of a run"),
}

# A bundle begins as a zip whose first file is SHA256SUMS, and ends as one without a comment.
_BEGIN, _NAME_AT, _HEAD_BYTES = b"PK\3\4", 30, 128
_END, _END_BYTES = b"PK\5\6", 22
_LONG_END, _LONG_END_BYTES = b"PK\6\7", 20  # stands before the end of a directory that is beyond our bounds
_DAMAGE = (BadZipFile, zlib.error, EOFError, ValueError, OverflowError, RuntimeError)  # of a zip


class ChangedBundle(UsageError):
    """A bundle is not as it was written, by its first part that was changed, or not as it was signed."""

    exit_code = ExitCode.CHANGED


class OpenBundle(msgspec.Struct, frozen=True):
    """A bundle that is as it was written: its parts' names, and the directory in which they lie."""

    path: Path
    names: tuple[str, ...]
    directory: Path
    sha256: str  # of the bytes that were unpacked

    def name_place(self, directory: Path | str) -> str:
        """Name a run or series of the bundle by the file and its place in it, as x.bundle:1-run."""
        inside = os.path.relpath(directory, self.directory)
        return str(self.path) if inside == "." else f"{self.path}:{inside}"

    def has(self, name: str) -> bool:
        """Whether below a part's first folder a file or folder has a name that begins with `name`."""
        return any(word.startswith(name) for part in self.names for word in part.split("/")[1:])


def find_kind(path: str) -> str:
    """Return the key in KINDS of a file by its path below a place."""
    return next(
        kind for kind, (end, _) in KINDS.items() if re.fullmatch(rf"(?:.*/)?(?:{end})", path, re.DOTALL)
    )


def is_part_name(name: str) -> bool:
    """Whether a name is 2 to 8 plain words between single slashes, none of them empty or `interrupted`."""
    words = name.split("/")
    plain = all(_WORD.fullmatch(word) and len(word.encode()) <= _LONGEST for word in words)
    return plain and 2 <= len(words) <= _DEEPEST and INTERRUPTED not in map(str.casefold, words)


def write_sums(digests: Mapping[str, str]) -> bytes:
    """Write the lines of SHA256SUMS, of digests in hex by their parts' names."""
    return "".join(f"{digest}  {name}\n" for name, digest in digests.items()).encode()


def check_parts(sizes: Sequence[tuple[str, int]], file_bytes: int) -> None:
    """Raise ChangedBundle if parts of these names, in order, and sizes in bytes cannot be a bundle's.

    A result needs arrivals next to it, and a file of `file_bytes` has at most 100 times as many, and 16 MiB,
    in its parts.
    """
    names = [name for name, _ in sizes]
    if len(names) > _MOST_PARTS:
        raise ChangedBundle(f"it has {len(names)} parts, {_MOST_PARTS} at most")
    if names != sorted(set(names)):
        raise ChangedBundle("its parts are not in order, or two have one name")
    if len({name.casefold() for name in names}) < len(names):
        raise ChangedBundle("two of its parts have names that differ only in case")
    paths = [PurePosixPath(name) for name in names]
    folders = {str(folder) for path in paths for folder in path.parents}
    for name, path in zip(names, paths, strict=True):
        if not is_part_name(name) or name in folders or find_kind(name) not in (PARTS, TEXTS):
            raise ChangedBundle(f"{name[:_LONGEST]!r} is no name of a part")
        if path.name == RESULT and path.with_name(ARRIVALS) not in paths:
            raise ChangedBundle(f"{name} has no {ARRIVALS} next to it, from which its figures follow")
    total = sum(size for _, size in sizes)
    if total > _MOST_RATIO * file_bytes + _FREE_BYTES:
        raise ChangedBundle(f"its parts have {total} bytes, more than {_MOST_RATIO} times the file")


_opened: dict[tuple[str, int, int], OpenBundle] = {}


def is_bundle_file(path: Path) -> bool:
    """Whether a path is a regular file that begins as a bundle does."""
    try:
        return _is_bundle(read_file_head(path, _HEAD_BYTES))
    except OSError:
        return False


def _is_bundle(head: bytes) -> bool:
    return head[: len(_BEGIN)] == _BEGIN and head[_NAME_AT:].startswith(SUMS.encode())


def open_bundle(path: Path) -> OpenBundle:
    """Check a bundle and unpack it to a directory that is removed when the process ends; once a process.

    Raises ChangedBundle, whose message begins with the path, if any byte of it is not as it was written, and
    UsageError if it is no bundle or cut short.
    """
    status = path.stat()
    key = (os.path.realpath(path), status.st_mtime_ns, status.st_size)
    if key not in _opened:
        directory = files.make_temporary_directory("loadgen-bundle-")
        atexit.register(files.remove_temporary_directories)  # of a program that imports this
        try:
            _opened[key] = unpack_bundle(path, directory)
        except OSError as error:
            raise UsageError(f"{path} cannot be unpacked to {directory}: {error.strerror}") from None
        finally:
            if key not in _opened:
                shutil.rmtree(directory, ignore_errors=True)
    return msgspec.structs.replace(_opened[key], path=path)


def unpack_bundle(path: Path, directory: Path) -> OpenBundle:
    """Unpack a bundle's parts into an empty directory; raises as `open_bundle`.

    All is read of a copy, since the file may be replaced meanwhile.
    """
    with os.fdopen(open_unblocked(path), "rb") as file, tempfile.TemporaryFile() as copy:
        if not _is_bundle(file.read(_HEAD_BYTES)):
            raise UsageError(
                f"{path} is no bundle: `loadgen bundle RUN -o FILE` writes one; one that an earlier loadgen "
                "wrote is a zip: unpack it, and bundle its runs again"
            )
        if os.fstat(file.fileno()).st_size > LARGEST_BYTES:
            raise UsageError(f"{path} is no bundle: it has more than {LARGEST_BYTES} bytes")
        file.seek(0)
        shutil.copyfileobj(file, copy)
        copy.seek(0)
        sha256 = hashlib.file_digest(copy, "sha256").hexdigest()
        copy.seek(max(copy.tell() - _END_BYTES - _LONG_END_BYTES, 0))
        end = copy.read()
        if end[-_END_BYTES:][: len(_END)] != _END:
            raise UsageError(f"{path} is a bundle that is cut off, or whose end is damaged: get it again")
        try:
            # The directory is read whole: its size is in the end's bytes 12 to 15.
            size = int.from_bytes(end[-_END_BYTES:][12:16], "little")
            if size > LARGEST_SUMS or end.startswith(_LONG_END):
                raise ChangedBundle("the zip's directory was changed")
            names = _unpack_parts(copy, directory)
        except ChangedBundle as error:
            raise ChangedBundle(f"{path}: {error}") from None
    return OpenBundle(path, names, directory, sha256)


def _unpack_parts(file: BinaryIO, directory: Path) -> tuple[str, ...]:
    """Unpack a zip that was read to its end, and return its parts' names; raises as `open_bundle`."""
    size = file.tell()
    try:
        archive = ZipFile(file)
        first, *infos = archive.infolist()
        packings = {info.compress_type for info in (first, *infos)}
        if (first.orig_filename, first.header_offset) != (SUMS, 0) or packings - {ZIP_STORED, ZIP_DEFLATED}:
            raise ChangedBundle(f"the zip's directory was changed, or does not begin with {SUMS}")
        if first.file_size > LARGEST_SUMS:
            raise ChangedBundle(f"{SUMS} was changed: it has {first.file_size} bytes")
        sums = archive.read(first)
        digests = {
            name: digest for digest, _, name in (line.partition("  ") for line in sums.decode().splitlines())
        }
    except _DAMAGE:
        raise ChangedBundle(f"{SUMS} or the zip's directory was changed: it cannot be unpacked") from None
    sizes = [(info.orig_filename, info.file_size) for info in infos]
    if list(digests) != [name for name, _ in sizes] or write_sums(digests) != sums:
        raise ChangedBundle(f"{SUMS} was changed: it has not one line for each part")
    check_parts(sizes, size)
    if shutil.disk_usage(directory).free < sum(part_bytes for _, part_bytes in sizes):
        raise UsageError(f"{directory} has no room for its parts: set TMPDIR to a larger disk")
    for name, info in zip(digests, infos, strict=True):
        place = directory / name
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            with archive.open(info) as packed:
                files.write_whole(place, partial(shutil.copyfileobj, packed))
        except _DAMAGE:
            raise ChangedBundle(f"{name} was changed: it cannot be unpacked") from None
        with place.open("rb") as part:
            found = hashlib.file_digest(part, "sha256").hexdigest()
        if found != digests[name]:
            raise ChangedBundle(f"{name} was changed: it has another SHA-256")
    return tuple(digests)


def find_only_run(path: Path) -> Path:
    """Return the directory of a bundle's only run; the path itself of several runs, or if it is no bundle."""
    if not is_bundle_file(path):
        return path
    opened = open_bundle(path)
    runs = [opened.directory / name for name in opened.names if PurePosixPath(name).name == RESULT]
    return runs[0].parent if len(runs) == 1 else path


def find_directory(path: Path) -> Path:
    """Return the directory in which a bundle's parts lie; any other path as it is."""
    return open_bundle(path).directory if is_bundle_file(path) else path


NAMESPACE = "loadgen-bundle"
_LONGEST_S = 30
_BLOCK = 1 << 20
_MOST_NAMES = 20  # of one key that are tried
_MOST_LINES = 10_000
_SIGNER = re.compile(r"""("[^"]+"|[^\s#]\S*)\s.*?\b(AAAA[A-Za-z0-9+/]+=*)""")  # names, options, type and key
_ARMOUR = re.compile(rb"-----[^-\n]*-----|\s")
_MOST_BYTES = 64 << 10


def find_signature(bundle: Path) -> Path:
    """Return where the signature of a bundle is, or would be."""
    return bundle.with_name(f"{bundle.name}.sig")


def sign_bundle(bundle: Path, key: Path) -> Path:
    """Sign a bundle with an SSH key, and return the signature's file, replaced if there was one.

    ssh-keygen may ask for the key's passphrase. Raises UsageError if it cannot sign.
    """
    place = find_signature(bundle)
    if place.is_symlink():
        raise UsageError(f"{place} is a symbolic link, which is not written through: remove it")
    place.unlink(missing_ok=True)  # else it asks
    words = [_find_tool(), "-q", "-Y", "sign", "-f", str(key), "-n", NAMESPACE, "--", str(bundle)]
    ended = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
    if ended.returncode or not place.is_file():
        raise UsageError(f"the bundle is written and not signed: {_explain(ended)}")
    return place


def check_signature(bundle: Path, sha256: str, allowed: Path | None) -> str:
    """Check the signature of a bundle whose bytes had this SHA-256, and return a line on whose it is.

    Without `allowed` the line has the key alone, and is "" if the bundle is unsigned. With it, a file of
    allowed signers as ssh-keygen reads it, the line has all its names for the key. Raises ChangedBundle if
    the signature is wrong, or missing with `allowed`, or the bundle has other bytes by now; UsageError if
    ssh-keygen or the file is missing.
    """
    place = find_signature(bundle)
    if allowed is not None and not allowed.is_file():
        raise UsageError(f"{allowed} is no file of allowed signers: a line is `NAME KEY`, see man ssh-keygen")
    if not place.is_file():
        if allowed is None:
            return ""
        raise ChangedBundle(f"{bundle} is not signed: there is no {place.name} next to it")
    if place.stat().st_size > _MOST_BYTES:
        raise ChangedBundle(f"{place} is no signature: it has more than {_MOST_BYTES >> 10} KiB")
    if allowed is None:
        ended = _run_keygen(bundle, sha256, "check-novalidate", place)
        key = re.search(r"SHA256:\S+", ended.stdout)
        if ended.returncode or key is None:
            raise ChangedBundle(f"{bundle}: its signature is wrong: {_explain(ended)}")
        return f"signed with {key[0]}; --allowed-signers FILE says whose key that is"
    found = subprocess.run(
        [_find_tool(), "-Y", "find-principals", "-f", str(allowed), "-s", str(place)],
        capture_output=True, text=True, errors="replace", check=False, timeout=_LONGEST_S,
    )  # fmt: skip
    first = [] if found.returncode else found.stdout.splitlines()  # of the key's first line alone
    names = list(dict.fromkeys(filter(None, (*first, *_list_names(allowed, place)))))
    if not names:
        raise ChangedBundle(f"{bundle}: its signature is of no one in {allowed}")
    tried = {
        name: _run_keygen(bundle, sha256, "verify", place, "-f", str(allowed), "-I", name)
        for name in names[:_MOST_NAMES]
    }
    signers = [name for name, ended in tried.items() if not ended.returncode]
    if not signers:
        raise ChangedBundle(f"{bundle}: its signature is wrong: {_explain(tried[names[0]])}")
    return f"signed by {' or '.join(signers)}{', who have one key' if signers[1:] else ''}"


def _list_names(allowed: Path, place: Path) -> Iterator[str]:
    """Yield the names next to a signature's key in allowed signers' first 10,000 lines; not each may sign."""
    signature = place.read_bytes()
    for line in allowed.read_text("utf-8", "replace").splitlines()[:_MOST_LINES]:
        if (found := _SIGNER.match(line.strip())) is not None:
            with contextlib.suppress(ValueError):
                if base64.b64decode(found[2]) in base64.b64decode(_ARMOUR.sub(b"", signature)):
                    yield from found[1].strip('"').split(",")


def _run_keygen(
    bundle: Path, sha256: str, action: str, signature: Path, *words: str
) -> subprocess.CompletedProcess[str]:
    """Run ssh-keygen on a bundle's bytes; raises ChangedBundle if it accepts some of another SHA-256."""
    command = [_find_tool(), "-Y", action, *words, "-n", NAMESPACE, "-s", str(signature)]
    digest, pipe = hashlib.sha256(), subprocess.PIPE
    with (
        bundle.open("rb") as file,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT) as process,
    ):
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has refused the signature already
            while block := file.read(_BLOCK):
                digest.update(block)
                process.stdin.write(block)
        said = process.communicate()[0].decode("utf-8", "replace")
    if not process.returncode and digest.hexdigest() != sha256:
        raise ChangedBundle(f"{bundle} was replaced while it was read: verify it again")
    return subprocess.CompletedProcess(command, process.returncode, said, "")


def _find_tool() -> str:
    if (found := shutil.which("ssh-keygen")) is None:
        raise UsageError("ssh-keygen is not installed: signatures need OpenSSH 8.2 or newer")
    return found


def _explain(ended: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in (ended.stdout + ended.stderr).splitlines() if line.strip()]
    return lines[-1][:200] if lines else f"ssh-keygen ended with {ended.returncode}"
