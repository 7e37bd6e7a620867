"""`loadgen bundle`: runs and campaigns as one file that can be sent to others and verified."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from msgspec import structs

from loadgen.base import files
from loadgen.base.errors import ExitCode, UsageError
from loadgen.base.files import expand_path
from loadgen.base.parsing import Parser, parse_arguments
from loadgen.base.printing import add_json_flag, print_json, print_text
from loadgen.base.text import clean_text, format_count
from loadgen.base.untrusted import open_unblocked, read_file_bytes
from loadgen.report import result_block, run_directory
from loadgen.report.report import SECTIONS
from loadgen.report.result_file import OURS
from loadgen.report.run_directory import ARRIVALS, REPORT, RESULT
from loadgen.report.section import ReportOptions, list_lines
from loadgen.study.bundle import manifest, signature
from loadgen.study.bundle.manifest import (
    ANSWERS,
    ANSWERS_WHY,
    INTERRUPTED,
    KINDS,
    LARGEST_BYTES,
    LARGEST_MANIFEST,
    LARGEST_RESULT,
    MANIFEST,
    BundlePart,
    Manifest,
)
from loadgen.study.verify import verify_command


def bundle_parser() -> argparse.ArgumentParser:
    """Make the parser of `loadgen bundle`."""
    parser = Parser(
        prog="loadgen bundle",
        allow_abbrev=False,
        description="Write runs as one file that proves itself: arrivals, results, reports, and the SHA-256 "
        "of each. A RUN is a run directory, or that of a campaign, a sweep, a search or a ladder.",
        epilog="Engines' logs, prompts and answers are left out. `loadgen verify` checks a bundle; report, "
        "compare, gate and audit read it.",
    )
    add = parser.add_argument
    add("runs", nargs="*", metavar="RUN", help="directory of a run, campaign, sweep, search or ladder")
    add("-o", "--output", metavar="FILE", help="the bundle, as results.bundle")
    add("--with-text", action="store_true", help="include files that hold prompts or answers, but no log")
    add("--sign", metavar="KEY", help="sign with this SSH key (ssh-keygen -Y sign): FILE.sig")
    add_json_flag(parser, "print the manifest as one JSON object")
    return parser


def main(argv: Sequence[str]) -> int:
    """Write a bundle and print what is in it; returns 0, or 2 without arguments; raises UsageError."""
    if not argv or {"-h", "--help"} & set(argv):
        bundle_parser().print_help()
        return ExitCode.FIGURES if argv else ExitCode.USAGE
    given = parse_arguments(bundle_parser(), argv, intermixed=True)
    if not given.runs or not given.output:
        raise UsageError("loadgen bundle RUN... -o FILE: name the runs, and the file to write")
    output, key = expand_path(given.output), given.sign and expand_path(given.sign)
    if key and not key.is_file():
        raise UsageError(
            f"--sign {key}: no such file: pass a private SSH key, or the public one of an agent's"
        )
    made = write_bundle([expand_path(run) for run in given.runs], output, given.with_text)
    signed = signature.sign(output, key) if key else None
    for line in verify_command.list_unproven(output):
        print_text(clean_text(f"loadgen: verify will say: {line}"), sys.stderr)
    if given.json:
        print_json(made.json())
        return ExitCode.FIGURES
    runs, parts = format_count(len(made.runs), "run"), format_count(len(made.parts), "part")
    lines = [f"{output}: {runs} in {parts}, {max(output.stat().st_size >> 10, 1)} KiB"]
    lines += [
        f"left out: {'other files' if name == '*' else name}: {why}" for name, why in made.left_out.items()
    ]
    print_text(clean_text("\n".join(lines)), sys.stdout)
    if signed:
        print_text(clean_text(f"signed: {signed}"), sys.stdout)
    return ExitCode.FIGURES


def write_bundle(places: Sequence[Path], output: Path, with_text: bool) -> Manifest:
    """Write runs, campaigns, sweeps and searches as one bundle, and return its manifest.

    The same places give the same bytes. Raises UsageError of a place without runs, a run without arrivals, a
    link, or a file that cannot be read or written.
    """
    left, taken, found = set[str](), set[str](), list[tuple[Path, str]]()
    for place in places:  # under its directory's name, with -2, … where two have one
        paths = files.number_paths(Path(os.path.realpath(place)))
        name = next(path.name for path in paths if path.name.casefold() not in taken)
        taken.add(name.casefold())
        found += _find_parts(place, name, with_text, left)
    found.sort(key=lambda part: part[1])
    with tempfile.TemporaryDirectory(prefix="loadgen-bundle-") as scratch:
        try:
            sources = dict(_select_sources(found, Path(scratch), with_text, left))
            parts = [_describe_part(name, path) for name, path in sources.items()]
            made = manifest.make_manifest(parts, Path(scratch), left)
            files.write_output(output, lambda file: _write_zip(file, made, sources), mode=files.ANYONES)
        except OSError as error:
            raise UsageError(f"cannot write {output}: {error.strerror or error}") from None
    return made


def _describe_part(name: str, path: Path) -> BundlePart:
    with os.fdopen(open_unblocked(path), "rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return BundlePart(name, file.tell(), sha256)


def _write_zip(file: BinaryIO, made: Manifest, sources: Mapping[str, Path]) -> None:
    """Write the manifest and then each part, deflated; raises UsageError if the bundle has over 2 GiB."""
    raw = made.encode()
    with ZipFile(file, "w") as archive:
        archive.writestr(ZipInfo(MANIFEST), raw)
        for part in made.parts:
            info = ZipInfo(part.name)
            info.compress_type, info.file_size = ZIP_DEFLATED, part.size_bytes
            with (
                os.fdopen(open_unblocked(sources[part.name]), "rb") as source,
                archive.open(info, "w") as into,
            ):
                shutil.copyfileobj(source, into)
    manifest.check_parts(made, file.tell())
    if file.tell() > LARGEST_BYTES or len(raw) > LARGEST_MANIFEST:
        raise UsageError("a bundle has at most 2 GiB: bundle fewer runs")


def _find_parts(place: Path, name: str, with_text: bool, left: set[str]) -> Iterator[tuple[Path, str]]:
    """Yield each file to bundle and its name there; add kinds left out to `left`. Raises UsageError."""
    if not place.is_dir():
        raise UsageError(
            f"{place} is no directory: name a run, or the directory of a campaign, sweep or search"
        )
    runs = 0
    for where, inside, names in os.walk(place, onerror=_refuse):
        inside[:] = sorted(each for each in inside if not each.startswith(".") and each != INTERRUPTED)
        below = os.path.relpath(where, place)
        whole = {RESULT, ARRIVALS} <= set(names)
        if RESULT in names and not whole:
            raise UsageError(f"{where} has no {ARRIVALS}: nothing would prove its figures")
        runs += whole
        for each in sorted(names):
            path = os.path.normpath(os.path.join(below, each))
            kind = manifest.find_kind(path)
            if each.startswith("."):
                continue
            if KINDS[kind].why and not (KINDS[kind].has_text and with_text):
                left.add(kind)
            elif os.path.islink(os.path.join(where, each)):
                raise UsageError(f"{where}/{each} is a symbolic link, which no bundle follows")
            elif not manifest.is_part_name(f"{name}/{path}"):
                raise UsageError(
                    f"{name}/{path} cannot be a name in a bundle: give it one of letters and digits"
                )
            else:
                yield Path(where) / each, f"{name}/{path}"
    if not runs:
        raise UsageError(f"{place} has no finished run: a run has {RESULT} and {ARRIVALS}")


def _refuse(error: OSError) -> None:
    raise UsageError(f"cannot read {error.filename}: {error.strerror}")


def _select_sources(
    found: Sequence[tuple[Path, str]], scratch: Path, with_text: bool, left: set[str]
) -> Iterator[tuple[str, Path]]:
    """Yield each part's name and file; results, and reports without text, are copies in `scratch`.

    A report whose answers cannot be cut out is left out.
    """
    for path, name in found:
        is_result = path.name == RESULT
        if not is_result and (with_text or path.name != REPORT):
            yield name, path
            continue
        raw: bytes | None = read_file_bytes(path, LARGEST_RESULT)
        if not with_text and raw is not None:
            raw = _drop_answers(raw, path, left) if is_result else _drop_answer_lines(raw, path)
        if raw is None:
            left.add(REPORT)
            continue
        copy = scratch / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        files.write_whole(copy, partial(shutil.copyfileobj, BytesIO(raw)))
        yield name, copy


def _drop_answers(raw: bytes, path: Path, left: set[str]) -> bytes:
    """Return a result without the model's answers, unchanged if it has none; raises UsageError if damaged."""
    try:
        result: dict[str, Any] = json.loads(raw)
        answers = result[OURS].get("fingerprint")
        if not (answers and answers.get("answers")):
            return raw
        result[OURS]["fingerprint"] = {**answers, "answers": [], "missing": ANSWERS_WHY}
        left.add(ANSWERS)
        return json.dumps(result, allow_nan=False).encode()
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"{path} is damaged: {type(error).__name__}: {str(error)[:100]}") from None


def _drop_answer_lines(raw: bytes, path: Path) -> bytes | None:
    """Cut the lines that quote answers from a report: unchanged if its run has none, None if not found."""
    run = run_directory.load(path.parent)
    answers = run.facts.fingerprint
    if answers is None or not answers.answers:
        return raw
    left = structs.replace(answers, answers=(), missing=ANSWERS_WHY)
    without = replace(run, facts=structs.replace(run.facts, fingerprint=left))
    sections = [each for each in SECTIONS if each.name == "fingerprint"]
    options = ReportOptions(False, result_block.find_layout(None))
    texts = ("\n".join(list_lines(sections, each, options)) + "\n" for each in (run, without))
    lines, instead = (text.encode("utf-8", "backslashreplace") for text in texts)
    before, found, after = raw.partition(lines)
    return before + instead + after if found else None
