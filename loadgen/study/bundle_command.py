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
from io import BufferedReader, BytesIO
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import msgspec
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
from loadgen.study.bundle import reading
from loadgen.study.bundle.reading import INTERRUPTED, KINDS, LARGEST_BYTES, LARGEST_RESULT, PARTS, SUMS, TEXTS
from loadgen.study.verify import verify_command

ANSWERS = "loadgen.fingerprint"  # in result.json
_WHY = {
    **{kind: why for kind, (_, why) in KINDS.items()},
    ANSWERS: "the outputs' texts: --with-text",
    REPORT: "another version of loadgen printed outputs in it: --with-text",
}


class BundleContents(msgspec.Struct, frozen=True):
    """What a bundle holds, and what was left out of it, and why."""

    runs: tuple[str, ...]  # their places in it
    parts: dict[str, str]  # the SHA-256 of each, by its name
    left_out: dict[str, str]


def bundle_parser() -> argparse.ArgumentParser:
    """Make the parser of `loadgen bundle`."""
    parser = Parser(
        prog="loadgen bundle",
        allow_abbrev=False,
        description="Write runs as one file that proves itself: arrivals, results, reports, and the SHA-256 "
        "of each. A RUN is a run directory, or that of a campaign, a sweep, a search or a ladder.",
        epilog="Engines' logs, prompts and outputs are left out. `loadgen verify` checks a bundle; report, "
        "compare, gate and audit read it.",
    )
    add = parser.add_argument
    add("runs", nargs="*", metavar="RUN", help="directory of a run, campaign, sweep, search or ladder")
    add("-o", "--output", metavar="FILE", help="the bundle, as results.bundle")
    add("--with-text", action="store_true", help="include files that hold prompts or outputs, but no log")
    add("--sign", metavar="KEY", help="sign with this SSH key (ssh-keygen -Y sign): FILE.sig")
    add_json_flag(parser, "print what is in it as one JSON object")
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
    signed = reading.sign_bundle(output, key) if key else None
    for line in verify_command.list_unproven(output):
        print_text(clean_text(f"loadgen: verify will say: {line}"), sys.stderr)
    if given.json:
        print_json(msgspec.to_builtins(made))
        return ExitCode.FIGURES
    runs, parts = format_count(len(made.runs), "run"), format_count(len(made.parts), "part")
    lines = [f"{output}: {runs} in {parts}, {max(output.stat().st_size >> 10, 1)} KiB"]
    lines += [
        f"left out: {'other files' if name == '*' else name}: {why}" for name, why in made.left_out.items()
    ]
    lines += [f"signed: {signed}"] * bool(signed)
    print_text(clean_text("\n".join(lines)), sys.stdout)
    return ExitCode.FIGURES


def write_bundle(places: Sequence[Path], output: Path, with_text: bool) -> BundleContents:
    """Write runs, campaigns, sweeps and searches as one bundle, and return what is in it.

    The same places give the same bytes. Raises UsageError of a place without runs, a run without arrivals, a
    link, or a file that cannot be read or written.
    """
    left, taken, found = set[str](), set[str](), list[tuple[str, Path]]()
    for place in places:  # under its directory's name, with -2, … where two have one
        paths = files.number_paths(Path(os.path.realpath(place)))
        name = next(path.name for path in paths if path.name.casefold() not in taken)
        taken.add(name.casefold())
        found += _find_parts(place, name, with_text, left)
    with tempfile.TemporaryDirectory(prefix="loadgen-bundle-") as scratch:
        try:
            sources = dict(sorted(found))
            if not with_text:
                sources = dict(_drop_texts(sources, Path(scratch), left))
            sums = {name: _hash_file(path) for name, path in sources.items()}
            files.write_output(output, lambda file: _write_zip(file, sums, sources), mode=files.ANYONES)
        except OSError as error:
            raise UsageError(f"cannot write {output}: {error.strerror or error}") from None
    runs = tuple(str(PurePosixPath(name).parent) for name in sums if PurePosixPath(name).name == RESULT)
    return BundleContents(runs, sums, {name: _WHY[name] for name in sorted(left)})


def _open_part(path: Path) -> BufferedReader:
    return os.fdopen(open_unblocked(path), "rb")


