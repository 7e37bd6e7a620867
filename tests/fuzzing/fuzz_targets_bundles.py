"""Functions of bytes: bundles that strangers made; each must return, and none of them is taken for proven."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from functools import cache
from pathlib import Path
from typing import Any

from builders.made_bundles import forged, small_bundle
from fuzzing.fuzz_files import place, written
from fuzzing.fuzz_odd import replaced, shortened, spots
from loadgen.base.errors import ExitCode, UsageError
from loadgen.study.bundle import reading
from loadgen.study.bundle.reading import write_sums
from loadgen.study.verify.verify_command import verify_place

_CHANGE = struct.Struct("<BHB")  # what is done, where, and the byte
_PARTS = ("run/arrivals.npz", "run/report.txt", "run/result.json")


def mutated(raw: bytes, data: bytes) -> bytes:
    """A bundle with bytes flipped, put in, taken out, repeated or cut off; four bytes of `data` say each."""
    changed = bytearray(raw)
    for kind, at, byte in _CHANGE.iter_unpack(data[: len(data) // _CHANGE.size * _CHANGE.size]):
        where = at * 37 % max(len(changed), 1)
        if kind % 8 < 4:
            changed[where : where + 1] = bytes([byte])
        elif kind % 8 == 4:
            changed[where:where] = bytes([byte])
        elif kind % 8 == 5:
            del changed[where : where + 1 + byte]
        elif kind % 8 == 6:
            changed[where:where] = changed[where : where + 1 + byte]
        else:
            del changed[len(changed) - 1 - byte :]
    return bytes(changed)


def unpacked(raw: bytes) -> dict[str, bytes] | None:
    """The parts of these bytes where they are read as a bundle; None if they are refused."""
    path, room = written(raw, "x.bundle", "bundles"), place() / "room"
    shutil.rmtree(room, ignore_errors=True)
    room.mkdir()
    why = ""
    try:
        reading.unpack_bundle(path, room)
    except UsageError as error:
        why = str(error)
    assert "\n" not in why
    if why:
        return None
    return {str(each.relative_to(room)): each.read_bytes() for each in room.rglob("*") if each.is_file()}


def bundle(data: bytes) -> None:
    """Any bytes, and what is made of a right bundle by them."""
    assert unpacked(data) is None
    raw = small_bundle()
    changed = mutated(raw, data)
    assert unpacked(changed) in (_contents(), *([] if changed == raw else [None]))


def bundle_sums(data: bytes) -> None:
    """A bundle whose SHA256SUMS has odd bytes: what it says is not what its parts are."""
    odd = mutated(sums := write_sums(_digests()), data)
    if odd != sums:
        assert unpacked(forged(_contents(), lambda _: odd)) is None


def _digests() -> dict[str, str]:
    return {name: hashlib.sha256(raw).hexdigest() for name, raw in _contents().items()}


@cache
def _contents() -> dict[str, bytes]:
    """The parts of a right bundle."""
    room = place() / "whole"
    room.mkdir()
    reading.unpack_bundle(written(small_bundle(), "whole.bundle", "wholes"), room)
    return {name: (room / name).read_bytes() for name in _PARTS}


@cache
def _spots() -> tuple[Any, list[tuple[Any, ...]]]:
    """The result of a right bundle with short lists, and every spot in it."""
    known = shortened(json.loads(_contents()["run/result.json"]))
    return known, spots(known)


def bundled_result(data: bytes) -> None:
    """A bundle right in every digest whose result has odd values: it is verified, or refused in a line."""
    known, every = _spots()
    odd = json.dumps(replaced(known, every, data)).encode()
    raw = forged({**_contents(), "run/result.json": odd})
    path = written(raw, "odd.bundle", "odds")
    room = Path(place() / "odd-room")
    shutil.rmtree(room, ignore_errors=True)
    room.mkdir()
    try:
        reading.unpack_bundle(path, room)
        found = verify_place(room)
    except UsageError:
        return
    is_doubted = any(proof.differences or proof.unchecked for proof in found.proofs)
    assert found.code is ExitCode.FIGURES or found.refused or is_doubted
