"""The small files of a release, for `scripts/release`.

python scripts/release_files.py notes VERSION     its section of CHANGELOG.md
python scripts/release_files.py constraints       what is locked, without hashes
python scripts/release_files.py sbom              the SBOM on standard input, about this package
python scripts/release_files.py pack FOLDER FILE  a .tar.gz, the same bytes for the same files
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parent.parent


def main(words: list[str]) -> int:
    """Do what the first word names; 2 and a line if there is no such section, or word."""
    verb, *rest = words or [""]
    if verb not in VERBS:
        print(f"usage: python scripts/release_files.py {'|'.join(VERBS)} …", file=sys.stderr)
        return 2
    return VERBS[verb](*rest)


def find_notes(changelog: str, version: str) -> str:
    """Return what the section of a version says, without its heading; "" if there is none."""
    found = re.search(rf"^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## |\Z)", changelog, re.M | re.S)
    return found[1].strip() if found else ""


def strip_hashes(locked: str) -> str:
    """Return the lines of a locked requirements file without hashes: what pip takes as constraints."""
    pins = [line.removesuffix(" \\") for line in locked.splitlines() if re.match(r"[\w.-]+==", line)]
    return "".join(f"{pin}\n" for pin in pins)


# Files of others that are in the package itself, which no installer knows of.
VENDORED = [
    {"type": "library", "name": "uplot", "version": "1.6.32", "purl": "pkg:npm/uplot@1.6.32",
     "licenses": [{"license": {"id": "MIT"}}]},
]  # fmt: skip


def clean_sbom(text: str) -> str:
    """Return a CycloneDX document about this package and what is in it, without paths of the machine."""
    made: Any = json.loads(text)
    ours = next(one for one in made["components"] if one["name"] == "llm-loadgen")
    made["components"].remove(ours)
    made["components"] += VENDORED
    references = [one for one in ours["externalReferences"] if not one["url"].startswith("file:")]
    made["metadata"]["component"] = {**ours, "type": "application", "externalReferences": references}
    return json.dumps(made, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def pack(folder: Path, epoch_s: int) -> bytes:
    """Return a gzipped tar of a folder, under its name: no owner, no mode and no time but `epoch_s`."""
    written = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=written, mode="wb", filename="", mtime=epoch_s) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                member = tarfile.TarInfo(f"{folder.name}/{path.relative_to(folder).as_posix()}")
                content = path.read_bytes()
                member.size, member.mtime, member.mode = len(content), epoch_s, 0o644
                archive.addfile(member, io.BytesIO(content))
    return written.getvalue()


def _print_notes(version: str) -> int:
    notes = find_notes((_ROOT / "CHANGELOG.md").read_text("utf-8"), version)
    if not notes:
        line = f"CHANGELOG.md has no section [{version}]: rename [Unreleased], commit, and tag that commit"
        print(f"scripts/release: {line}", file=sys.stderr)
        return 2
    print(notes)
    return 0


def _print_constraints() -> int:
    print(strip_hashes((_ROOT / "requirements" / "ci.txt").read_text("utf-8")), end="")
    return 0


def _print_sbom() -> int:
    print(clean_sbom(sys.stdin.read()), end="")
    return 0


def _write_pack(folder: str, file: str) -> int:
    Path(file).write_bytes(pack(Path(folder), int(os.environ["SOURCE_DATE_EPOCH"])))
    return 0


VERBS: dict[str, Callable[..., int]] = {
    "notes": _print_notes,
    "constraints": _print_constraints,
    "sbom": _print_sbom,
    "pack": _write_pack,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
