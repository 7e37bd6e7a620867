"""`loadgen verify`: whether bundles and runs are as they were written, and state what their arrivals give."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from loadgen.base.errors import ExitCode, UsageError
from loadgen.base.files import expand_path
from loadgen.base.parsing import Parser, parse_arguments
from loadgen.base.printing import add_json_flag, print_json, print_text
from loadgen.base.text import clean_line, clean_text, format_count, list_first
from loadgen.records.journal import JOURNAL
from loadgen.report.run_directory import ARRIVALS, RESULT
from loadgen.study.bundle import reading
from loadgen.study.bundle.reading import INTERRUPTED, OTHERS, ChangedBundle, find_kind
from loadgen.study.importers.clients.loadgen_runs import CELLS
from loadgen.study.importers.result_sources import is_campaign, may_hold_results
from loadgen.study.limit_record import LIMIT
from loadgen.study.sweep_record import SWEEP
from loadgen.study.verify.held_series import prove_series
from loadgen.study.verify.proof import OF_SCORES, Proof, prove_run

_NAMED = 3
_MOST_RUNS = 20_000
_PASSED = ("server.log", "requests.jsonl", OTHERS)  # kinds of files
_OTHERS = "it may be read as another client's result, and nothing proves it"


def verify_parser() -> argparse.ArgumentParser:
    """Make the parser of `loadgen verify`."""
    parser = Parser(
        prog="loadgen verify",
        allow_abbrev=False,
        description="Compute every figure, doubt and printed line of runs again from their arrivals, and "
        "name the first that differs. A PLACE is a bundle, a run directory, or a directory of runs.",
        epilog=f"Exit {ExitCode.CHANGED} where a file was changed or a figure is not what its arrivals give, "
        f"{ExitCode.UNPROVEN} where none was, and something could not be checked. That the arrivals were "
        "measured only a signature by someone you trust can say.",
    )
    add = parser.add_argument
    add("places", nargs="*", metavar="PLACE", help="bundle, run directory or directory of runs")
    add(
        "--allowed-signers",
        metavar="FILE",
        help="file of those who may have signed a bundle (man ssh-keygen, ALLOWED SIGNERS)",
    )
    add_json_flag(parser)
    return parser


class Verified(msgspec.Struct, frozen=True):
    """One place: its proofs, whose signature it has, and why it was refused; "" if it was not."""

    place: str
    proofs: tuple[Proof, ...] = msgspec.field(default=(), name="runs")
    passed: tuple[str, ...] = msgspec.field(default=(), name="not_read")  # no part of a run or series
    signed: str = ""
    refused: str = ""

    @property
    def code(self) -> ExitCode:
        """The exit code of the place alone."""
        if self.refused or any(proof.differences for proof in self.proofs):
            return ExitCode.CHANGED
        return ExitCode.FIGURES if all(proof.proven for proof in self.proofs) else ExitCode.UNPROVEN


def main(argv: Sequence[str]) -> int:
    """Verify the places in `argv`; return 0 if all is proven, 11 if any was changed, else 12.

    Without any words it prints the help and returns 2. Raises UsageError of bad input.
    """
    if not argv or {"-h", "--help"} & set(argv):
        verify_parser().print_help()
        return ExitCode.FIGURES if argv else ExitCode.USAGE
    given = parse_arguments(verify_parser(), argv, intermixed=True)
    if not given.places:
        raise UsageError("nothing to verify: name a bundle, a run directory or a directory of runs")
    allowed = None if given.allowed_signers is None else expand_path(given.allowed_signers)
    paths = [expand_path(place) for place in given.places]
    if missing := [str(path) for path in paths if not path.exists()]:
        raise UsageError(f"{missing[0]}: No such file or directory")
    verified = [verify_place(path, allowed) for path in paths]
    if given.json:
        print_json(encode_verified(verified))
    else:
        for line in (line for one in verified for line in _describe_place(one)):
            print_text(clean_text(line), sys.stdout)
    codes = {one.code for one in verified}
    return next(code for code in (ExitCode.CHANGED, ExitCode.UNPROVEN, ExitCode.FIGURES) if code in codes)


def verify_place(path: Path, allowed: Path | None = None) -> Verified:
    """Verify a bundle, a run or a directory of runs; raises UsageError if it is none of these, or damaged.

    A bundle that was changed, or has no valid run, is `refused` in what is returned.
    """
    place, passed = str(path), list[str]()
    if path.is_dir():
        if allowed is not None:
            raise UsageError(
                f"{path} is a directory, which has no signature: --allowed-signers is of bundles"
            )
        return Verified(place, prove_directory(path, str, passed), tuple(passed))
    try:
        opened = reading.open_bundle(path)
        signed = reading.check_signature(path, opened.sha256, allowed)
    except ChangedBundle as error:
        return Verified(place, refused=str(error))
    try:
        return Verified(place, prove_directory(opened.directory, opened.name_place, passed), signed=signed)
    except UsageError as error:
        return Verified(place, refused=str(error).replace(str(opened.directory), place), signed=signed)


def prove_directory(directory: Path, name: Callable[[Path], str], passed: list[str]) -> tuple[Proof, ...]:
    """Prove all that `compare` reads below a directory: runs, and the records of series; links are followed.

    Hidden folders are left out, and in a series what it would measure again. What may be another client's
    result is unproven, as is a run without its result; other files are added to `passed`.
    `name` makes the name that a proof has of its directory. Raises UsageError without a finished run, or of a
    damaged one.
    """
    proofs, runs, met = list[Proof](), 0, set[str]()
    whole = set[str]()  # what lies in a series, of which only its runs are read
    for where, inside, names in os.walk(directory, followlinks=True):
        here, real = Path(where), os.path.realpath(where)
        if real in met:  # a link that leads back
            inside.clear()
            continue
        met.add(real)
        is_whole = is_campaign(inside, names) or bool({SWEEP, LIMIT} & set(names))
        inside[:] = sorted(
            each for each in inside if each[:1] != "." and not (is_whole and each == INTERRUPTED)
        )
        inner = [each for each in inside if where in whole or (is_whole and each != CELLS)]
        whole |= {os.path.join(where, each) for each in inner}
        proofs += prove_series(here, name(here))
        if RESULT in names:
            runs += 1
            if runs > _MOST_RUNS:
                raise UsageError(f"{directory} has more than {_MOST_RUNS} runs: verify the directories in it")
            proofs.append(prove_run(here, name(here), directory))
        elif {JOURNAL, ARRIVALS} & set(names):
            kind = "an unfinished run" if JOURNAL in names else "what is left of a run"
            proofs.append(Proof(name(here), unchecked=[f"it is {kind}: it has no {RESULT}"]))
        held = {proof.place for proof in proofs}
        others = [each for each in sorted(names) if f"{name(here)}/{each}" not in held]
        is_read = not (is_whole or where in whole or {RESULT, JOURNAL} & set(names))
        read = [each for each in others if is_read and may_hold_results(here / each)]
        proofs += [Proof(f"{name(here)}/{each}", unchecked=[_OTHERS]) for each in read]
        places = [f"{name(here)}/{each}" for each in others if each not in read]
        passed += [at for at in places if find_kind(at) in _PASSED and not at.endswith(".lock")]
    if not runs:
        raise UsageError(f"{directory} has no finished run: name a bundle, or a directory with a {RESULT}")
    return tuple(proofs)


def list_unproven(bundle: Path) -> list[str]:
    """List the lines on what `verify` will not call proven of a bundle just written; [] if all is proven."""
    found = verify_place(bundle)
    unproven = tuple(proof for proof in found.proofs if not proof.proven)
    return list(_describe_place(replace(found, proofs=unproven, signed="")))


def _describe_place(one: Verified) -> Iterator[str]:
    """Yield the lines on one place: refused, or whose reading, what was proven or not, files not read."""
    if one.refused:
        yield f"REFUSED  {one.refused}"
        return
    if one.signed:
        yield f"{one.place}: {one.signed}"
    for proof in one.proofs:
        rest_on = "its scores" if proof.source == OF_SCORES else "its runs"
        if proof.verdict:
            rest_on = f"{format_count(proof.requests, 'request')}; {proof.verdict}"
        if proof.proven:
            yield f"proven   {proof.place}: {proof.values} values and lines follow from {rest_on}"
        elif proof.differences:
            first, *others = proof.differences
            more = f"; and {format_count(len(others), 'more value')}" if others else ""
            yield f"CHANGED  {proof.place}: {clean_line(str(first))}{more}"
            yield from (f"         {clean_line(str(other))}" for other in others[: _NAMED - 1])
        else:
            yield f"UNPROVEN {proof.place}: not checked: {clean_line(proof.unchecked[0])}"
        rest = proof.unchecked[not proof.differences :]
        yield from (f"         not checked: {clean_line(line)}" for line in rest[:_NAMED])
        if len(rest) > _NAMED:
            yield f"         and {len(rest) - _NAMED} more not checked"
        yield from (f"         audit: {clean_line(line)}" for line in proof.audit)
    if one.passed:
        yield f"not read: {format_count(len(one.passed), 'other file')}, as {list_first(one.passed, _NAMED)}"


def encode_verified(verified: Sequence[Verified]) -> dict[str, Any]:
    """Make the JSON object of what was verified."""
    places = [
        {
            **msgspec.to_builtins(one),
            "proven": one.code is ExitCode.FIGURES,
            "runs": [{**msgspec.to_builtins(proof), "proven": proof.proven} for proof in one.proofs],
        }
        for one in verified
    ]
    return {"format": 1, "proven": all(one.code is ExitCode.FIGURES for one in verified), "places": places}