def _hash_file(path: Path) -> str:
    with _open_part(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_zip(file: BinaryIO, sums: Mapping[str, str], sources: Mapping[str, Path]) -> None:
    """Write SHA256SUMS and then each part, deflated; raises UsageError if the bundle has over 2 GiB."""
    with ZipFile(file, "w") as archive:
        archive.writestr(ZipInfo(SUMS), reading.write_sums(sums))
        for name, path in sources.items():
            info = ZipInfo(name)
            info.compress_type, info.file_size = ZIP_DEFLATED, path.stat().st_size
            with _open_part(path) as source, archive.open(info, "w") as into:
                shutil.copyfileobj(source, into)
        sizes = [(part.filename, part.file_size) for part in archive.infolist()[1:]]
    reading.check_parts(sizes, file.tell())
    if file.tell() > LARGEST_BYTES:
        raise UsageError("a bundle has at most 2 GiB: bundle fewer runs")


def _find_parts(place: Path, name: str, with_text: bool, left: set[str]) -> Iterator[tuple[str, Path]]:
    """Yield each file to bundle, its name there first; add kinds left out to `left`. Raises UsageError."""
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
        for each in sorted(each for each in names if not each.startswith(".")):
            path = os.path.normpath(os.path.join(below, each))
            kind = reading.find_kind(path)
            if kind != PARTS and not (kind == TEXTS and with_text):
                left.add(kind)
            elif os.path.islink(os.path.join(where, each)):
                raise UsageError(f"{where}/{each} is a symbolic link, which no bundle follows")
            elif not reading.is_part_name(f"{name}/{path}"):
                raise UsageError(
                    f"{name}/{path} cannot be a name in a bundle: give it one of letters and digits"
                )
            else:
                yield f"{name}/{path}", Path(where) / each
    if not runs:
        raise UsageError(f"{place} has no finished run: a run has {RESULT} and {ARRIVALS}")


def _refuse(error: OSError) -> None:
    raise UsageError(f"cannot read {error.filename}: {error.strerror}")


def _drop_texts(sources: Mapping[str, Path], scratch: Path, left: set[str]) -> Iterator[tuple[str, Path]]:
    """Yield each part's name and file; of results and reports with answers a copy in `scratch` without them.

    A report whose answers cannot be cut out is left out. Raises UsageError of a damaged result.
    """
    for name, path in sources.items():
        cut: bytes | None = b""
        if path.name in (RESULT, REPORT):
            raw = read_file_bytes(path, LARGEST_RESULT)
            cut = _drop_answers(raw, path) if path.name == RESULT else _drop_answer_lines(raw, path)
        if cut is None:
            left.add(REPORT)
        elif not cut:
            yield name, path
        else:
            left.add(ANSWERS)
            copy = scratch / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            files.write_whole(copy, partial(shutil.copyfileobj, BytesIO(cut)))
            yield name, copy


def _drop_answers(raw: bytes, path: Path) -> bytes:
    """Return a result without the model's answers, b"" if it has none; raises UsageError if damaged."""
    try:
        result: dict[str, Any] = json.loads(raw)
        answers = result[OURS].get("fingerprint")
        if not (answers and answers.get("answers")):
            return b""
        result[OURS]["fingerprint"] = {**answers, "answers": [], "missing": _WHY[ANSWERS]}
        return json.dumps(result, allow_nan=False).encode()
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"{path} is damaged: {type(error).__name__}: {str(error)[:100]}") from None


def _drop_answer_lines(raw: bytes, path: Path) -> bytes | None:
    """Cut the lines that quote answers from a report: b"" if its run has none, None if they are not found."""
    run = run_directory.load(path.parent)
    answers = run.facts.fingerprint
    if answers is None or not answers.answers:
        return b""
    left = structs.replace(answers, answers=(), missing=_WHY[ANSWERS])
    without = replace(run, facts=structs.replace(run.facts, fingerprint=left))
    sections = [each for each in SECTIONS if each.name == "fingerprint"]
    options = ReportOptions(False, result_block.find_layout(None))
    texts = ("\n".join(list_lines(sections, each, options)) + "\n" for each in (run, without))
    lines, instead = (text.encode("utf-8", "backslashreplace") for text in texts)
    before, found, after = raw.partition(lines)
    return before + instead + after if found else None
