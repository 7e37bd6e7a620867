"""Bundles as loadgen writes them, and as a stranger would who computes every digest again."""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from builders.made_runs import keep, run
from loadgen import __version__
from loadgen.report import report
from loadgen.report.run_directory import Result
from loadgen.study import bundle_command
from loadgen.study.bundle.reading import SUMS

ENVIRONMENT = {"python": "3", "cpu": "a processor", "loadgen": __version__}


def stored(directory: Path, of: Result | None = None, **changes: Any) -> Path:
    """A run's directory with its report, as `bench` leaves it."""
    made = run(**{"environment": ENVIRONMENT, **changes}) if of is None else of
    directory.mkdir(parents=True)
    return keep(made, directory, report.render_report(made) + "\n")


def bundled(directory: Path, *names: str, **changes: Any) -> Path:
    """A bundle of runs of these names."""
    runs = [stored(directory / name, seed=number, **changes) for number, name in enumerate(names or ["run"])]
    bundle_command.write_bundle(runs, directory / "x.bundle", with_text=False)
    return directory / "x.bundle"


@cache
def small_bundle() -> bytes:
    """The bytes of a bundle of one small run."""
    with TemporaryDirectory() as directory:
        return bundled(Path(directory), requests=6, tokens=4, concurrency=2).read_bytes()


def forged(
    contents: Mapping[str, bytes] | list[tuple[str, bytes]],
    change: Callable[[bytes], bytes] = bytes,
    compression: int = ZIP_DEFLATED,
) -> bytes:
    """A bundle of any parts, right in every digest; `change` is applied to its SHA256SUMS."""
    listed = list(contents.items()) if isinstance(contents, Mapping) else contents
    sums = "".join(f"{hashlib.sha256(raw).hexdigest()}  {name}\n" for name, raw in listed)
    written = io.BytesIO()
    with warnings.catch_warnings(), ZipFile(written, "w") as archive:
        warnings.simplefilter("ignore")  # of two files with one name
        archive.writestr(ZipInfo(SUMS), change(sums.encode()))
        for name, content in listed:
            archive.writestr(ZipInfo(name), content, compression)
    return written.getvalue()
