"""Stored record: the JSON record of a sweep or a search, as every reader of one takes it."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from loadgen.base.errors import UsageError
from loadgen.base.untrusted import read_file_bytes

LARGEST_BYTES = 64 << 20
_Kind = TypeVar("_Kind", bound=BaseModel)


class _Version(BaseModel, extra="ignore", frozen=True):
    """What every version of a record has."""

    format: int


def read(path: Path, kind: type[_Kind], newest: int, of: str) -> _Kind:
    """The record in a file; `of` is what its directory would be, as "a sweep". Raises UsageError."""
    try:
        content = read_file_bytes(path, LARGEST_BYTES)
    except OSError as error:
        raise UsageError(f"{path.parent} is not the directory of {of}: {path}: {error.strerror}") from None
    return parsed(content, path, kind, newest)


def parsed(content: bytes, path: Path, kind: type[_Kind], newest: int) -> _Kind:
    """The record in a file's content; raises UsageError where it is damaged or of a newer format."""
    try:
        version = _Version.model_validate_json(content).format
        if version > newest:
            raise UsageError(
                f"{path} was written by a newer loadgen: it has format {version}, this one reads {newest}"
            )
        return kind.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))  # "" of what is no JSON at all
        what = ": ".join(filter(None, (where, first["msg"].lower())))
        raise UsageError(f"{path} is damaged: {what}") from None
