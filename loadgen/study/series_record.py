"""Series record: what a directory of many runs was asked for, as one file of it that names its own format."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Self

from pydantic import BaseModel, ValidationError

from loadgen.base.errors import UsageError
from loadgen.base.untrusted import read_file_bytes
from loadgen.settings.validation import explain_format, explain_unknown

LARGEST_BYTES = 64 << 20


class _Version(BaseModel, extra="ignore", frozen=True):
    """The fields that every version of a record has."""

    format: int
    loadgen: str = ""


class SeriesRecord(BaseModel, extra="forbid", frozen=True):
    """A record with a field `format`, whose default is the one format that is read."""

    file_name: ClassVar[str]  # as sweep.json
    owner: ClassVar[str]  # whose directory it is in, as "a sweep's"

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read the record in a directory; raises UsageError if missing, damaged or of another format."""
        path = directory / cls.file_name
        try:
            content = read_file_bytes(path, LARGEST_BYTES)
        except OSError as error:
            raise UsageError(f"{directory} is not {cls.owner} directory: {path}: {error.strerror}") from None
        return cls.parse(content, path)

    @classmethod
    def parse(cls, content: bytes, path: Path) -> Self:
        """Parse the content of a record's file; raises UsageError if damaged or of another format."""
        try:
            version = _Version.model_validate_json(content)
            reads = cls.model_fields["format"].default
            if other := explain_format(version.format, reads, version.loadgen):
                raise UsageError(f"{path} {other}")
            return cls.model_validate_json(content)
        except ValidationError as error:
            if unknown := explain_unknown(error):
                raise UsageError(f"{path} {unknown}") from None
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))  # "" of what is no JSON at all
            what = ": ".join(filter(None, (where, first["msg"].lower())))
            raise UsageError(f"{path} is damaged: {what}") from None
