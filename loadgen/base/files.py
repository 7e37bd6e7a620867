"""Files: paths as users write them, new directories, and what writes files: whole, never through a link.

A directory that someone else made may hold a link of any name: what is written there by that name would go
to any file of the user's. A file of a run takes the place of such a link; an output that the user names is
refused where it is one. The directories above a name are followed: the user chose them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from loadgen.base.errors import UsageError
from loadgen.base.printing import flush_standard_streams

_LONGEST, _LONGEST_PART = 4096, 255  # bytes, which are Linux's own limits
_MOST_NAME_BYTES = 200  # of the name of a run's directory
_MOST_SYSTEM_BYTES = 1 << 26  # of a file of the system: Debian's list of packages has several MB
OWN = 0o600  # a run may hold prompts and answers of people
_OWN_DIRECTORY = 0o700
ANYONES = 0o666  # less the umask, as of any command's output: a page to read and to send
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_LINK = "it is a symbolic link, which is not written through: name the file itself, or remove the link"
# This process's own open files: each is a link by its nature, and none is one that a directory can hold.
_OPEN_FILE = re.compile(r"/dev/(?:(stdout)|(stderr)|fd/(\d{1,9}))|/proc/self/fd/(\d{1,9})")


def expand_path(path: str | Path) -> Path:
    """Expand ~ and ~user in a path as a shell does; raises UsageError for what cannot be a path."""
    text = str(path)
    encoded, shown = text.encode("utf-8", "surrogateescape"), f"{text[:60]!r}… is not a valid path"
    if b"\0" in encoded:
        raise UsageError(f"{text!r} is not a valid path: it holds a zero byte")
    if len(encoded) > _LONGEST:
        raise UsageError(f"{shown}: it has {len(text)} characters, {_LONGEST} at most")
    if max(map(len, encoded.split(b"/"))) > _LONGEST_PART:
        raise UsageError(f"{shown}: a name in it is longer than {_LONGEST_PART} bytes")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        user = text.partition("/")[0]
        raise UsageError(f"{text}: {user} is not a user of this machine: write the path out") from None


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Replace a file by what `write` writes; if anything fails, the old file stays as it was.

    The bytes go to a temporary file in the same directory, mode 0600, and are on the disk before it is
    renamed. Raises OSError, or what `write` raises; either way no temporary file is left behind.
    """
    _replace(path, write, OWN)


def write_text(path: Path, text: str) -> None:
    """Replace a file by a text in UTF-8 as `write_whole` does; lone surrogates are escaped."""
    data = text.encode("utf-8", "backslashreplace")
    write_whole(path, lambda file: file.write(data))


def write_output(
    path: Path, write: Callable[[BinaryIO], object], append: bool = False, mode: int = OWN
) -> None:
    """Write a file that the user named; `append` adds to it on a new line, a new file gets `mode`.

    A regular file is replaced whole or not at all and keeps its mode; a pipe, a device or a file that is open
    here (/dev/stdout) is written to. Raises OSError, also for a link or a disk, or what `write` raises.
    """
    if (named := _OPEN_FILE.fullmatch(str(path))) is not None:
        flush_standard_streams()  # what was printed before comes first
        out, error, *numbers = named.groups()
        _write_on(os.dup(1 if out else 2 if error else int(next(filter(None, numbers)))), write, append)
        return
    status: os.stat_result | None = None
    with contextlib.suppress(FileNotFoundError):
        status = path.lstat()
    if status is not None and stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, _LINK, str(path))
    if status is not None and stat.S_ISBLK(status.st_mode):
        raise OSError(errno.EINVAL, "it is a disk", str(path))
    is_file = status is None or stat.S_ISREG(status.st_mode)
    if append or not is_file:
        flags = os.O_WRONLY | os.O_APPEND | (os.O_CREAT if is_file else 0)
        _write_on(open_refusing_link(path, flags, mode), write, append)
        return
    _replace(path, write, mode, None if status is None else stat.S_IMODE(status.st_mode) & 0o777)


def open_refusing_link(path: Path, flags: int, mode: int = OWN) -> int:
    """Open a file to write to it in place and return the descriptor; raises OSError for a symbolic link."""
    try:
        return os.open(path, flags | _NO_LINK, mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, _LINK, str(path)) from None
        raise


def _replace(
    path: Path, write: Callable[[BinaryIO], object], mode: int, exact_mode: int | None = None
) -> None:
    """Replace a file as `write_whole` does; it gets `mode` less the umask, or just `exact_mode`."""
    temporary = path.parent / f".{os.urandom(8).hex()}.part"
    handle = open_refusing_link(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            if exact_mode is not None:
                os.chmod(handle, exact_mode)
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):  # it has its name by now, or is not to stay
            temporary.unlink()
    with contextlib.suppress(OSError):  # so that the renamed file survives a crash
        directory = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _write_on(handle: int, write: Callable[[BinaryIO], object], append: bool) -> None:
    """Write to a descriptor what `write` writes, on a new line if `append` and it has bytes; close it."""
    with os.fdopen(handle, "wb") as file:
        status = os.fstat(handle)
        if append and stat.S_ISREG(status.st_mode) and status.st_size:
            file.write(b"\n")
        write(file)


def read_system_text(path: Path) -> str:
    """Read 64 MiB at most of a system's file as text, stripped of blanks and zero bytes; "" if unreadable."""
    try:
        with path.open("rb") as file:
            return file.read(_MOST_SYSTEM_BYTES).decode("utf-8", "replace").strip().strip("\0")
    except (OSError, ValueError):
        return ""


def create_directory(base: Path, name: str, started: datetime, flag: str = "--run-dir") -> Path:
    """Create a new directory `TIME-NAME`, mode 0700, under `base`, itself created; raises UsageError.

    A name that is taken gets -2 to -999; the error names the flag.
    """
    plain = re.sub(r"[^\w.-]+", "-", name)  # a profile's own name may hold anything, and much of it
    plain = plain.encode()[:_MOST_NAME_BYTES].decode(errors="ignore")
    stem = f"{started.astimezone():%Y%m%d-%H%M%S}-{plain}"
    create_place(base, flag)
    for path in number_paths(base / stem):
        try:
            path.mkdir(mode=_OWN_DIRECTORY)
        except FileExistsError:
            continue
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}; choose another {flag}") from None
        return path
    raise UsageError(f"{base} has too many runs of this second; choose another {flag}")


def number_paths(path: Path) -> Iterator[Path]:
    """Yield the path itself, then with -2 to -999 appended, taken or not: the caller takes the first free."""
    yield path
    yield from (path.with_name(f"{path.name}-{number}") for number in range(2, 1000))


def create_place(directory: Path, flag: str) -> None:
    """Create a directory and its parents if missing; raises UsageError with the flag if not writable."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {directory}: {error.strerror}; choose another {flag}") from None
    if not os.access(directory, os.W_OK):
        raise UsageError(f"cannot write {directory}: permission denied; choose another {flag}")


def remove_empty(directory: Path) -> None:
    """Remove a directory if it is empty; any error is ignored."""
    with contextlib.suppress(OSError):
        directory.rmdir()


_temporary: list[Path] = []


def make_temporary_directory(prefix: str) -> Path:
    """Make a private directory that `remove_temporary_directories` removes; raises OSError."""
    import tempfile  # for --help to do without

    _temporary.append(Path(tempfile.mkdtemp(prefix=prefix)))
    return _temporary[-1]


def remove_temporary_directories() -> None:
    """Remove the directories that this process made; never raises. A command calls it as it ends."""
    while _temporary:
        shutil.rmtree(_temporary.pop(), ignore_errors=True)
