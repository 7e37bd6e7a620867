"""Reading a bundle: its parts in a directory of ours, each held to the manifest before any is used.

What is read may be a stranger's: of the zip only the parts are used, and they are what the manifest says.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
import zlib
from pathlib import Path
from typing import BinaryIO
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import msgspec

from loadgen.base import files
from loadgen.base.errors import UsageError
from loadgen.base.untrusted import open_unblocked, read_file_head
from loadgen.study.bundle.manifest import (
    LARGEST_BYTES,
    LARGEST_MANIFEST,
    MANIFEST,
    BundlePart,
    ChangedBundle,
    Manifest,
    check_parts,
    make_manifest,
    read_manifest,
)

# A bundle begins as a zip whose first file is the manifest, and ends as one without a comment.
_BEGIN, _NAME, _HEAD_BYTES = b"PK\3\4", 30, 128
_END, _END_BYTES = b"PK\5\6", 22
_LONG_END, _LONG_END_BYTES = b"PK\6\7", 20  # stands before the end of a directory that is beyond our bounds
_MODE = 0o600
_DAMAGE = (BadZipFile, zlib.error, EOFError, ValueError, OverflowError, RuntimeError)  # of a zip


class OpenBundle(msgspec.Struct, frozen=True):
    """A bundle that is as it was written: its manifest, and the directory in which its parts lie."""

    path: Path
    manifest: Manifest
    directory: Path
    sha256: str  # of the bytes that were unpacked

    def name_place(self, directory: Path | str) -> str:
        """Name a run or series of the bundle by the file and its place in it, as x.bundle:1-run."""
        inside = os.path.relpath(directory, self.directory)
        return str(self.path) if inside == "." else f"{self.path}:{inside}"

    def has(self, name: str) -> bool:
        """Whether below a part's first folder a file or folder has a name that begins with `name`."""
        words = (word for part in self.manifest.parts for word in part.name.split("/")[1:])
        return any(word.startswith(name) for word in words)


_opened: dict[tuple[str, int, int], OpenBundle] = {}


def is_bundle_file(path: Path) -> bool:
    """Whether a path is a regular file that begins as a bundle does."""
    try:
        return _is_bundle(read_file_head(path, _HEAD_BYTES))
    except OSError:
        return False


def _is_bundle(head: bytes) -> bool:
    return head[: len(_BEGIN)] == _BEGIN and head[_NAME : _NAME + len(MANIFEST)] == MANIFEST.encode()


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
            raise UsageError(f"{path} is no bundle: `loadgen bundle RUN -o FILE` writes one")
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
            if size > LARGEST_MANIFEST or end.startswith(_LONG_END):
                raise ChangedBundle("the zip's directory was changed")
            manifest = _unpack_parts(copy, directory)
        except ChangedBundle as error:
            raise ChangedBundle(f"{path}: {error}") from None
    return OpenBundle(path, manifest, directory, sha256)


def _unpack_parts(file: BinaryIO, directory: Path) -> Manifest:
    """Unpack a zip that was read to its end, and return its manifest; raises as `open_bundle`."""
    size = file.tell()
    try:
        archive = ZipFile(file)
        first, *infos = archive.infolist()
        stated = first.orig_filename, first.header_offset, first.compress_type
        if stated != (MANIFEST, 0, ZIP_STORED) or first.file_size > LARGEST_MANIFEST:
            raise ChangedBundle(f"{MANIFEST} or its header was changed")
        with archive.open(first) as packed:
            manifest = read_manifest(packed.read(first.file_size))
    except _DAMAGE:
        raise ChangedBundle(f"{MANIFEST} or the zip's directory was changed: it cannot be unpacked") from None
    check_parts(manifest, size)
    if len(infos) != len(manifest.parts):
        raise ChangedBundle("manifest.json was changed: the zip has other files")
    if shutil.disk_usage(directory).free < sum(part.size_bytes for part in manifest.parts):
        raise UsageError(f"{directory} has no room for its parts: set TMPDIR to a larger disk")
    for part, info in zip(manifest.parts, infos, strict=True):
        _unpack_part(archive, info, part, directory / part.name)
    try:
        again = make_manifest(manifest.parts, directory, manifest.left_out)
    except (UsageError, KeyError) as error:
        raise ChangedBundle(f"manifest.json was changed: {error}") from None
    if again != manifest:
        raise ChangedBundle("manifest.json was changed: it is not what follows from its parts")
    return manifest


def _unpack_part(archive: ZipFile, info: ZipInfo, part: BundlePart, place: Path) -> None:
    """Unpack a part to `place`; raises ChangedBundle if its header, bytes or SHA-256 are not as stated."""
    stated = info.orig_filename, info.file_size, info.external_attr >> 16
    if stated != (part.name, part.size_bytes, _MODE) or info.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
        raise ChangedBundle(f"{part.name} or its header was changed")
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        with archive.open(info) as packed:
            files.write_whole(place, lambda file: shutil.copyfileobj(packed, file))
    except _DAMAGE:
        raise ChangedBundle(f"{part.name} was changed: it cannot be unpacked") from None
    with place.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != part.sha256:
            raise ChangedBundle(f"{part.name} was changed: its SHA-256 is not the manifest's")


def find_only_run(path: Path) -> Path:
    """Return the directory of a bundle's only run; the path itself of several runs, or if it is no bundle."""
    if not is_bundle_file(path):
        return path
    opened = open_bundle(path)
    runs = opened.manifest.runs
    return opened.directory / runs[0].place if len(runs) == 1 else path


def find_directory(path: Path) -> Path:
    """Return the directory in which a bundle's parts lie; any other path as it is."""
    return open_bundle(path).directory if is_bundle_file(path) else path
