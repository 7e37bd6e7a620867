"""Signature: who bundled, by ssh-keygen, whose keys most people have: FILE.sig next to FILE."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from loadgen.base.errors import UsageError
from loadgen.study.bundle.reading import ChangedBundle

NAMESPACE = "loadgen-bundle"
_LONGEST_S = 30
_BLOCK = 1 << 20
_MOST_NAMES = 20  # of one key that are tried
_MOST_LINES = 10_000
_SIGNER = re.compile(r"""("[^"]+"|[^\s#]\S*)\s.*?\b(AAAA[A-Za-z0-9+/]+=*)""")  # names, options, type and key
_ARMOUR = re.compile(rb"-----[^-\n]*-----|\s")
_MOST_BYTES = 64 << 10


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


def check_signature(bundle: Path, sha256: str, allowed: Path | None) -> str:
    """Check the signature of a bundle whose bytes had this SHA-256, and return a line on whose it is.

    Without `allowed` the line has the key alone, and is "" if the bundle is unsigned. With it, a file of
    allowed signers as ssh-keygen reads it, the line has all its names for the key. Raises ChangedBundle if
    the signature is wrong, or missing with `allowed`, or the bundle has other bytes by now; UsageError if
    ssh-keygen or the file is missing.
    """
    place = find_signature(bundle)
    if allowed is not None and not allowed.is_file():
        raise UsageError(f"{allowed} is no file of allowed signers: a line is `NAME KEY`, see man ssh-keygen")
    if not place.is_file():
        if allowed is None:
            return ""
        raise ChangedBundle(f"{bundle} is not signed: there is no {place.name} next to it")
    if place.stat().st_size > _MOST_BYTES:
        raise ChangedBundle(f"{place} is no signature: it has more than {_MOST_BYTES >> 10} KiB")
    if allowed is None:
        ended = _run_keygen(bundle, sha256, "check-novalidate", place)
        key = re.search(r"SHA256:\S+", ended.stdout)
        if ended.returncode or key is None:
            raise ChangedBundle(f"{bundle}: its signature is wrong: {_explain(ended)}")
        return f"signed with {key[0]}; --allowed-signers FILE says whose key that is"
    found = subprocess.run(
        [_find_tool(), "-Y", "find-principals", "-f", str(allowed), "-s", str(place)],
        capture_output=True, text=True, errors="replace", check=False, timeout=_LONGEST_S,
    )  # fmt: skip
    first = [] if found.returncode else found.stdout.splitlines()  # of the key's first line alone
    names = list(dict.fromkeys(filter(None, (*first, *_list_names(allowed, place)))))
    if not names:
        raise ChangedBundle(f"{bundle}: its signature is of no one in {allowed}")
    tried = {
        name: _run_keygen(bundle, sha256, "verify", place, "-f", str(allowed), "-I", name)
        for name in names[:_MOST_NAMES]
    }
    signers = [name for name, ended in tried.items() if not ended.returncode]
    if not signers:
        raise ChangedBundle(f"{bundle}: its signature is wrong: {_explain(tried[names[0]])}")
    return f"signed by {' or '.join(signers)}{', who have one key' if signers[1:] else ''}"


def _list_names(allowed: Path, place: Path) -> Iterator[str]:
    """Yield the names next to a signature's key in allowed signers' first 10,000 lines; not each may sign."""
    signature = place.read_bytes()
    for line in allowed.read_text("utf-8", "replace").splitlines()[:_MOST_LINES]:
        if (found := _SIGNER.match(line.strip())) is not None:
            with contextlib.suppress(ValueError):
                if base64.b64decode(found[2]) in base64.b64decode(_ARMOUR.sub(b"", signature)):
                    yield from found[1].strip('"').split(",")


def _run_keygen(
    bundle: Path, sha256: str, action: str, signature: Path, *words: str
) -> subprocess.CompletedProcess[str]:
    """Run ssh-keygen on a bundle's bytes; raises ChangedBundle if it accepts some of another SHA-256."""
    command = [_find_tool(), "-Y", action, *words, "-n", NAMESPACE, "-s", str(signature)]
    digest, pipe = hashlib.sha256(), subprocess.PIPE
    with (
        bundle.open("rb") as file,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT) as process,
    ):
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has refused the signature already
            while block := file.read(_BLOCK):
                digest.update(block)
                process.stdin.write(block)
        said = process.communicate()[0].decode("utf-8", "replace")
    if not process.returncode and digest.hexdigest() != sha256:
        raise ChangedBundle(f"{bundle} was replaced while it was read: verify it again")
    return subprocess.CompletedProcess(command, process.returncode, said, "")


def _find_tool() -> str:
    if (found := shutil.which("ssh-keygen")) is None:
        raise UsageError("ssh-keygen is not installed: signatures need OpenSSH 8.2 or newer")
    return found


def _explain(ended: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in (ended.stdout + ended.stderr).splitlines() if line.strip()]
    return lines[-1][:200] if lines else f"ssh-keygen ended with {ended.returncode}"
