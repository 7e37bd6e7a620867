"""Reading a bundle: its parts in a directory of ours, each held to the manifest before any is used."""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
from pathlib import Path

import msgspec

from loadgen.base import files
from loadgen.base.errors import UsageError
from loadgen.base.untrusted import open_unblocked, read_file_head
from loadgen.study.bundle import archive
from loadgen.study.bundle.archive import (
    DIGEST_BYTES,
    END_BYTES,
    LOCAL,
    MANIFEST,
    BundlePart,
    ChangedBundle,
    HashedFile,
    Packed,
)
from loadgen.study.bundle.manifest import (
    LARGEST_MANIFEST,
    Manifest,
    check_parts,
    make_manifest,
    read_manifest,
)

_HEAD_BYTES = 128


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
        """Whether a part is a file, or lies in a folder, whose name begins so."""
        words = (word for part in self.manifest.parts for word in part.name.split("/")[1:])
        return any(word.startswith(name) for word in words)


_opened: dict[tuple[str, int, int], OpenBundle] = {}


def is_bundle_file(path: Path) -> bool:
    """Whether a path is a regular file that begins as a bundle does."""
    try:
        return archive.is_bundle(read_file_head(path, _HEAD_BYTES))
    except OSError:
        return False


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
            digest = hashlib.sha256()
            manifest = unpack_bundle(path, directory, digest)
            _opened[key] = OpenBundle(path, manifest, directory, digest.hexdigest())
        except OSError as error:
            raise UsageError(f"{path} cannot be unpacked to {directory}: {error.strerror}") from None
        finally:
            if key not in _opened:
                shutil.rmtree(directory, ignore_errors=True)
    return msgspec.structs.replace(_opened[key], path=path)


def unpack_bundle(path: Path, directory: Path, digest: hashlib._Hash | None = None) -> Manifest:
    """Unpack a bundle's parts into an empty directory and return its manifest; raises as `open_bundle`.

    `digest`, a new SHA-256, gets the bytes as they are unpacked: the file may be replaced meanwhile.
    """
    with os.fdopen(open_unblocked(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(_HEAD_BYTES)
        if not archive.is_bundle(head):
            raise UsageError(f"{path} is no bundle: `loadgen bundle RUN -o FILE` writes one")
        file.seek(max(size - END_BYTES, 0))
        if not archive.is_ended(file.read()) or size > archive.LARGEST_BYTES:
            raise UsageError(f"{path} is a bundle that is cut off, or whose end is damaged: get it again")
        file.seek(0)
        hashed = HashedFile(file, digest or hashlib.sha256())
        try:
            manifest = _unpack_parts(hashed, size, directory)
        except ChangedBundle as error:
            raise ChangedBundle(f"{path}: {error}") from None
        own = hashed.digest.hexdigest().encode()
        if hashed.read() != own:
            raise ChangedBundle(
                f"{path}: its last {DIGEST_BYTES} bytes are not its SHA-256: they were changed"
            )
    return manifest


def _unpack_parts(file: HashedFile, size: int, directory: Path) -> Manifest:
    raw, first = _read_manifest_bytes(file)
    manifest = read_manifest(raw)
    parts = manifest.parts
    names = [MANIFEST.encode(), *(part.name.encode("utf-8", "replace") for part in parts)]
    check_parts(parts, size, manifest.with_text)
    stored = len(raw) + sum(part.packed_bytes for part in parts)
    if stored + archive.measure_overhead(names) != size:
        raise ChangedBundle("its size is not that of its manifest's parts: manifest.json was changed")
    if shutil.disk_usage(directory).free < sum(part.size_bytes for part in parts):
        raise UsageError(f"{directory} has no room for its parts: set TMPDIR to a larger disk")
    headers = [first, *(_unpack_part(file, part, directory) for part in parts)]
    if file.read(size - DIGEST_BYTES - file.tell()) != archive.make_directory(headers):
        raise ChangedBundle("the zip's directory, behind all parts, was changed")
    left = [each.name for each in manifest.left_out]
    try:
        again = make_manifest(parts, directory, left)
    except (UsageError, KeyError) as error:
        raise ChangedBundle(f"manifest.json was changed: {error}") from None
    if again != manifest:
        raise ChangedBundle("manifest.json was changed: it is not what follows from its parts")
    return manifest


def _read_manifest_bytes(file: HashedFile) -> tuple[bytes, Packed]:
    header = file.read(LOCAL.size + len(MANIFEST))
    size = LOCAL.unpack_from(header)[7]
    if size > LARGEST_MANIFEST:
        raise ChangedBundle(f"the header of {MANIFEST} was changed: it would have {size} bytes")
    raw = file.read(size)
    first = Packed.make_manifest(raw)
    if header != first.local_header:
        raise ChangedBundle(f"{MANIFEST} or its header was changed")
    return raw, first


def _unpack_part(file: HashedFile, part: BundlePart, directory: Path) -> Packed:
    place = directory / part.name
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    headers: list[Packed] = []
    files.write_whole(place, lambda out: headers.append(archive.unpack(file, part, out.write)))
    return headers[0]


def find_only_run(path: Path) -> Path:
    """Return the directory of a bundle's run if it has one alone; any other path as it is."""
    if not is_bundle_file(path):
        return path
    opened = open_bundle(path)
    runs = opened.manifest.runs
    return opened.directory / runs[0].place if len(runs) == 1 else path


def find_directory(path: Path) -> Path:
    """Return the directory in which a bundle's parts lie; any other path as it is."""
    return open_bundle(path).directory if is_bundle_file(path) else path
