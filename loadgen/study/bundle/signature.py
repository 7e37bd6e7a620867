"""Signature: who bundled, by ssh-keygen, whose keys most people have: FILE.sig next to FILE."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from loadgen.base.errors import ExitCode, UsageError
from loadgen.base.files import expand_path

NAMESPACE = "loadgen-bundle"
_LONGEST_S = 30
_MOST_BYTES = 64 << 10


class WrongSignature(UsageError):
    """A bundle's signature is missing, of another file, or of no one who may sign."""

    exit_code = ExitCode.UNPROVEN


def find_signature(bundle: Path) -> Path:
    """Return where the signature of a bundle is, or would be."""
    return bundle.with_name(f"{bundle.name}.sig")


def sign(bundle: Path, key: Path) -> Path:
    """Sign a bundle with an SSH key, and return the signature's file, replaced if there was one.

    ssh-keygen may ask for the key's passphrase. Raises UsageError if it cannot sign.
    """
    place = find_signature(bundle)
    if place.is_symlink():
        raise UsageError(f"{place} is a symbolic link, which is not written through: remove it")
    place.unlink(missing_ok=True)  # else it asks
    words = [_find_tool(), "-q", "-Y", "sign", "-f", str(key), "-n", NAMESPACE, "--", str(bundle)]
    ended = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
    if ended.returncode or not place.is_file():
        raise UsageError(f"the bundle is written and not signed: {_explain(ended)}")
    return place


def check_signature(bundle: Path, allowed: Path | None) -> str:
    """Check a bundle's signature, and say whose it is; "" if there is none, and no one is named in `allowed`.

    `allowed` is a file of allowed signers, as ssh-keygen reads it. Raises WrongSignature, or UsageError if
    ssh-keygen or the file is missing.
    """
    place = find_signature(bundle)
    if allowed is not None and not allowed.is_file():
        raise UsageError(f"{allowed} is no file of allowed signers: a line is `NAME KEY`, see man ssh-keygen")
    if not place.is_file():
        if allowed is None:
            return ""
        raise WrongSignature(f"{bundle} is not signed: there is no {place.name} next to it")
    if place.stat().st_size > _MOST_BYTES:
        raise WrongSignature(f"{place} is no signature: it has more than {_MOST_BYTES >> 10} KiB")
    if allowed is None:
        ended = _run(bundle, "check-novalidate", place)
        key = re.search(r"SHA256:\S+", ended.stdout)
        if ended.returncode or key is None:
            raise WrongSignature(f"{bundle}: its signature is wrong: {_explain(ended)}")
        return f"signed with {key[0]}; --allowed-signers FILE says whose key that is"
    found = subprocess.run(
        [_find_tool(), "-Y", "find-principals", "-f", str(allowed), "-s", str(place)],
        capture_output=True, text=True, errors="replace", check=False, timeout=_LONGEST_S,
    )  # fmt: skip
    signer = next(iter(found.stdout.splitlines()), "")
    if found.returncode or not signer:
        raise WrongSignature(f"{bundle}: its signature is of no one in {allowed}")
    ended = _run(bundle, "verify", place, "-f", str(allowed), "-I", signer)
    if ended.returncode:
        raise WrongSignature(f"{bundle}: its signature is wrong: {_explain(ended)}")
    return f"signed by {signer}"


def _run(bundle: Path, action: str, signature: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run ssh-keygen on a bundle and its signature."""
    command = [_find_tool(), "-Y", action, *words, "-n", NAMESPACE, "-s", str(signature)]
    with bundle.open("rb") as file:
        return subprocess.run(
            command, stdin=file, capture_output=True, text=True, errors="replace", check=False, timeout=None
        )


def _find_tool() -> str:
    """Return the path of ssh-keygen; raises UsageError if it is not installed."""
    if (found := shutil.which("ssh-keygen")) is None:
        raise UsageError("ssh-keygen is not installed: signatures need OpenSSH 8.2 or newer")
    return found


def _explain(ended: subprocess.CompletedProcess[str]) -> str:
    """Return the last line that ssh-keygen printed."""
    lines = [line.strip() for line in (ended.stdout + ended.stderr).splitlines() if line.strip()]
    return lines[-1][:200] if lines else f"ssh-keygen ended with {ended.returncode}"


def read_signers(given: str | None) -> Path | None:
    """Return the path of --allowed-signers; None if it is not given."""
    return None if given is None else expand_path(given)
